# SwAV, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none with this network. This is SwAV (Caron et al. 2020) with the data, views and
#           optimiser of SCE's recipe, so that only the objective differs. 1000 prototypes, 128
#           dimensions, tau 0.1, prototypes frozen for one epoch and no queue as in rho-SwAV
#           (SlowFast repository, configs/contrastive_ssl/SwAV_Slow_R50_8x8.yaml), whose ResNet3D-50
#           with three views has K400 linear 62.7, UCF101 89.4 (tab:video-sota-generalization).
# Run:      bash tools/dist_train.sh configs/swav/swav_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="swav")
model = dict(
    _delete_=True,
    type="SwAV",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP",
        hidden_channels=1024,
        out_channels=128,
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    joint_views=True,
    num_prototypes=1000,
    tau=0.1,
    epsilon=0.05,
    frozen_prototype_steps=156,  # one epoch: 80,000 videos in batches of 512
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no target, no momentum to schedule
