"""Smaller training lists drawn from official ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sce_video.data_tools.preparation.official import Split

_SEED = 99999


def class_balanced(split: Split, samples: int) -> Split:
    """About ``samples`` videos of a split, the same number of every class.

    As the SEVERE benchmark draws its small training sets, with its seed (Thoker et al. 2022;
    fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/utils.py): ``samples`` divided by the
    classes and rounded up, so 1,000 of UCF101 are 1,010 videos; classes with fewer give all.

    Args:
        split: With a label for every entry, in the order of the official list.
        samples: At least one per class.

    Raises:
        ValueError: Fewer samples than classes.
    """
    labels = np.array([entry.label for entry in split.entries])
    classes = np.unique(labels)
    if samples < len(classes):
        raise ValueError(
            f"{samples} samples are fewer than the {len(classes)} classes of {split.title}"
        )
    wanted = math.ceil(samples / len(classes))
    random = np.random.RandomState(_SEED)  # the generator of the original
    chosen: list[int] = []
    for label in classes:
        of_class = np.flatnonzero(labels == label)
        count = min(wanted, len(of_class))
        chosen += of_class[random.choice(len(of_class), count, replace=False)].tolist()
    return replace(
        split,
        list_name=f"{split.title}_{samples}.txt",
        entries=tuple(split.entries[index] for index in chosen),
        published=None,
        per_class=None,
    )
