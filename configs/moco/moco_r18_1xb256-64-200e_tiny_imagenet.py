# MoCo v2, ResNet-18 with the small-image stem, 64x64 images, Tiny-ImageNet, 200 epochs.
# Paper:    tab:baselines, row MoCo v2 (the authors' reproduction), column Tiny-IN: tau 0.2,
#           everything else as in SCE's recipe. Both views are strong, which is inferred from MoCo
#           v2.
# Run:      python tools/train.py configs/moco/moco_r18_1xb256-64-200e_tiny_imagenet.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-64-100e_tiny_imagenet.py \
#               --pretrained work_dirs/moco_r18_1xb256-64-200e_tiny_imagenet/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32.
# Expected: 45.9 top-1, linear, best epoch on the validation images.

_base_ = [
    "../_base_/images/tiny_imagenet.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="moco_images")
model = dict(type="MoCo", queue_size=16384, momentum=0.996, tau=0.2)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
data_preprocessor = dict(views=[dict(name="strong", strength=0.5)] * 2)
