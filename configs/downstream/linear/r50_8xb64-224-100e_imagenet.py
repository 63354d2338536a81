# Linear evaluation on ImageNet after pretraining with SGD: frozen ResNet-50, 224x224.
# Paper:    tab:baselines, ImageNet.
# Run:      bash tools/dist_train.sh configs/downstream/linear/r50_8xb64-224-100e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb64-224-200e_imagenet/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/linear/r50_8xb64-224-100e_imagenet.py \
#               work_dirs/r50_8xb64-224-100e_imagenet/epoch_100.pth 8
# Best:     the authors' code reports the best epoch on the test split. To keep it in addition to
#           the last epoch:
#               --cfg-options default_hooks.checkpoint.save_best=top1 train_cfg.val_interval=1
#           A test of best_top1_epoch_N.pth writes best.json, marked as chosen on the test images.
# Hardware: 8 GPUs x 64 images = global batch 512; the backbone needs no gradients.
# Expected: top-1 on the validation images, best epoch: 70.5 (SCE), 70.2 (ReSSL), 68.8 (MoCo v2).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/imagenet_recognition.py",
    "../../_base_/models/recognizer_r50.py",
    "../../_base_/pipelines/linear_image_224.py",
    "../../_base_/schedules/linear_image_sgd_100e.py",
]

benchmark = dict(
    protocol="linear",
    dataset="imagenet",
    network="r50_2d",
    frames=1,
    size=224,
    pretrained_on="imagenet",
)

# The backbone stays frozen: it has no gradient, and BN keeps its statistics.
model = dict(backbone=dict(frozen_stages=4))
train_dataloader = dict(batch_size=64, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
