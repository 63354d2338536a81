"""Published sizes of the data sets: those of the lists in ``sce_video/data_tools/prepare``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set: published as ``low``, or a range up to ``high``, since
    copies of some sets differ.

    A result on fewer than ``least`` or more than ``most`` does not count as one on this set.
    ``classes`` is None where samples have no single class.
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
    **{("hmdb51", split): PublishedSize.exactly(1530, 51) for split in (1, 2, 3)},
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
    **{("hmdb51", split): PublishedSize.exactly(3570, 51) for split in (1, 2, 3)},
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

#: Protocols on feature files (``tools/transfer.py``), whose recipes name no test set.
TRANSFER = ("many_shot", "low_shot_svm")
_exactly = PublishedSize.exactly
#: Training, validation and test images and classes of the sets of tab:many-shot that are not
#: pretrained on; VOC2007 has several classes per image, and is also the set of tab:low-shot-voc.
_TRANSFER_SIZES: dict[str, tuple[int, int, int | None]] = {
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
    **{name: _exactly(test, classes) for name, (_, test, classes) in _TRANSFER_SIZES.items()},
}
#: Sizes of the labelled training sets; with the validation split where that is trained on, too.
IMAGE_TRAINING_SETS: dict[str, PublishedSize] = {
    "cifar10": _exactly(50_000, 10),
    "cifar100": _exactly(50_000, 100),
    "stl10": _exactly(5_000, 10),
    "tiny_imagenet": _exactly(100_000, 200),
    "imagenet100": _exactly(126_689, 100),
    "imagenet": _exactly(1_281_167, 1000),
    **{name: _exactly(train, classes) for name, (train, _, classes) in _TRANSFER_SIZES.items()},
}
#: Sets whose pretraining has other images than the training of a classifier: STL10's unlabelled
#: part (section 4.1.2).
PRETRAINING_SETS: dict[str, PublishedSize] = {"stl10": _exactly(100_000)}
#: SHA-256 of the class names, in the order of the labels and one per line, of sets that are a
#: choice of classes: the WordNet ids of tab:classes, sorted.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Why class names, in the order of their labels, are not those of a set of :data:`CLASS_LISTS`.

    None for other sets, and if they are the same.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, {dataset} is a choice of them"
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
    return None if digest == CLASS_LISTS[dataset] else f"other classes than those of {dataset}"
