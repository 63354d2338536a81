# Attentive probes on your own labelled videos: frozen ResNet3D-18, 8 frames at 224x224.
# Paper:    none. It shows which classes a frozen network separates if the action covers only a part
#           of the frames. finetune/r3d18_folder.py also trains the network.
# Data:     three folders with the same sub-folders, one per class, for training, for the selection
#           of a probe and for the test. Or lists of "path label" (...dataset.ann_file=LIST). The
#           classes are counted in the training data, and the checkpoint stores their names.
# Run:      python tools/train.py configs/downstream/attentive_probe/attentive_r3d18_folder.py \
#               --pretrained work_dirs/sce_r3d18_folder/epoch_100.pth --cfg-options \
#               train_dataloader.dataset.data_root=/path/to/train \
#               val_dataloader.dataset.data_root=/path/to/select
# Test:     python tools/test.py configs/downstream/attentive_probe/attentive_r3d18_folder.py \
#               CHECKPOINT --cfg-options test_dataloader.dataset.data_root=/path/to/test \
#               test_cfg.selection_dataloader.dataset.data_root=/path/to/select
# Hardware: 1 GPU of 8 GB; a CPU for a few hundred videos.
# Expected: depends on the videos.

_base_ = "../finetune/r3d18_folder.py"

# None stands for the channels of the backbone and the classes of the training data.
model = dict(
    backbone=dict(frozen_stages=4),
    cls_head=dict(
        _delete_=True,
        type="AttentiveProbeHead",
        in_channels=None,
        num_classes=None,
        lrs=(3e-3, 1e-3, 3e-4, 1e-4),
        weight_decays=(0.01, 0.1),
    ),
)
val_dataloader = dict(dataset=dict(data_root="data/videos_select"))
test_cfg = dict(
    selection_dataloader=dict(
        batch_size=8,
        num_workers=4,
        dataset=dict(
            type="VideoDataset", data_root="data/videos_select", pipeline=_base_.val_pipeline
        ),
    )
)
train_cfg = dict(max_epochs=100)
# A GPU uses bf16, so that a diverging probe does not stop the others.
optim_wrapper = dict(
    _delete_=True,
    type="MixedPrecisionOptimWrapper",
    dtype="bfloat16",
    accumulative_counts=1,
    constructor="ProbeGridConstructor",
    optimizer=dict(type="AdamW"),
)
custom_hooks = dict(ScheduleHook=dict(lr=dict(warmup_epochs=0)))
