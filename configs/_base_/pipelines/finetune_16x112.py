# Finetuning, 16 frames of 1.28 s: short side 128, random crop 112, colour jitter and grey of
# "strong" (0.4, 0.4, 0.4, 0.1 with p 0.8; p 0.2) without its blur, flip p 0.5 (appendix D.3).
# The authors' code (juliendenize/eztorch) draws the short side from U(128, 160):
# --cfg-options train_dataloader.dataset.pipeline.ResizeShortSide.size=128,160
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=1.28, num_frames=16, num_views=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=128),
    dict(type="RandomCropClips", size=112),
    dict(type="PackClips"),
]
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    views=[dict(name="strong", strength=0.5, blur_prob=0.0)],
)
