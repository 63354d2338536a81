"""Published facts on the video data sets, networks, methods and protocols.

Sizes are those of the official lists, see ``data_tools/preparation``; settings are those of the
paper's tables.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set.

    Attributes:
        low: The published number; with ``high`` a range, since copies of some sets differ.
        high: See ``low``.
        least: A result on fewer of them does not count as one on this set.
        most: A result on more of them does not count either.
        classes: Number of classes; None where they have no single class.
    """

    low: int
    high: int
    least: int
    most: int
    classes: int | None = None

    @classmethod
    def exactly(cls, samples: int, classes: int | None = None) -> PublishedSize:
        """A set whose copies are all the same; up to 1 % may be missing."""
        return cls(samples, samples, samples - samples // 100, samples, classes)

    def published(self) -> str:
        """The published number, or range, as text."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"

    def contains(self, samples: int) -> bool:
        """Whether so many may be a copy of the set."""
        return self.least <= samples <= self.most


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


_exactly = PublishedSize.exactly
#: Training, validation and test images and classes of the sets of tab:many-shot that are not
#: pretrained on; VOC2007 has several classes per image, and is also the set of tab:low-shot-voc.
_TRANSFER: dict[str, tuple[int, int, int | None]] = {
    "food101": (75_750, 25_250, 101),
    "sun397": (19_850, 19_850, 397),
    "cars": (8_144, 8_041, 196),
    "aircraft": (3_334 + 3_333, 3_333, 100),
    "voc2007": (2_501 + 2_510, 4_952, None),
    "dtd": (1_880 + 1_880, 1_880, 47),
    "pets": (3_680, 3_669, 37),
    "caltech101": (2_416, 6_728, 102),
    "flowers": (1_020 + 1_020, 6_149, 102),
}
#: Sizes of the test sets by data set; the labelled validation split where the test has no labels.
IMAGE_TEST_SETS: dict[str, PublishedSize] = {
    "cifar10": _exactly(10_000, 10),
    "cifar100": _exactly(10_000, 100),
    "stl10": _exactly(8_000, 10),
    "tiny_imagenet": _exactly(10_000, 200),
    "imagenet100": _exactly(5_000, 100),
    "imagenet": _exactly(50_000, 1000),
    "coco": _exactly(5_000),
    **{name: _exactly(test, classes) for name, (_, test, classes) in _TRANSFER.items()},
}
#: Sizes of the labelled training sets; with the validation split where that is trained on, too.
IMAGE_TRAINING_SETS: dict[str, PublishedSize] = {
    "cifar10": _exactly(50_000, 10),
    "cifar100": _exactly(50_000, 100),
    "stl10": _exactly(5_000, 10),
    "tiny_imagenet": _exactly(100_000, 200),
    "imagenet100": _exactly(126_689, 100),
    "imagenet": _exactly(1_281_167, 1000),
    **{name: _exactly(train, classes) for name, (train, _, classes) in _TRANSFER.items()},
}
#: Sets whose pretraining has other images than the training of a classifier: STL10's unlabelled
#: part (section 4.1.2).
PRETRAINING_SETS: dict[str, PublishedSize] = {"stl10": _exactly(100_000)}
#: SHA-256 of the class names, in the order of the labels and one per line, of sets that are a
#: choice of classes: the WordNet ids of tab:classes, sorted.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}

#: Type, depth and number of parameters: ResNet-18 with the stem for small images (appendix D.1),
#: and ResNet-50.
IMAGE_NETWORKS: dict[str, tuple[str, int | None, int]] = {
    "r18_small": ("ResNet2d", 18, 11_168_832),
    "r50_2d": ("ResNet2d", 50, 23_508_032),
}

TAUS = (0.1, 0.2)
TAUS_M = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1)
#: Settings of section 4.1.1: the first view (strong) is the query, the second (weak) the key.
#: ``views`` are the names of tab:augmentations in its strength, ``target_views`` the views that are
#: keys, ``area`` the shares of the random crops, ``local_*`` those of the smaller views.
_BASE: dict[str, Any] = {
    "type": "SCE",
    "lambda_": 0.5,
    "tau": 0.1,
    "tau_m": 0.05,
    "symmetric": False,
    "target_views": (1,),
    "predictor": False,
    "views": ("strong", "weak"),
    "area": (0.2, 1.0),
    "local_sizes": (),
    "local_areas": (),
    "optimizer": "SGD",
}
_ALPHA_BETA = ("strong-alpha", "strong-beta")
_LARS: dict[str, Any] = {
    **_BASE,
    "tau_m": 0.07,
    "symmetric": True,
    "target_views": (0, 1),
    "predictor": True,
    "views": _ALPHA_BETA,
    "optimizer": "LARS",
    "queue_size": 65536,
    "momentum": 0.99,
}


def _views(online: str, target: str, symmetric: bool = False) -> dict[str, Any]:
    """A row of tab:aug."""
    keys = (0, 1) if symmetric else (1,)
    return {**_BASE, "views": (online, target), "symmetric": symmetric, "target_views": keys}


#: Settings of the pretraining methods by name; queue and momentum: see :func:`image_settings`.
IMAGE_METHODS: dict[str, dict[str, Any]] = {
    **{
        f"sce_images_tau_{tau}_tau_m_{tau_m}": {**_BASE, "tau": tau, "tau_m": tau_m}
        for tau in TAUS
        for tau_m in TAUS_M
    },
    **{
        f"sce_images_lambda_{tenths / 10}": {**_BASE, "lambda_": tenths / 10}
        for tenths in (0, 1, 2, 3, 4, 6, 7, 8, 9)
    },
    # InfoNCE alone: there are no relations, and tau_m has no effect.
    "sce_images_lambda_1.0": {
        **{name: value for name, value in _BASE.items() if name != "tau_m"},
        "lambda_": 1.0,
    },
    "sce_images_lambda_0.0_tau_m_0.07": {**_BASE, "lambda_": 0.0, "tau_m": 0.07},
    **{
        f"sce_images_free_{name}_tau_m_{tau_m}": {**_BASE, "lambda_": values, "tau_m": tau_m}
        for name, values in (("0.5_0.5_0", (0.5, 0.5, 0.0)), ("0_1_0", (0.0, 1.0, 0.0)))
        for tau_m in (0.05, 0.07)
    },
    "sce_images_gamma_weak": _views("strong-gamma", "weak"),
    "sce_images_weak_strong": _views("weak", "strong"),
    "sce_images_strong_strong": _views("strong", "strong"),
    "sce_images_alpha_beta": _views(*_ALPHA_BETA),
    "sce_images_symmetric_strong_weak": _views("strong", "weak", symmetric=True),
    "sce_images_symmetric_strong_strong": _views("strong", "strong", symmetric=True),
    "sce_images_symmetric_alpha_beta": _views(*_ALPHA_BETA, symmetric=True),
    "sce_images_lars": _LARS,
    "sce_images_multicrop": {
        **_LARS,
        "views": (*_ALPHA_BETA, *["strong-gamma"] * 4),
        "local_sizes": (192, 160, 128, 96),
        "local_areas": ((0.172, 0.86), (0.143, 0.715), (0.114, 0.571), (0.086, 0.429)),
    },
    # The authors' runs of other methods (tab:baselines, [*]). tau_m of ReSSL is "their best", which
    # is 0.04 on ImageNet (KyleZheng1997/ReSSL); the paper does not state those of the small sets.
    "moco_images": {
        **{name: value for name, value in _BASE.items() if name not in ("lambda_", "tau_m")},
        "type": "MoCo",
        "tau": 0.2,
        "views": ("strong", "strong"),
    },
    "ressl_images": {
        **{name: value for name, value in _BASE.items() if name not in ("lambda_", "tau_m")},
        "type": "ReSSL",
    },
}
_WITH_LARS = ("sce_images_lars", "sce_images_multicrop")
_LARGE = ("imagenet100", "imagenet")
#: Queue size and first value of the target's momentum by data set (tab:specifc-hyper-pretrain).
_BY_DATASET = {
    "cifar10": (4096, 0.9),
    "cifar100": (4096, 0.9),
    "stl10": (16384, 0.996),
    "tiny_imagenet": (16384, 0.996),
    "imagenet100": (65536, 0.996),
    "imagenet": (65536, 0.996),
}
LARS_EPOCHS = (100, 200, 300, 1000)


def image_settings(method: str, dataset: str, epochs: Any) -> dict[str, Any] | None:
    """The settings by which a pretraining on images is known; None for a name without any.

    Args:
        method: A name in :data:`IMAGE_METHODS`.
        dataset: What it was pretrained on; queue and momentum depend on it.
        epochs: Its epochs; for 1000 of LARS the momentum begins at 0.996 (appendix D.2).
    """
    if method not in IMAGE_METHODS:
        return None
    settings = dict(IMAGE_METHODS[method])
    if method in _WITH_LARS:
        if epochs == 1000:
            settings["momentum"] = 0.996
    elif dataset in _BY_DATASET:
        settings["queue_size"], settings["momentum"] = _BY_DATASET[dataset]
    if method == "ressl_images" and dataset in _LARGE:
        settings["tau_m"] = 0.04
    return settings


def image_epochs(method: str) -> tuple[int, ...]:
    """Epochs for which the paper has numbers of a pretraining on images."""
    return LARS_EPOCHS if method == "sce_images_lars" else (200,)


def image_batch(method: str, dataset: str) -> int:
    """Images of a pretraining step of all processes (tab:specifc-hyper-pretrain, appendix D.2)."""
    if method in _WITH_LARS:
        return 4096
    return 512 if dataset in _LARGE else 256


def linear_schedule(method: str, dataset: str) -> tuple[int, int]:
    """Epochs and batch of the linear evaluation after a pretraining on images.

    90 epochs with a batch of 1024 after LARS (appendix D.2, facebookresearch/moco-v3), else 100
    (appendix D.1); the batch of those is that of the authors' code (juliendenize/SCE).
    """
    if method in _WITH_LARS:
        return 90, 1024
    return 100, 512 if dataset in _LARGE else 256


def linear_rate(method: str) -> float:
    """Learning rate of the linear evaluation: for a batch of 256 after LARS, else as it is."""
    return 0.1 if method in _WITH_LARS else 30.0


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Why the classes of some images are not those of a set that is a choice of classes.

    Args:
        dataset: Name; sets other than those of :data:`CLASS_LISTS` have no problem.
        names: Names of the classes in the order of their labels; None, or no list, if unknown.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, {dataset} is a choice of them"
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
    return None if digest == CLASS_LISTS[dataset] else f"other classes than those of {dataset}"
