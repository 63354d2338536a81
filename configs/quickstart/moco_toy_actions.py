# MoCo v2, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. It is sce_toy_actions.py with MoCo's objective, not symmetrised, no predictor, tau
#        0.2. The target's momentum is 0.97 to 1 as in other short runs, because MoCo's 0.999 suits
#        longer runs.
# Run:      bash tools/quickstart.sh --method moco
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/moco_toy_actions.py
# Test:     python tools/test.py configs/quickstart/moco_toy_actions.py CHECKPOINT   (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, methods at equal compute (in batches of 16).

_base_ = "sce_toy_actions.py"

model = dict(
    _delete_=True,
    type="MoCo",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        zero_init_residual=False,
        channels_last=True,
    ),
    projector=dict(
        type="MLP", hidden_channels=256, out_channels=64, num_layers=3, norm_output=True
    ),
    queue_size=192,
    tau=0.2,
)
