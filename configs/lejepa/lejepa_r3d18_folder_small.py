# LeJEPA, ResNet3D-18 with 8 channels in the stem, 4 frames at 64x64, on a folder of your own
# videos, for a CPU, small videos or a first look.
# Paper:    none. It is LeJEPA (arXiv 2511.08544) with the data, views and optimiser of
#           sce_r3d18_folder_small.py, so that only the objective differs. SIGReg with the paper's
#           17 points over [-5, 5].
# Run:      python tools/train.py configs/lejepa/lejepa_r3d18_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/lejepa/lejepa_r3d18_folder_small.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: docs/results.md contains an example (weizmann4).

_base_ = "../sce/sce_r3d18_folder_small.py"

# zero_init_residual makes blocks start as the identity, which is too slow for short runs.
model = dict(
    _delete_=True,
    type="LeJEPA",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        zero_init_residual=False,
        channels_last=True,
        with_cp=False,
    ),
    projector=dict(
        type="MLP",
        hidden_channels=256,
        out_channels=64,
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    joint_views=True,
    lambda_=0.05,
    num_directions=256,
)
fit_queue = False  # there is no queue
custom_hooks = dict(ScheduleHook=dict(model=None))  # no momentum to schedule
