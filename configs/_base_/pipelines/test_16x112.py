# 16 frames of 1.28 s. Testing: 10 clips at equal steps x 3 crops of 128 along the long side.
# Validation during training uses the central crop of the central clip.
test_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=1.28, num_frames=16, num_clips=10),
    dict(type="DecodeSharedFrames"),
    dict(type="ResizeShortSide", size=128),
    dict(type="PackVideo", crop_size=128, num_crops=3),
]
val_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=1.28, num_frames=16, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=128),
    dict(type="CenterCropClips", size=128),
    dict(type="PackClips"),
]
