"""Published sizes of the data sets, which the lists in ``sce_video/data_tools/prepare`` have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sce_video.published import read_published


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set.

    It is published as ``low``, or as a range up to ``high``, since copies of some sets differ. A
    result on fewer than ``least`` or more than ``most`` does not count as one on this set.
    ``classes`` is None where samples have no single class.
    """

    low: int
    high: int
    least: int
    most: int
    classes: int | None = None

    def published(self) -> str:
        """Return the published number, or range, as text."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"

    def contains(self, samples: int) -> bool:
        """Return whether so many samples may be a copy of the set."""
        return self.least <= samples <= self.most


def _sizes(part: str) -> dict[tuple[str, int | str], PublishedSize]:
    """Return the sizes of the test, training or pretraining sets by data set and split."""
    sizes = {}
    for row in _ROWS:
        if row["part"] == part:
            low, high, least, most = (int(row[n]) for n in ("low", "high", "least", "most"))
            classes = int(row["classes"]) if row["classes"] else None
            split = int(row["split"]) if row["split"].isdecimal() else row["split"]
            sizes[row["dataset"], split] = PublishedSize(low, high, least, most, classes)
    return sizes


_ROWS = read_published("sets.csv")
_TEST, _TRAINING = _sizes("test"), _sizes("training")
#: Sizes of the sets of videos by data set and split; a training set is also the gallery of
#: retrieval.
TEST_SETS = {key: size for key, size in _TEST.items() if key[1]}
TRAINING_SETS = {key: size for key, size in _TRAINING.items() if key[1]}
#: Sizes of the sets of images by data set. The test is the labelled validation split where the test
#: split has no labels; a training set includes the validation split where that is trained on, too.
IMAGE_TEST_SETS = {name: size for (name, split), size in _TEST.items() if not split}
IMAGE_TRAINING_SETS = {name: size for (name, split), size in _TRAINING.items() if not split}
#: Sets whose pretraining has other images than the training of a classifier.
PRETRAINING_SETS = {name: size for (name, _), size in _sizes("pretraining").items()}
#: Data sets with three official splits; of the others the only test set is called ``val``.
WITH_SPLITS = frozenset({"ucf101", "hmdb51"})
#: Protocols on feature files (``tools/transfer.py``), whose recipes name no test set.
TRANSFER = ("many_shot", "low_shot_svm")
#: SHA-256 of the class names, in the order of the labels and one per line, of sets that are a
#: choice of classes: the WordNet ids of tab:classes, sorted.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Return why class names, in the order of their labels, are not a data set's.

    Only the sets of :data:`CLASS_LISTS` are checked.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, {dataset} is a choice of them"
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
    return None if digest == CLASS_LISTS[dataset] else f"other classes than those of {dataset}"
