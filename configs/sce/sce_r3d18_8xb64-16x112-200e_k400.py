# SCE, ResNet3D-18, 16 frames at 112x112, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action and tab:video-sota-retrieval, ResNet3D-18, 16 frames at 112.
#           The clip lasts 1.28 s in this setting (the authors' configs for 16 frames at 112).
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-16x112-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: A100-80G).
# Expected: K400 linear 56.6, UCF101 89.1, HMDB51 66.6;
#           retrieval R@1/5/10 UCF101 74.5/85.9/90.5, HMDB51 37.8/62.1/73.8.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(frames=16, size=112)
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            RandomClips=dict(clip_duration=1.28, num_frames=16),
            RandomResizedCropClips=dict(size=112),
        )
    )
)
evaluation_steps = dict(
    UniformClips=dict(clip_duration=1.28, num_frames=16),
    ResizeShortSide=dict(size=128),
    CenterCropClips=dict(size=128),
)
test_dataloader = dict(dataset=dict(pipeline=evaluation_steps))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_steps)))
default_hooks = dict(online_evaluation=dict(gallery=dict(dataset=dict(pipeline=evaluation_steps))))
del evaluation_steps  # this recipe does not have the setting
