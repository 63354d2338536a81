# MoCo v2, ResNet-50, 224x224 images, ImageNet, 200 epochs.
# Paper:    tab:baselines, row MoCo v2 (the authors' reproduction), column ImageNet: tau 0.2, the
#           projector of ImageNet100, everything else as in SCE's recipe. Both views are strong,
#           which is inferred from MoCo v2.
# Run:      bash tools/dist_train.sh configs/moco/moco_r50_8xb64-224-200e_imagenet.py 8
# Test:     bash tools/dist_train.sh configs/downstream/linear/r50_8xb64-224-100e_imagenet.py 8 \
#               --pretrained work_dirs/moco_r50_8xb64-224-200e_imagenet/epoch_200.pth
# Hardware: 8 GPUs x 64 images = global batch 512; shuffle-BN between the GPUs (the authors: 8
#           A100-80G).
# Expected: 68.8 top-1, linear, best epoch on the validation images.

_base_ = [
    "../_base_/images/imagenet.py",
    "../_base_/models/image_r50.py",
    "../_base_/schedules/sgd_image_200e.py",
]

benchmark = dict(pretraining="moco_images")
model = dict(type="MoCo", queue_size=65536, momentum=0.996, tau=0.2)
custom_hooks = dict(
    ScheduleHook=dict(model=dict(momentum=dict(name="cosine", start=0.996, end=1.0)))
)
optim_wrapper = dict(optimizer=dict(lr=0.5))
data_preprocessor = dict(views=[dict(name="strong", strength=0.5)] * 2)
