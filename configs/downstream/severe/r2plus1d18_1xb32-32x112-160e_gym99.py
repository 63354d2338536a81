# Finetuning on FineGym-99: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), shift of domain.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_gym99.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_gym99.py \
#               work_dirs/r2plus1d18_1xb32-32x112-160e_gym99/epoch_160.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/gym99.py",
    "../../_base_/models/recognizer_r3d18.py",
    "../../_base_/pipelines/severe_32x112.py",
    "../../_base_/schedules/severe_adam_160e.py",
]

benchmark = dict(
    protocol="finetune",
    dataset="gym99",
    network="r2plus1d18",
    frames=32,
    size=112,
    pretrained_on="kinetics400",
)

model = dict(
    backbone=dict(_delete_=True, type="R2Plus1d", depth=18, channels_last=False),
    cls_head=dict(num_classes=99, dropout_ratio=0.0),
)
train_dataloader = dict(batch_size=32, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_cfg = dict(max_views=10)
