# ReSSL, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. It is sce_toy_actions.py with ReSSL's objective, strong online view, weak target
#        view, not symmetrised, no predictor, tau 0.1, tau_m 0.04. The target's momentum is 0.97 to
#        1 as in other short runs, because ReSSL's 0.999 suits longer runs.
# Run:      bash tools/quickstart.sh --method ressl
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/ressl_toy_actions.py
# Test:     python tools/test.py configs/quickstart/ressl_toy_actions.py CHECKPOINT   (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, methods at equal compute (in batches of 16).

_base_ = "sce_toy_actions.py"

model = dict(
    _delete_=True,
    type="ReSSL",
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
    tau=0.1,
    tau_m=0.04,
)
data_preprocessor = dict(
    views=[dict(name="strong", strength=0.5, blur_prob=0.0), dict(name="weak")]
)
