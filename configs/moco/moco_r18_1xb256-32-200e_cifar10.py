# MoCo v2, ResNet-18 with the small-image stem, 32x32 images, CIFAR10, 200 epochs.
# Paper:    tab:baselines, row MoCo v2 (the authors' reproduction), column CIFAR10: tau 0.2,
#           everything else as in SCE's recipe. Both views are strong, which is inferred from MoCo
#           v2.
# Run:      python tools/train.py configs/moco/moco_r18_1xb256-32-200e_cifar10.py
# Test:     python tools/train.py configs/downstream/linear/r18_1xb256-32-100e_cifar10.py \
#               --pretrained work_dirs/moco_r18_1xb256-32-200e_cifar10/epoch_200.pth
# Hardware: 1 GPU x 256 images; shuffle-BN simulated with 8 groups of 32.
# Expected: 87.6 top-1, linear, best epoch on the test images.

_base_ = [
    "../_base_/images/cifar10.py",
    "../_base_/models/image_r18.py",
    "../_base_/schedules/sgd_image_small_200e.py",
]

benchmark = dict(pretraining="moco_images")
model = dict(type="MoCo", queue_size=4096, momentum=0.9, tau=0.2)
custom_hooks = dict(ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.9, end=1.0))))
data_preprocessor = dict(views=[dict(name="strong", strength=0.5)] * 2)
