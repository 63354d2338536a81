# Finetuning on Something-Something v2: ResNet3D-50, 8 frames at 224x224, all weights.
# Paper:    tab:video-sota-generalization, SCE with 8 frames.
# Run:      bash tools/dist_train.sh configs/downstream/finetune/r3d50_8xb8-8x224-22e_ssv2.py 8 \
#               --pretrained work_dirs/sce_r3d50_8xb64-8x224-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/finetune/r3d50_8xb8-8x224-22e_ssv2.py \
#               work_dirs/r3d50_8xb8-8x224-22e_ssv2/epoch_22.pth 8
# Hardware: 8 GPUs x 8 videos = global batch 64.
# Expected: 53.9 top-1 on the validation set, 1 clip x 1 crop of 256.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ssv2.py",
    "../../_base_/models/recognizer_r3d50.py",
    "../../_base_/pipelines/ssv2_8x224.py",
    "../../_base_/schedules/ssv2_sgd_22e.py",
]

benchmark = dict(
    protocol="finetune",
    dataset="ssv2",
    network="r3d50",
    frames=8,
    size=224,
    pretrained_on="kinetics400",
)

model = dict(cls_head=dict(num_classes=174, dropout_ratio=0.5))
train_dataloader = dict(batch_size=8, dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.val_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
