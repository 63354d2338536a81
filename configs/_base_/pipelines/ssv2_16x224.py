# Something-Something v2, 16 frames, one from each equal segment of the video: random frames, short
# side U(256, 320), random crop 224 in training; central frames, 1 clip x 1 crop of 256 in testing.
# Clips are not flipped, because labels distinguish left and right (facebookresearch/SlowFast,
# datasets/ssv2.py). SlowFast differs in two ways. It draws 1 / short side uniformly, which is the
# option train_dataloader.dataset.pipeline.ResizeShortSide.inverse_uniform=True here. Its only test
# crop is the left one (spatial index 0, the upper one in a tall video), and the central one here.
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomSegmentClip", num_frames=16, shared_ends=True),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=(256, 320)),
    dict(type="RandomCropClips", size=224),
    dict(type="PackClips"),
]
test_pipeline = [
    dict(type="OpenVideo"),
    dict(type="CenterSegmentClip", num_frames=16, shared_ends=True),
    dict(type="DecodeSharedFrames"),
    dict(type="ResizeShortSide", size=256),
    dict(type="PackVideo", crop_size=256, num_crops=1),
]
val_pipeline = [
    dict(type="OpenVideo"),
    dict(type="CenterSegmentClip", num_frames=16, shared_ends=True),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
data_preprocessor = dict(type="RecognizerDataPreprocessor", views=[])
