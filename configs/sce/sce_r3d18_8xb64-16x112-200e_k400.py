# SCE, ResNet3D-18, 16 frames of 112x112, Kinetics-400, 200 epochs.
# Paper:    tab:video-sota-action and tab:video-sota-retrieval, ResNet3D-18, 16 frames of 112.
# The clip lasts 1.28 s in this setting (SETTINGS 3).
# Run:      bash tools/dist_train.sh configs/sce/sce_r3d18_8xb64-16x112-200e_k400.py 8
# Hardware: 8 GPUs x 64 videos = global batch 512 (the authors: A100-80G).
# Expected: K400 linear 56.6, UCF101 89.1, HMDB51 66.6;
#           retrieval R@1/5/10 UCF101 74.5/85.9/90.5, HMDB51 37.8/62.1/73.8.

_base_ = "./sce_r3d18_8xb64-8x224-200e_k400.py"

benchmark = dict(frames=16, size=112)
train_pipeline = _base_.train_dataloader.dataset.pipeline
train_pipeline[1].update(clip_duration=1.28, num_frames=16)  # RandomClips
train_pipeline[3].size = 112  # RandomResizedCropClips
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

evaluation_pipeline = _base_.evaluation_pipeline
evaluation_pipeline[1].update(clip_duration=1.28, num_frames=16)  # UniformClips
evaluation_pipeline[3].size = 128  # ResizeShortSide
evaluation_pipeline[4].size = 128  # CenterCropClips
test_dataloader = dict(dataset=dict(pipeline=evaluation_pipeline))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_pipeline)))
default_hooks = dict(
    online_evaluation=dict(gallery=dict(dataset=dict(pipeline=evaluation_pipeline)))
)
