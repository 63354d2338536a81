# Finetuning, 8 frames of 2.56 s: short side 256, random crop 224, colour jitter and grey of
# "strong" (0.4, 0.4, 0.4, 0.1 with p 0.8; p 0.2) without its blur, flip p 0.5 (appendix D.3).
# The authors' code (juliendenize/eztorch) draws the short side from U(256, 320):
# --cfg-options train_dataloader.dataset.pipeline.ResizeShortSide.size=256,320
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=2.56, num_frames=8, num_views=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="RandomCropClips", size=224),
    dict(type="PackClips"),
]
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    views=[dict(name="strong", strength=0.5, blur_prob=0.0)],
)
