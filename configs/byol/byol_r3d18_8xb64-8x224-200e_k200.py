# BYOL, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none. This is BYOL (Grill et al. 2020) with the data, views, heads and optimiser of
#           SCE's recipe, so that only the objective differs.
# Run:      bash tools/dist_train.sh configs/byol/byol_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="byol")
model = dict(
    _delete_=True,
    type="BYOL",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP", hidden_channels=1024, out_channels=256, num_layers=3, norm_output=True
    ),
    predictor=dict(type="MLP", hidden_channels=1024, num_layers=2, norm_output=False),
    momentum=0.99,
)
