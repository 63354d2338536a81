# Finetuning on UCF101: ResNet3D-50, 16 frames at 224x224, all weights.
# Paper:    tab:video-sota-action, ResNet3D-50, 16 frames at 224x224 (mean of 3 splits).
# Run:      bash tools/dist_train.sh \
#               configs/downstream/finetune/r3d50_8xb8-16x224-200e_ucf101.py 8 \
#               --pretrained work_dirs/sce_r3d50_16xb32-16x224-200e_k400/epoch_200.pth
# 3 splits: torchrun --nproc_per_node 8 -m sce_video finetune-splits --launcher pytorch \
#               configs/downstream/finetune/r3d50_8xb8-16x224-200e_ucf101.py \
#               --pretrained work_dirs/sce_r3d50_16xb32-16x224-200e_k400/epoch_200.pth
# Hardware: 8 GPUs x 8 videos = global batch 64.
# Expected: 95.3 top-1, 30 views, mean of the three splits.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ucf101.py",
    "../../_base_/models/recognizer_r3d50.py",
    "../../_base_/pipelines/finetune_16x224.py",
    "../../_base_/pipelines/test_16x224.py",
    "../../_base_/schedules/finetune_sgd_200e.py",
]

benchmark = dict(
    protocol="finetune",
    dataset="ucf101",
    network="r3d50",
    frames=16,
    size=224,
    pretrained_on="kinetics400",
)

model = dict(cls_head=dict(num_classes=101, dropout_ratio=0.8))
train_dataloader = dict(batch_size=8, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
# The last epoch is the result. The best one on the test split (validation) is also kept and shown.
default_hooks = dict(checkpoint=dict(save_best="top1", rule="greater"))
