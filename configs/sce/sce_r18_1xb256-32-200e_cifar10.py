# SCE, ResNet-18 with the small-image stem, 32x32 images, CIFAR10, 200 epochs.
# Paper:    tab:baselines, row SCE, column CIFAR10; settings of appendix D.1 and
#           tab:specifc-hyper-pretrain.
# Run:      python tools/train.py configs/sce/sce_r18_1xb256-32-200e_cifar10.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-32-100e_cifar10.py \
#               --pretrained work_dirs/sce_r18_1xb256-32-200e_cifar10/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32 (the authors: one GPU).
# Expected: 90.3 top-1, linear, best epoch on the test images (90.34 in tab:temperature-small).
# Options:  custom_hooks.ScheduleHook.model=None model.momentum=0.99: constant, as the authors'
#           first code (juliendenize/SCE, resnet18_cifar10.yaml) and ReSSL's; the paper: 0.900 to 1
#           model.tau=0.1 model.tau_m=0.05: as that file, 90.06 in tab:temperature-small
#           model.mask_positive=False: the pseudo-code of appendix A, where the positive takes part
#           in the target's softmax with logit 0; eq. 3 masks it

_base_ = [
    "../_base_/images/cifar10.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="sce_images_tau_0.2_tau_m_0.1")
model = dict(type="SCE", queue_size=4096, momentum=0.9, lambda_=0.5, tau=0.2, tau_m=0.1)
custom_hooks = dict(ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.9, end=1.0))))
