"""Published facts on the video data sets, networks, methods and protocols.

Sizes are those of the official lists, see ``data_tools/preparation``; settings are those of the
paper's tables.
"""

from __future__ import annotations

from typing import Any

from sce_video.published.sizes import PublishedSize

#: Sizes of the test sets, by data set and split.
TEST_SETS: dict[tuple[str, int | str], PublishedSize] = {
    ("ucf101", 1): PublishedSize.exactly(3783, 101),
    ("ucf101", 2): PublishedSize.exactly(3734, 101),
    ("ucf101", 3): PublishedSize.exactly(3696, 101),
    ("hmdb51", 1): PublishedSize.exactly(1530, 51),
    ("hmdb51", 2): PublishedSize.exactly(1530, 51),
    ("hmdb51", 3): PublishedSize.exactly(1530, 51),
    ("ssv2", "val"): PublishedSize.exactly(24777, 174),
    # 19,906 in the csv, 19,881 in the archives of the CVD foundation; the paper says 18k.
    ("kinetics400", "val"): PublishedSize(19800, 20000, least=18000, most=20000, classes=400),
    # 25 of every class (Xie et al. 2018); with all of K400's validation videos of the 200 classes
    # it is about 9,950.
    ("kinetics200", "val"): PublishedSize(4900, 5000, least=4500, most=10000, classes=200),
    # Films; the number of their key frames depends on how many have been kept.
    ("ava", "val"): PublishedSize(64, 64, least=64, most=64),
}
#: Sizes of the training sets, by data set and split: the galleries of retrieval, too.
TRAINING_SETS: dict[tuple[str, int | str], PublishedSize] = {
    ("ucf101", 1): PublishedSize.exactly(9537, 101),
    ("ucf101", 2): PublishedSize.exactly(9586, 101),
    ("ucf101", 3): PublishedSize.exactly(9624, 101),
    ("hmdb51", 1): PublishedSize.exactly(3570, 51),
    ("hmdb51", 2): PublishedSize.exactly(3570, 51),
    ("hmdb51", 3): PublishedSize.exactly(3570, 51),
    ("ssv2", "val"): PublishedSize.exactly(168913, 174),
    # 246,534 rows in the csv, 240,258 videos in the archives of the CVD foundation; some thousands
    # more are missing in many copies.
    ("kinetics400", "val"): PublishedSize(240258, 246534, 216000, 246534, classes=400),
    # 400 of every class (Xie et al. 2018), or all of K400's videos of the 200 classes.
    ("kinetics200", "val"): PublishedSize(80000, 80000, 72000, 200000, classes=200),
    ("ava", "val"): PublishedSize(235, 235, least=235, most=235),
}
#: Data sets with three official splits; of the others the only test set is called ``val``.
WITH_SPLITS = frozenset({"ucf101", "hmdb51"})

#: Type, depth and number of parameters, which tells the width, of the backbones of tab:r3d and of
#: others in tab:video-sota-action.
VIDEO_NETWORKS: dict[str, tuple[str, int | None, int]] = {
    "r3d18": ("ResNet3dSlowPath", 18, 20_023_872),
    "r3d50": ("ResNet3dSlowPath", 50, 31_634_496),
    "r3d101": ("ResNet3dSlowPath", 101, 59_539_520),  # by the same rule
    "r2plus1d18": ("R2Plus1d", 18, 31_300_125),
    "s3dg": ("S3D", None, 9_135_056),
}
#: Settings of the baseline of the video ablations (tab:video-baseline). ``strength`` is that of the
#: colour jitter of both views. The loss is symmetrised, and there is a predictor, in all
#: pretrainings on videos (appendix D.3); the momentum of the target starts at 0.99.
_BASELINE: dict[str, Any] = {
    "type": "SCE",
    "symmetric": True,
    "predictor": True,
    "momentum": 0.99,
    "lambda_": 0.5,
    "tau": 0.1,
    "tau_m": 0.07,
    "strength": (0.5, 0.5),
    "duration_jitter": 0.0,
    "reverse_prob": 0.0,
    "diff_prob": 0.0,
}
#: The best row of tab:video-best.
_BEST: dict[str, Any] = {**_BASELINE, "tau_m": 0.05, "strength": (1.0, 1.0), "diff_prob": 0.2}
#: Settings of the pretraining methods: the best one, the baseline of the ablations, the supervised
#: network, and every other row of tab:video-lambda-vary, tab:video-temp, tab:video-color,
#: tab:video-time and tab:video-best, named by what differs from the baseline or the best one.
METHODS: dict[str, dict[str, Any]] = {
    "sce": _BEST,
    "sce_baseline": _BASELINE,
    "supervised": {"type": "Recognizer3D"},
    **{
        f"sce_baseline_lambda_{value}": {**_BASELINE, "lambda_": value}
        for value in (0.0, 0.125, 0.25, 0.375, 0.625, 0.75, 0.875, 1.0)
    },
    **{
        f"sce_baseline_tau_m_{value}": {**_BASELINE, "tau_m": value}
        for value in (0.03, 0.04, 0.05, 0.06, 0.08)
    },
    **{
        f"sce_baseline_strength_{value}": {**_BASELINE, "strength": (value, value)}
        for value in (0.75, 1.0)
    },
    "sce_baseline_jitter_0.2": {**_BASELINE, "duration_jitter": 0.2},
    "sce_baseline_reverse_0.2": {**_BASELINE, "reverse_prob": 0.2},
    "sce_baseline_diff_0.2": {**_BASELINE, "diff_prob": 0.2},
    "sce_baseline_diff_0.5": {**_BASELINE, "diff_prob": 0.5},
    "sce_lambda_0.125": {**_BEST, "lambda_": 0.125},
    "sce_lambda_0.125_tau_m_0.07": {**_BEST, "lambda_": 0.125, "tau_m": 0.07},
    "sce_tau_m_0.07": {**_BEST, "tau_m": 0.07},
}
#: Epochs of every pretraining of the paper (appendix D.3).
PRETRAINING_EPOCHS = 200
#: Epochs by protocol and data set (appendix D.3; SSv2 and AVA as in the SlowFast repository).
EPOCHS: dict[tuple[str, str], int] = {
    ("linear", "kinetics200"): 60,
    ("linear", "kinetics400"): 60,
    ("finetune", "ucf101"): 200,
    ("finetune", "hmdb51"): 200,
    ("finetune", "ssv2"): 22,
    ("supervised", "kinetics200"): 200,
    ("detection", "ava"): 32,
}
#: Videos of a step of all processes, by protocol and data set (appendix D.3).
BATCHES: dict[tuple[str, str], int] = {
    ("linear", "kinetics200"): 512,
    ("linear", "kinetics400"): 512,
    ("finetune", "ucf101"): 64,
    ("finetune", "hmdb51"): 64,
}
