# SCE with ResNet3D-18 (paper: tab:r3d, tab:specific-hyper-pretrain-video).
# The views of the data preprocessor come from configs/_base_/views/.
model = dict(
    type="SCE",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP", hidden_channels=1024, out_channels=256, num_layers=3, norm_output=True
    ),
    predictor=dict(type="MLP", hidden_channels=1024, num_layers=2, norm_output=False),
    queue_size=65536,
    momentum=0.99,
    lambda_=0.5,
    tau=0.1,
    tau_m=0.05,
    mask_positive=True,
)
