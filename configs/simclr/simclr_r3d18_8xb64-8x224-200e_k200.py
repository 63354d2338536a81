# SimCLR, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none. This is SimCLR (arXiv 2002.05709) with the data, views and optimiser of SCE's
#           recipe, with SimCLR's projector. ResNet3D-50 on K400 with three views of the recipe of
#           Feichtenhofer et al. 2021 (rho-SimCLR, tab:video-sota-generalization) has K400 linear
#           62.0, UCF101 87.9.
# Run:      bash tools/dist_train.sh configs/simclr/simclr_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512. Candidates come from one forward pass, so fewer
#           GPUs with accumulation have fewer candidates.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="simclr")
model = dict(
    _delete_=True,
    type="SimCLR",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP",
        hidden_channels=1024,
        out_channels=128,
        num_layers=2,
        norm_output=True,
        affine_output=True,
    ),
    joint_views=True,
    tau=0.1,
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no target, no momentum to schedule
