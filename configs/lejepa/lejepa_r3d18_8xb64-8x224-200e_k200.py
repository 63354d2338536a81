# LeJEPA, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none with this network. This is LeJEPA (arXiv 2511.08544) with the data, views,
#           projector sizes and optimiser of SCE's recipe, so that only the objective differs. Its
#           own optimiser for ResNets (README of rbalestr-lab/lejepa): AdamW, learning rate 5e-4,
#           weight decay 5e-4, bfloat16. SIGReg as in the paper: 17 points over [-5, 5]; the public
#           example (MINIMAL.md there) has 33 over [-3, 3] (17 over [0, 3], doubled), 256 directions
#           and lambda 0.02.
# Run:      bash tools/dist_train.sh configs/lejepa/lejepa_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="lejepa")
# There is no BN after the projector, because SIGReg controls mean and variance.
model = dict(
    _delete_=True,
    type="LeJEPA",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP",
        hidden_channels=1024,
        out_channels=256,
        num_layers=3,
        norm_output=False,
        bias_output=True,
    ),
    joint_views=True,
    lambda_=0.05,
    num_directions=1024,
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no momentum to schedule
