# Strength of the colour jitter of both views in SCE on video: brightness, contrast,
# saturation, hue = 0.8, 0.8, 0.4, 0.2 times the strength.
# Paper:    tab:video-color.
# Run:      sce-video sweep configs/sweeps/video_color.py --out work_dirs/ablations --nproc 8
# Hardware: 8 GPUs; three points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). The baseline is
#           a point of all video sweeps. A command that names several of them trains it once.

_base_ = "_base_/video_columns.py"

title = "colour strength, SCE on Kinetics-200"
source = "tab:video-color"
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
points = [
    dict(
        name="0.50",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
    ),
    dict(
        name="0.75",
        options={
            "data_preprocessor.views.0.strength": 0.75,
            "data_preprocessor.views.1.strength": 0.75,
            "benchmark.pretraining": "sce_baseline_strength_0.75",
        },
        published=dict(K200=64.6, UCF101=86.8, HMDB51=57.8),
    ),
    dict(
        name="1.00",
        options={
            "data_preprocessor.views.0.strength": 1.0,
            "data_preprocessor.views.1.strength": 1.0,
            "benchmark.pretraining": "sce_baseline_strength_1.0",
        },
        published=dict(K200=64.8, UCF101=87.0, HMDB51=58.1),
    ),
]
