# MoCo v3, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. It is sce_toy_actions.py without a queue. The negatives are the keys of the batch,
#        and tau is 0.2.
# Run:      bash tools/quickstart.sh --method moco_v3
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/moco_v3_toy_actions.py
# Test:     python tools/test.py configs/quickstart/moco_v3_toy_actions.py CHECKPOINT   (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, methods at equal compute (in batches of 16). A faster target (momentum
#           from 0.9) gained 19 points there.

_base_ = "sce_toy_actions.py"

model = dict(
    _delete_=True,
    type="MoCoV3",
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
    predictor=dict(type="MLP", hidden_channels=256, num_layers=2, norm_output=False),
    momentum=0.97,
    tau=0.2,
)
