"""Published sizes of the datasets for which ``sce_video/data_tools/prepare`` writes lists."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sce_video.published import number_or_text, read_published


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set.

    It is published as ``low``, or as a range up to ``high``, since copies of some sets differ. A
    result on fewer than ``least`` or more than ``most`` samples does not count as a result on this
    set. ``classes`` is None if samples have no single class.
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
        """Return whether a copy of the set may have this number of samples."""
        return self.least <= samples <= self.most


#: Sizes by part (``test``, ``training`` or ``pretraining``), dataset and split, which is None for
#: images. A training set of videos is also the gallery for retrieval. The test set of images is the
#: labelled validation split if the test split has no labels. A training set of images includes the
#: validation split if training uses it, too. Only sets that pretrain on other images than they
#: train a classifier on have the part ``pretraining``.
SIZES = {
    (row["part"], row["dataset"], number_or_text(row["split"])): PublishedSize(
        low=int(row["low"]),
        high=int(row["high"]),
        least=int(row["least"]),
        most=int(row["most"]),
        classes=int(row["classes"]) if row["classes"] else None,
    )
    for row in read_published("sets.csv")
}


def size_of(part: str, dataset: Any, split: int | str | None = None) -> PublishedSize | None:
    """Return the size of a part of a dataset, or None if none is published."""
    return SIZES.get((part, dataset, split)) or SIZES.get((part, dataset, None))


#: Datasets with three official splits. The only test set of the others is called ``val``.
WITH_SPLITS = frozenset({"ucf101", "hmdb51"})
#: Protocols on feature files (``sce-video transfer``), whose recipes name no test set.
TRANSFER = ("many_shot", "low_shot_svm")
#: SHA-256 of the class names of sets that are a choice of classes. The names are the sorted WordNet
#: ids of tab:classes, one per line.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Return why class names, in the order of their labels, are not a dataset's.

    Only the sets of :data:`CLASS_LISTS` are checked.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, but {dataset} is a choice of them"
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
    return (
        None
        if digest == CLASS_LISTS[dataset]
        else f"its classes differ from the classes of {dataset}"
    )
