# Lambda and tau_m with the best augmentations (RGB differences with probability 0.2, colour
# strength 1.0) in SCE on video; the baseline of the other ablations is the last row.
# Paper:    tab:video-best.
# Run:      sce-video sweep configs/sweeps/video_best.py --out work_dirs/ablations --nproc 8
# Hardware: 8 GPUs; five points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). The baseline is
#           a point of all video sweeps. A command that names several of them trains it once.

_base_ = "_base_/video_columns.py"

title = "lambda, tau_m with diff 0.2 and strength 1.0, SCE on Kinetics-200"
source = "tab:video-best"
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200.py")
points = [
    dict(
        name="0.125, 0.05",
        options={"model.lambda_": 0.125, "benchmark.pretraining": "sce_lambda_0.125"},
        published=dict(K200=65.0, UCF101=87.4, HMDB51=61.1),
    ),
    dict(
        name="0.125, 0.07",
        options={
            "model.lambda_": 0.125,
            "model.tau_m": 0.07,
            "benchmark.pretraining": "sce_lambda_0.125_tau_m_0.07",
        },
        published=dict(K200=64.7, UCF101=88.2, HMDB51=60.6),
    ),
    dict(
        name="0.500, 0.05",
        published=dict(K200=66.0, UCF101=88.4, HMDB51=62.0),
    ),
    dict(
        name="0.500, 0.07",
        options={"model.tau_m": 0.07, "benchmark.pretraining": "sce_tau_m_0.07"},
        published=dict(K200=65.4, UCF101=88.6, HMDB51=61.0),
    ),
    dict(
        name="SCE baseline",
        config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
    ),
]
