# Linear evaluation, 8 frames of 2.56 s: short side U(256, 320) (the authors'
# code; the paper says 256), random crop 224, flip p 0.5 (appendix D.3).
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=2.56, num_frames=8, num_views=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=(256, 320)),
    dict(type="RandomCropClips", size=224),
    dict(type="PackClips"),
]
data_preprocessor = dict(type="RecognizerDataPreprocessor", views=[dict(name="weak")])
