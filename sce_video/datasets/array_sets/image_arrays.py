"""Images of one size and their labels in memory, and the checks that all array sets share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ImageArrays:
    """Images that loader workers share: they only read, so forked processes copy no page.

    Attributes:
        parts: (n_i, H, W, 3) uint8 each, of any strides, in memory or mapped from a file.
        labels: (N,) int64, the parts one after the other; -1 for an image without a label.
        classes: Name of each label.
        files: Name of each part's file.
    """

    parts: tuple[np.ndarray, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    files: tuple[str, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def image(self, index: int) -> np.ndarray:
        """uint8 (H, W, 3), contiguous."""
        for part in self.parts:
            if index < len(part):
                return np.ascontiguousarray(part[index])
            index -= len(part)
        raise IndexError(f"there is no image {index}")

    def names(self) -> list[str]:
        """FILE#NUMBER of every image, the number from 0 within its file."""
        return [
            f"{file}#{number}"
            for file, part in zip(self.files, self.parts, strict=True)
            for number in range(len(part))
        ]


def check_split(split: str, splits: Sequence[str], name: str) -> None:
    """Raise ValueError unless the set has this split."""
    if split not in splits:
        raise ValueError(f"split of {name} must be one of {', '.join(splits)}, got {split!r}")


def find_set_folder(root: str, folder: str, archive: str) -> str:
    """``root/folder``, or ``root`` itself if that is the folder.

    Raises:
        ValueError: There is neither; the message names the archive that holds it.
    """
    root = os.path.expanduser(root)
    if os.path.basename(os.path.normpath(root)) == folder and os.path.isdir(root):
        return root
    path = os.path.join(root, folder)
    if not os.path.isdir(path):
        raise ValueError(f"there is no folder {path!r}: unpack {archive} in {root!r}")
    return path


def check_labels_of(labels: np.ndarray, num_images: int, num_classes: int, path: str) -> None:
    """Raise ValueError unless each image has a label from 0 to ``num_classes - 1``."""
    if len(labels) != num_images:
        raise ValueError(f"{path} has {len(labels)} labels for {num_images} images")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(
            f"{path}: label {wrong[0]} is no class, there are {num_classes} (counted from 0)"
        )


def check_published(labels: np.ndarray, published: int, num_classes: int, what: str) -> None:
    """Raise ValueError unless there are as many images as published, and of each class as many.

    Args:
        labels: (N,), -1 for images without a label, whose classes are not counted.
        published: N.
        num_classes: Of the labels; the published sets have equally many images of each.
        what: Name of set and split, for messages.
    """
    advice = "unpack the official archive again (check_counts=False accepts other counts)"
    if len(labels) != published:
        raise ValueError(
            f"{what} has {len(labels):,} images, published are {published:,}: {advice}"
        )
    labelled = labels[labels >= 0]
    counts = np.bincount(labelled, minlength=num_classes)
    wrong = np.flatnonzero(counts != len(labelled) // num_classes)
    if len(wrong):
        raise ValueError(
            f"{what} has {counts[wrong[0]]:,} images of class {wrong[0]}, published are "
            f"{len(labelled) // num_classes:,}: {advice}"
        )
