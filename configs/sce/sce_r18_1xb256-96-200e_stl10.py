# SCE, ResNet-18 with the small-image stem, 96x96 images, STL10, 200 epochs.
# Paper:    tab:baselines, row SCE, column STL10; settings of appendix D.1 and
#           tab:specifc-hyper-pretrain.
# Run:      python tools/train.py configs/sce/sce_r18_1xb256-96-200e_stl10.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-96-100e_stl10.py \
#               --pretrained work_dirs/sce_r18_1xb256-96-200e_stl10/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32.
# Expected: 89.9 top-1, linear, best epoch on the test images (89.94 in tab:temperature-small).
# Options:  train_dataloader.dataset.split=train+unlabeled
#           train_dataloader.dataset.pipeline.RandomResizedCropClips.size=64: 105,000 images at
#           64x64, as ReSSL's code for small datasets; the authors' code (juliendenize/eztorch) has
#           the 100,000 unlabelled, the paper 96x96

_base_ = [
    "../_base_/images/stl10.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="sce_images_tau_0.1_tau_m_0.04")
model = dict(type="SCE", queue_size=16384, momentum=0.996, lambda_=0.5, tau=0.1, tau_m=0.04)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
