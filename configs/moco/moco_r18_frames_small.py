# MoCo v2, ResNet-18 (2-D) with 16 channels in the stem, on single frames of your own videos.
# Paper: none. It is ../sce/sce_r18_frames_small.py with MoCo's objective and views (both strong,
#        tau 0.2).
# Run:      python tools/train.py configs/moco/moco_r18_frames_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Hardware: 1 CPU core, 2 GB.
# Expected: docs/results.md, "Images: methods at equal compute" (weizmann4, toy actions).

_base_ = "../sce/sce_r18_frames_small.py"

model = dict(
    _delete_=True,
    type="MoCo",
    backbone=dict(type="ResNet2d", depth=18, base_channels=16, channels_last=True),
    projector=dict(
        type="MLP",
        hidden_channels=256,
        out_channels=64,
        num_layers=2,
        norm_output=False,
        bias_output=True,
    ),
    queue_size=256,
    tau=0.2,
)
data_preprocessor = dict(views=[_base_._strong, _base_._strong])
