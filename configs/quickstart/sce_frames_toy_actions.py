# SCE, ResNet-18 (2-D) with 8 channels in the stem run on every frame, on generated toy actions.
# Paper: none. It is sce_toy_actions.py with a network that sees no motion, because it averages the
#        features of the 4 frames. It is the control for measures of the sense of time.
# Run:      sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/sce_frames_toy_actions.py
# Test:     python tools/test.py configs/quickstart/sce_frames_toy_actions.py CHECKPOINT
#           (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, sense of time.

_base_ = "sce_toy_actions.py"

model = dict(
    backbone=dict(
        _delete_=True,
        type="ResNet2d",
        depth=18,
        base_channels=8,
        channels_last=True,
    ),
)
