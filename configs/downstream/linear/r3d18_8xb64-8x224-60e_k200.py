# Linear evaluation on Kinetics-200: ResNet3D-18, 8 frames at 224x224, the backbone frozen.
# Paper:    tab:video-best, third row (lambda 0.5, tau_m 0.05, the final setting);
#           tab:video-baseline for the baseline.
# Run:      bash tools/dist_train.sh configs/downstream/linear/r3d18_8xb64-8x224-60e_k200.py 8 \
#               --pretrained work_dirs/sce_r3d18_8xb64-8x224-200e_k200/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/linear/r3d18_8xb64-8x224-60e_k200.py \
#               work_dirs/r3d18_8xb64-8x224-60e_k200/epoch_60.pth 8
# Hardware: 8 GPUs x 64 videos = global batch 512; the backbone needs no gradients.
# Expected: 66.0 top-1 (baseline 63.9), 30 views, pretrained on K200.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/kinetics200_recognition.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/linear_8x224.py",
    "../../_base_/pipelines/test_8x224.py",
    "../../_base_/schedules/linear_sgd_60e.py",
]

benchmark = dict(
    protocol="linear",
    dataset="kinetics200",
    network="r3d18",
    frames=8,
    size=224,
    pretrained_on="kinetics200",
)

# The backbone stays frozen: it has no gradient, and BN keeps its statistics.
model = dict(backbone=dict(frozen_stages=4), cls_head=dict(num_classes=200, dropout_ratio=0.0))
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
