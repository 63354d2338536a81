# MoCo v2, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none. This is MoCo v2 (Chen et al. 2020; not symmetrised, no predictor, tau 0.2,
#           momentum 0.999) with the data, views, projector, queue and optimiser of SCE's recipe.
#           The nearest number is rho-MoCo with two views on K400 (tab:video-sota-action,
#           ResNet3D-18): K400 56.2, UCF101 87.1.
# Run:      bash tools/dist_train.sh configs/moco/moco_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="moco")
model = dict(
    _delete_=True,
    type="MoCo",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP", hidden_channels=1024, out_channels=256, num_layers=3, norm_output=True
    ),
    queue_size=32768,
    momentum=0.999,
    tau=0.2,
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # the momentum is constant
