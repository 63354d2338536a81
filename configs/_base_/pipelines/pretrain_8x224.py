# Pretraining: two clips of 2.56 s, 8 frames each, RGB difference with p 0.2, random resized crop
# 224 (area 0.2 to 0.766), as in tab:video-best. Evaluation, online and by tools/test.py, uses the
# central crop of the central clip. The paper's protocols are separate recipes.
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=2.56, num_frames=8, num_views=2, diff_prob=0.2),
    dict(type="DecodeClips"),
    dict(type="RandomResizedCropClips", size=224, area=(0.2, 0.766)),
    dict(type="PackClips"),
]
evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=2.56, num_frames=8, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
