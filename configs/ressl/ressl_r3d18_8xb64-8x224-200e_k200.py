# ReSSL, ResNet3D-18, 8 frames at 224x224, Kinetics-200, 200 epochs.
# Paper:    none. This is ReSSL (Zheng et al. 2021; strong online view, weak target view, not
#           symmetrised, no predictor, tau 0.1, tau_m 0.04, momentum 0.999) with the data,
#           projector, queue and optimiser of SCE's recipe.
# Run:      bash tools/dist_train.sh configs/ressl/ressl_r3d18_8xb64-8x224-200e_k200.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512.
# Expected: not measured yet.

_base_ = "../sce/sce_r3d18_8xb64-8x224-200e_k200.py"

benchmark = dict(pretraining="ressl")
model = dict(
    _delete_=True,
    type="ReSSL",
    backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False),
    projector=dict(
        type="MLP", hidden_channels=1024, out_channels=256, num_layers=3, norm_output=True
    ),
    queue_size=32768,
    momentum=0.999,
    tau=0.1,
    tau_m=0.04,
)
data_preprocessor = dict(views=[dict(name="strong", strength=1.0), dict(name="weak")])
custom_hooks = dict(ScheduleHook=dict(model=None))  # the momentum is constant
