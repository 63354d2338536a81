# MoCo v2, ResNet3D-18 with 8 channels in the stem, 4 frames at 64x64, on a folder of your own
# videos.
# Paper: none. It is ../sce/sce_r3d18_folder_small.py with MoCo's objective, not symmetrised, no
#        predictor, tau 0.2. The target's momentum is 0.97 to 1 as in other short runs, because
#        MoCo's 0.999 suits longer runs.
# Run:      python tools/train.py configs/moco/moco_r3d18_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: docs/results.md contains an example (weizmann4).

_base_ = "../sce/sce_r3d18_folder_small.py"

model = dict(
    _delete_=True,
    type="MoCo",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        zero_init_residual=False,
        channels_last=True,
        with_cp=False,
    ),
    projector=dict(
        type="MLP", hidden_channels=256, out_channels=64, num_layers=3, norm_output=True
    ),
    queue_size=256,
    tau=0.2,
)
