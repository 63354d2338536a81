# Linear evaluation on ImageNet after pretraining with LARS: frozen ResNet-50, 224x224.
# Paper:    tab:sota and tab:sota-multi-crop.
# Run:      bash tools/dist_train.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py 8 \
#               --pretrained work_dirs/sce_r50_8xb512-224-200e_imagenet/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/linear/r50_8xb128-224-90e_imagenet.py \
#               work_dirs/r50_8xb128-224-90e_imagenet/epoch_90.pth 8
# Best:     the authors' code reports the best epoch on the test split. To keep it in addition to
#           the last epoch:
#               --cfg-options default_hooks.checkpoint.save_best=top1 train_cfg.val_interval=1
#           A test of best_top1_epoch_N.pth writes best.json, marked as chosen on the test images.
# Hardware: 8 GPUs x 128 images = global batch 1024; the backbone needs no gradients.
# Expected: top-1 on the validation images, best epoch: 72.1, 72.7, 73.3 and 74.1 after 100, 200,
#           300 and 1000 epochs; 75.4 with multi-crop (200 epochs).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/imagenet_recognition.py",
    "../../_base_/models/recognizer_r50.py",
    "../../_base_/pipelines/linear_image_224.py",
    "../../_base_/schedules/linear_image_sgd_90e.py",
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
train_dataloader = dict(batch_size=128, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
