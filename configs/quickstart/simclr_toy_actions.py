# SimCLR, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. It is sce_toy_actions.py without target, queue and predictor, tau 0.1.
# Run:      bash tools/quickstart.sh --method simclr
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/simclr_toy_actions.py
# Test:     python tools/test.py configs/quickstart/simclr_toy_actions.py CHECKPOINT   (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, methods at equal compute (in batches of 16).

_base_ = "sce_toy_actions.py"

model = dict(
    _delete_=True,
    type="SimCLR",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        zero_init_residual=False,
        channels_last=True,
    ),
    projector=dict(
        type="MLP",
        hidden_channels=256,
        out_channels=64,
        num_layers=2,
        norm_output=True,
        affine_output=True,
    ),
    joint_views=True,
    tau=0.1,
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no target, no momentum to schedule
