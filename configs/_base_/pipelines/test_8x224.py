# 8 frames of 2.56 s. Testing: 10 clips at equal steps x 3 crops of 256 along the long side.
# Validation during training uses the central crop of the central clip.
test_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=10),
    dict(type="DecodeSharedFrames"),
    dict(type="ResizeShortSide", size=256),
    dict(type="PackVideo", crop_size=256, num_crops=3),
]
val_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
