# Action localisation on AVA v2.2: ResNet3D-50, 8 frames, 8 apart, all weights, person boxes given.
# Paper:    tab:video-sota-generalization, SCE with 8 frames.
# Run:      bash tools/dist_train.sh configs/downstream/detection/r3d50_8xb8-8x8-32e_ava.py 8 \
#               --pretrained work_dirs/sce_r3d50_8xb64-8x224-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh configs/downstream/detection/r3d50_8xb8-8x8-32e_ava.py \
#               work_dirs/r3d50_8xb8-8x8-32e_ava/epoch_32.pth 8
# Hardware: 8 GPUs x 8 clips = global batch 64.
# Expected: 20.3 mAP at IoU 0.5 over the 60 scored actions.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ava.py",
    "../../_base_/models/action_detector_r3d50.py",
    "../../_base_/pipelines/ava_8x8.py",
    "../../_base_/schedules/ava_sgd_32e.py",
]

benchmark = dict(
    protocol="detection",
    dataset="ava",
    network="r3d50",
    frames=8,
    size=224,
    pretrained_on="kinetics400",
)
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
