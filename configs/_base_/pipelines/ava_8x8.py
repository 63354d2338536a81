# AVA, 8 frames, 8 apart at 30 per second, around the key frame. Training: short side U(256, 320),
# random crop 224, flip p 0.5; testing: short side 256, the whole frame. Boxes are transformed in
# the same way (facebookresearch/SlowFast, datasets/ava_dataset.py).
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="KeyFrameClip", num_frames=8, frame_interval=8),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=(256, 320)),
    dict(type="RandomCropClips", size=224),
    dict(type="FlipWithBoxes", prob=0.5),
    dict(type="PackBoxes"),
]
test_pipeline = [
    dict(type="OpenVideo"),
    dict(type="KeyFrameClip", num_frames=8, frame_interval=8),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="PackBoxes"),
]
