# Temporal augmentations in SCE on video: jitter of the duration of a clip (0.2: 0.8 to 1.2
# times 2.56 s), probability of playing it backwards, probability of showing RGB differences.
# Paper:    tab:video-time.
# Run:      sce-video sweep configs/sweeps/video_time.py --out work_dirs/ablations --nproc 8
# Hardware: 8 GPUs; five points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). The baseline is
#           a point of all video sweeps. A command that names several of them trains it once.

_base_ = "_base_/video_columns.py"

title = "jitter, reverse, diff: temporal augmentations, SCE on Kinetics-200"
source = "tab:video-time"
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
points = [
    dict(
        name="baseline",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
    ),
    dict(
        name="jitter 0.2",
        options={
            "train_dataloader.dataset.pipeline.RandomClips.duration_jitter": 0.2,
            "benchmark.pretraining": "sce_baseline_jitter_0.2",
        },
        published=dict(K200=64.2, UCF101=86.4, HMDB51=56.9),
    ),
    dict(
        name="reverse 0.2",
        options={
            "train_dataloader.dataset.pipeline.RandomClips.reverse_prob": 0.2,
            "benchmark.pretraining": "sce_baseline_reverse_0.2",
        },
        published=dict(K200=64.0, UCF101=85.7, HMDB51=55.4),
    ),
    dict(
        name="diff 0.2",
        options={
            "train_dataloader.dataset.pipeline.RandomClips.diff_prob": 0.2,
            "benchmark.pretraining": "sce_baseline_diff_0.2",
        },
        published=dict(K200=65.4, UCF101=88.3, HMDB51=61.4),
    ),
    dict(
        name="diff 0.5",
        options={
            "train_dataloader.dataset.pipeline.RandomClips.diff_prob": 0.5,
            "benchmark.pretraining": "sce_baseline_diff_0.5",
        },
        published=dict(K200=64.1, UCF101=87.7, HMDB51=60.8),
    ),
]
