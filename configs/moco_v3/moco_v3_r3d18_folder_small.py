# MoCo v3, ResNet3D-18 with 8 channels in the stem, 4 frames at 64x64, on a folder of your own
# videos, for a CPU, small videos or a first look.
# Paper: none. It uses the data, views, heads and optimiser of SCE's recipe, without a queue.
# Run:      python tools/train.py configs/moco_v3/moco_v3_r3d18_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/moco_v3/moco_v3_r3d18_folder_small.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: depends on the videos; docs/results.md contains an example (weizmann4).

_base_ = "../sce/sce_r3d18_folder_small.py"

model = dict(
    _delete_=True,
    type="MoCoV3",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        channels_last=True,
        with_cp=False,
        zero_init_residual=False,
    ),
    projector=dict(
        type="MLP", hidden_channels=256, out_channels=64, num_layers=3, norm_output=True
    ),
    predictor=dict(type="MLP", hidden_channels=256, num_layers=2, norm_output=False),
    momentum=0.97,
    tau=0.2,
)
