# Temperature of the target distribution, tau_m, in SCE on video (tau 0.1).
# Paper:    tab:video-temp.
# Run:      sce-video sweep configs/sweeps/video_temperature.py --out work_dirs/ablations \
#               --nproc 8
# Hardware: 8 GPUs; six points, each pretrained for 200 epochs on Kinetics-200 (8 x 64 videos) and
#           evaluated three times (8 x 64 on Kinetics, 8 x 8 on UCF101 and HMDB51). The baseline is
#           a point of all video sweeps. A command that names several of them trains it once.

_base_ = "_base_/video_columns.py"

title = "tau_m (tau 0.1, lambda 0.5), SCE on Kinetics-200"
source = "tab:video-temp"
pretrain = dict(config="configs/sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py")
points = [
    dict(
        name="0.03",
        options={"model.tau_m": 0.03, "benchmark.pretraining": "sce_baseline_tau_m_0.03"},
        published=dict(K200=63.4, UCF101=86.1, HMDB51=56.9),
    ),
    dict(
        name="0.04",
        options={"model.tau_m": 0.04, "benchmark.pretraining": "sce_baseline_tau_m_0.04"},
        published=dict(K200=63.8, UCF101=86.6, HMDB51=56.6),
    ),
    dict(
        name="0.05",
        options={"model.tau_m": 0.05, "benchmark.pretraining": "sce_baseline_tau_m_0.05"},
        published=dict(K200=64.3, UCF101=86.4, HMDB51=57.1),
    ),
    dict(
        name="0.06",
        options={"model.tau_m": 0.06, "benchmark.pretraining": "sce_baseline_tau_m_0.06"},
        published=dict(K200=64.1, UCF101=86.2, HMDB51=56.4),
    ),
    dict(
        name="0.07",
        published=dict(K200=63.9, UCF101=86.3, HMDB51=57.0),
    ),
    dict(
        name="0.08",
        options={"model.tau_m": 0.08, "benchmark.pretraining": "sce_baseline_tau_m_0.08"},
        published=dict(K200=63.8, UCF101=85.9, HMDB51=55.8),
    ),
]
