# Linear evaluation on STL10: frozen ResNet-18 with the small-image stem, 96x96.
# Paper:    tab:baselines and tab:temperature-small, STL10.
# Run:      python tools/train.py configs/downstream/linear/r18_1xb256-96-100e_stl10.py \
#               --pretrained work_dirs/sce_r18_1xb256-96-200e_stl10/epoch_200.pth
# Test:     python tools/test.py configs/downstream/linear/r18_1xb256-96-100e_stl10.py \
#               work_dirs/r18_1xb256-96-100e_stl10/epoch_100.pth
# Best:     the authors' code reports the best epoch on the test split. To keep it in addition to
#           the last epoch:
#               --cfg-options default_hooks.checkpoint.save_best=top1 train_cfg.val_interval=1
#           A test of best_top1_epoch_N.pth writes best.json, marked as chosen on the test images.
# Hardware: 1 GPU x 256 images; the backbone needs no gradients.
# Expected: top-1 on the test split, best epoch: 89.9 (SCE, tau 0.1, tau_m 0.04), 89.1 (ReSSL),
#           86.5 (MoCo v2).

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/stl10_recognition.py",
    "../../_base_/models/recognizer_r18_small.py",
    "../../_base_/pipelines/linear_image_96.py",
    "../../_base_/schedules/linear_image_sgd_100e.py",
]

benchmark = dict(
    protocol="linear",
    dataset="stl10",
    network="r18_small",
    frames=1,
    size=96,
    pretrained_on="stl10",
)

# The backbone stays frozen: it has no gradient, and BN keeps its statistics.
model = dict(backbone=dict(frozen_stages=4), cls_head=dict(num_classes=10))
train_dataloader = dict(batch_size=256, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
