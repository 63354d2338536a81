# SwAV, ResNet3D-18 with 8 channels in the stem, 4 frames at 32x32, on generated toy actions.
# Paper: none. It is SwAV (Caron et al. 2020) with sce_toy_actions.py, without target or predictor.
#        Few videos need few prototypes, and a small batch needs a queue.
# Run:      bash tools/quickstart.sh --method swav
#        or sce-video prepare toy_actions data/toy_actions
#           python tools/train.py configs/quickstart/swav_toy_actions.py
# Test:     python tools/test.py configs/quickstart/swav_toy_actions.py CHECKPOINT   (or: random)
# Hardware: 2 CPU cores, 2 GB.
# Expected: docs/results.md, methods at equal compute (in batches of 16). With the authors' tau and
#           epsilon, it stays at the uniform solution (loss at log K).

_base_ = "sce_toy_actions.py"

model = dict(
    _delete_=True,
    type="SwAV",
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
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    joint_views=True,
    num_prototypes=32,  # for 12 classes; at most a batch
    # The authors' 0.1 and 0.05 stay at the uniform solution. Training leaves it if the correlation
    # of the views' scores exceeds epsilon / tau (docs/results.md).
    tau=0.2,
    epsilon=0.005,
    # The training has 1500 steps, 15 per epoch.
    frozen_prototype_steps=15,
    queue_size=128,
    queue_start_steps=75,
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no target, no momentum to schedule
