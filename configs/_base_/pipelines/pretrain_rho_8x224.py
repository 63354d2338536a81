# Pretraining as Feichtenhofer et al. 2021 (facebookresearch/SlowFast, configs/contrastive_ssl): rho
# clips of 8 frames at stride 8 and 30 frames a second, 2.13 s, with independent, uniform starts, in
# the order of their starts; random resized crop 224 (area 0.2 to 0.766 of the frame). Evaluation,
# online and by tools/test.py, uses the central crop of the central clip. Recipes set num_views,
# which is rho.
train_pipeline = [
    dict(type="OpenVideo"),
    dict(type="RandomClips", clip_duration=64 / 30, num_frames=8, num_views=2, ordered=True),
    dict(type="DecodeClips"),
    dict(type="RandomResizedCropClips", size=224, area=(0.2, 0.766)),
    dict(type="PackClips"),
]
evaluation_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=64 / 30, num_frames=8, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=256),
    dict(type="PackClips"),
]
