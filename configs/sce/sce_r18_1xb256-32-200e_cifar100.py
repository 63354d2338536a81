# SCE, ResNet-18 with the small-image stem, 32x32 images, CIFAR100, 200 epochs.
# Paper:    tab:baselines, row SCE, column CIFAR100; settings of appendix D.1 and
#           tab:specifc-hyper-pretrain.
# Run:      python tools/train.py configs/sce/sce_r18_1xb256-32-200e_cifar100.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-32-100e_cifar100.py \
#               --pretrained work_dirs/sce_r18_1xb256-32-200e_cifar100/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32.
# Expected: 65.5 top-1, linear, best epoch on the test images (65.45 in tab:temperature-small).
# Options:  custom_hooks.ScheduleHook.model=None model.momentum=0.99: constant, as the authors'
#           first code (juliendenize/SCE, resnet18_cifar10.yaml) and ReSSL's; the paper: 0.900 to 1

_base_ = [
    "../_base_/images/cifar100.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="sce_images_tau_0.1_tau_m_0.08")
model = dict(type="SCE", queue_size=4096, momentum=0.9, lambda_=0.5, tau=0.1, tau_m=0.08)
custom_hooks = dict(ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.9, end=1.0))))
