# Attentive probes on Something-Something v2: frozen ResNet3D-50, 16 frames at 224x224.
# Paper:    none for this encoder. The protocol is V-JEPA 2's (facebookresearch/vjepa2,
#           configs/eval/vitl/ssv2.yaml), which has 73.7 with ViT-L/16, 16 frames at 256, and probes
#           of depth 4 on 2 clips x 3 crops (README.md there); here with our finetuning's views.
# Data:     as in r3d50_8xb32-8x224-20e_k400.py: train.txt in data/ssv2 is divided into fit.txt and
#           select.txt (every 20th line).
# Run:      bash tools/dist_train.sh \
#               configs/downstream/attentive_probe/r3d50_8xb32-16x224-20e_ssv2.py 8 \
#               --pretrained work_dirs/sce_r3d50_16xb32-16x224-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh \
#               configs/downstream/attentive_probe/r3d50_8xb32-16x224-20e_ssv2.py \
#               work_dirs/r3d50_8xb32-16x224-20e_ssv2/epoch_20.pth 8
# Hardware: 8 GPUs x 32 videos = global batch 256; the backbone needs no gradients.
# Expected: no published number for this encoder.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/ssv2.py",
    "../../_base_/models/attentive_probe_r3d50.py",
    "../../_base_/pipelines/ssv2_16x224.py",
    "../../_base_/schedules/attentive_adamw_20e.py",
]

benchmark = dict(
    protocol="attentive_probe",
    dataset="ssv2",
    network="r3d50",
    frames=16,
    size=224,
    pretrained_on="kinetics400",
)

model = dict(cls_head=dict(num_classes=174))
_selection = dict(ann_file="data/ssv2/select.txt", pipeline=_base_.val_pipeline, on_error="skip")
train_dataloader = dict(
    batch_size=32,
    dataset=dict(ann_file="data/ssv2/fit.txt", pipeline=_base_.train_pipeline),
)
val_dataloader = dict(dataset=_selection)
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_cfg = dict(
    selection_dataloader=dict(
        batch_size=16,
        num_workers=8,
        dataset=dict(type="VideoDataset", data_root="data/ssv2", **_selection),
    )
)
