# Finetuning on UCF101: ResNet3D-18, 16 frames at 112x112, all weights.
# Paper:    tab:video-sota-action, ResNet3D-18, 16 frames at 112x112 (mean of 3 splits).
# Run:      python tools/train.py configs/downstream/finetune/r3d18_1xb64-16x112-200e_ucf101.py \
#               --pretrained work_dirs/sce_r3d18_8xb64-16x112-200e_k400/epoch_200.pth
# 3 splits: sce-video finetune-splits \
#               configs/downstream/finetune/r3d18_1xb64-16x112-200e_ucf101.py \
#               --pretrained work_dirs/sce_r3d18_8xb64-16x112-200e_k400/epoch_200.pth
# Hardware: 1 GPU x 64 videos = global batch 64.
# Expected: 89.1 top-1, 30 views, mean of the three splits.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ucf101.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/finetune_16x112.py",
    "../../_base_/pipelines/test_16x112.py",
    "../../_base_/schedules/finetune_sgd_200e.py",
]

benchmark = dict(
    protocol="finetune",
    dataset="ucf101",
    network="r3d18",
    frames=16,
    size=112,
    pretrained_on="kinetics400",
)

model = dict(cls_head=dict(num_classes=101, dropout_ratio=0.8))
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
# The last epoch is the result. The best one on the test split (validation) is also kept and shown.
default_hooks = dict(checkpoint=dict(save_best="top1", rule="greater"))
