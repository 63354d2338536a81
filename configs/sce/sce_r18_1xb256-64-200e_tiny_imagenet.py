# SCE, ResNet-18 with the small-image stem, 64x64 images, Tiny-ImageNet, 200 epochs.
# Paper:    tab:baselines, row SCE, column Tiny-IN; settings of appendix D.1 and
#           tab:specifc-hyper-pretrain.
# Run:      python tools/train.py configs/sce/sce_r18_1xb256-64-200e_tiny_imagenet.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-64-100e_tiny_imagenet.py \
#               --pretrained work_dirs/sce_r18_1xb256-64-200e_tiny_imagenet/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32.
# Expected: 51.9 top-1, linear, best epoch on the validation images (51.90 in
#           tab:temperature-small).

_base_ = [
    "../_base_/images/tiny_imagenet.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="sce_images_tau_0.1_tau_m_0.07")
model = dict(type="SCE", queue_size=16384, momentum=0.996, lambda_=0.5, tau=0.1, tau_m=0.07)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
