# SCE, S3D-G, 32 frames at 128x128, Kinetics-400, 200 epochs.
# Paper:    none. SCE has no number with this network. The recipe follows ResNet3D-18 with 8 frames
#           of 224, with heads twice as wide as the representation, as in the paper. The nearest
#           number in tab:video-sota-action is TEC, S3D-G, 32 frames at 128 in training and test,
#           UCF101 86.9, HMDB51 63.5.
# Run:      bash tools/dist_train.sh configs/sce/sce_s3dg_8xb64-32x128-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512; memory not measured.
# Expected: not measured yet.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(network="s3dg", frames=32, size=128)
model = dict(
    backbone=dict(_delete_=True, type="S3D", gating=True, channels_last=False),
    projector=dict(hidden_channels=2048),
    predictor=dict(hidden_channels=2048),
)
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(RandomClips=dict(num_frames=32), RandomResizedCropClips=dict(size=128))
    )
)
evaluation_steps = dict(
    UniformClips=dict(num_frames=32),
    ResizeShortSide=dict(size=128),
    CenterCropClips=dict(size=128),
)
test_dataloader = dict(dataset=dict(pipeline=evaluation_steps))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_steps)))
default_hooks = dict(online_evaluation=dict(gallery=dict(dataset=dict(pipeline=evaluation_steps))))
del evaluation_steps  # this recipe does not have the setting
