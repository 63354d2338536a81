# Linear evaluation, 16 frames of 1.28 s: short side U(128, 160) (the authors'
# code; the paper says 128), random crop 112, flip p 0.5 (appendix D.3).
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=1.28, num_frames=16, num_views=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=(128, 160)),
    dict(type="RandomCropClips", size=112),
    dict(type="PackClips"),
]
data_preprocessor = dict(type="RecognizerDataPreprocessor", views=[dict(name="weak")])
