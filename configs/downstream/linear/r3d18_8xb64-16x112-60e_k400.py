# Linear evaluation on Kinetics-400: ResNet3D-18, 16 frames at 112x112, the backbone frozen.
# Paper:    tab:video-sota-action, ResNet3D-18, 16 frames at 112x112.
# Run:      bash tools/dist_train.sh configs/downstream/linear/r3d18_8xb64-16x112-60e_k400.py 8 \
#               --pretrained work_dirs/sce_r3d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/linear/r3d18_8xb64-16x112-60e_k400.py \
#               work_dirs/r3d18_8xb64-16x112-60e_k400/epoch_60.pth 8
# Hardware: 8 GPUs x 64 videos = global batch 512; the backbone needs no gradients.
# Expected: 56.6 top-1 on the validation set, 30 views.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/kinetics400_recognition.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/linear_16x112.py",
    "../../_base_/pipelines/test_16x112.py",
    "../../_base_/schedules/linear_sgd_60e.py",
]

benchmark = dict(
    protocol="linear",
    dataset="kinetics400",
    network="r3d18",
    frames=16,
    size=112,
    pretrained_on="kinetics400",
)

# The backbone stays frozen: it has no gradient, and BN keeps its statistics.
model = dict(backbone=dict(frozen_stages=4), cls_head=dict(num_classes=400, dropout_ratio=0.0))
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
