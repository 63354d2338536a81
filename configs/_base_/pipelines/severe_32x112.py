# SEVERE benchmark, 32 frames of 2 s: random box of 8 to 100 % of the area, flip p 0.5 of every
# dataset (SSv2 too), colour jitter 0.4, 0.4, 0.4 and hue 0.2, ImageNet's mean and deviation
# (fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/preprocessing.py, configs/benchmark).
# Testing: 10 clips at equal steps (test_dense), short side 128, the central crop. SEVERE's code
# first resamples videos to 16 frames per second. Here, the 32 frames are chosen by time.
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=2.0, num_frames=32, num_views=1),
    dict(type="DecodeClips"),
    dict(type="RandomResizedCropClips", size=112, area=(0.08, 1.0)),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.0, num_frames=32, num_clips=10),
    dict(type="DecodeSharedFrames"),
    dict(type="ResizeShortSide", size=128),
    dict(type="PackVideo", crop_size=112, num_crops=1),
]
val_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.0, num_frames=32, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=128),
    dict(type="CenterCropClips", size=112),
    dict(type="PackClips"),
]
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    views=[
        dict(
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.2,
            jitter_prob=1.0,
            flip_prob=0.5,
        )
    ],
)
