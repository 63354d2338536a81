# Attentive probes on Kinetics-400: ResNet3D-50, 8 frames at 224x224, the backbone frozen.
# Paper:    none for this encoder. The protocol is V-JEPA 2's (facebookresearch/vjepa2,
#           configs/eval/vitl/k400.yaml) with the views of our linear evaluation, which has 67.6
#           (linear/r3d50_8xb64-8x224-60e_k400.py).
# Data:     the list of training videos is divided, so that test videos do not select a probe:
#             cd data/kinetics400
#             awk 'NR % 20 == 0' k400_train.txt > k400_select.txt
#             awk 'NR % 20' k400_train.txt > k400_fit.txt
#           V-JEPA 2 trains on all of them and reports the best probe on the tested list:
#             --cfg-options train_dataloader.dataset.ann_file=data/kinetics400/k400_train.txt
#             and, in the test, test_cfg.selection_dataloader.dataset.ann_file=\
#             data/kinetics400/k400_val.txt (results.json then counts the tested videos in it)
# Run:      bash tools/dist_train.sh \
#               configs/downstream/attentive_probe/r3d50_8xb32-8x224-20e_k400.py 8 \
#               --pretrained work_dirs/sce_r3d50_8xb64-8x224-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh \
#               configs/downstream/attentive_probe/r3d50_8xb32-8x224-20e_k400.py \
#               work_dirs/r3d50_8xb32-8x224-20e_k400/epoch_20.pth 8
# Encoders: sce-video encoder NAME --out RUN --pool mean --recipe THIS_FILE writes this recipe with
#           an encoder of others (docs/metrics.md).
# Hardware: 8 GPUs x 32 videos = global batch 256; the backbone needs no gradients.
# Expected: no published number for this encoder.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/kinetics400_recognition.py",
    "../../_base_/models/attentive_probe_r3d50.py",
    "../../_base_/pipelines/linear_8x224.py",
    "../../_base_/pipelines/test_8x224.py",
    "../../_base_/schedules/attentive_adamw_20e.py",
]

benchmark = dict(
    protocol="attentive_probe",
    dataset="kinetics400",
    network="r3d50",
    frames=8,
    size=224,
    pretrained_on="kinetics400",
)

_selection = dict(
    ann_file="data/kinetics400/k400_select.txt", pipeline=_base_.val_pipeline, on_error="skip"
)
train_dataloader = dict(
    batch_size=32,
    dataset=dict(ann_file="data/kinetics400/k400_fit.txt", pipeline=_base_.train_pipeline),
)
val_dataloader = dict(dataset=_selection)
test_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_cfg = dict(
    selection_dataloader=dict(
        batch_size=16,
        num_workers=8,
        dataset=dict(type="VideoDataset", data_root="data/kinetics400", **_selection),
    )
)
