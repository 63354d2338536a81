# Linear evaluation on CIFAR10: frozen ResNet-18 with the small-image stem, 32x32.
# Paper:    tab:baselines and tab:temperature-small, CIFAR10.
# Run:      python tools/train.py configs/downstream/linear/r18_1xb256-32-100e_cifar10.py \
#               --pretrained work_dirs/sce_r18_1xb256-32-200e_cifar10/epoch_200.pth
# Test:     python tools/test.py configs/downstream/linear/r18_1xb256-32-100e_cifar10.py \
#               work_dirs/r18_1xb256-32-100e_cifar10/epoch_100.pth
# Best:     the authors' code reports the best epoch on the test split. To keep it in addition to
#           the last epoch:
#               --cfg-options default_hooks.checkpoint.save_best=top1 train_cfg.val_interval=1
#           A test of best_top1_epoch_N.pth writes best.json, marked as chosen on the test images.
# Hardware: 1 GPU x 256 images; the backbone needs no gradients.
# Expected: top-1 on the test split, best epoch: 90.3 (SCE, tau 0.2, tau_m 0.10), 90.2 (ReSSL),
#           87.6 (MoCo v2).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/cifar10_recognition.py",
    "../../_base_/models/recognizer_r18_small.py",
    "../../_base_/pipelines/linear_image_32.py",
    "../../_base_/schedules/linear_image_sgd_100e.py",
]

benchmark = dict(
    protocol="linear",
    dataset="cifar10",
    network="r18_small",
    frames=1,
    size=32,
    pretrained_on="cifar10",
)

# The backbone stays frozen: it has no gradient, and BN keeps its statistics.
model = dict(backbone=dict(frozen_stages=4), cls_head=dict(num_classes=10))
train_dataloader = dict(batch_size=256, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
