"""STL10 (Coates et al. 2011): the folder of the official binary archive."""

from __future__ import annotations

import os

import numpy as np

from sce_video.datasets.array_sets.image_arrays import (
    ImageArrays,
    check_labels_of,
    check_published,
    check_split,
    find_set_folder,
)

SIZE = 96
NUM_CLASSES = 10
FOLDER = "stl10_binary"
ARCHIVE = "stl10_binary.tar.gz"
PUBLISHED = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}
#: Parts of each split; STL10 is pretrained on ``unlabeled``, by some codes on both.
SPLITS = {**{part: (part,) for part in PUBLISHED}, "train+unlabeled": ("train", "unlabeled")}


def read_stl10(root: str, split: str = "unlabeled", check_counts: bool = True) -> ImageArrays:
    """STL10, images of 96 x 96, mapped into memory: all processes share the system's file cache.

    Args:
        root: Folder of ``stl10_binary``.
        split: ``unlabeled`` (100,000), ``train`` (5,000), ``test`` (8,000) or ``train+unlabeled``.
        check_counts: Refuse other numbers of images than the published ones.

    Raises:
        ValueError: A file is missing, of a wrong size, or has other counts.
    """
    check_split(split, tuple(SPLITS), "STL10")
    folder = find_set_folder(root, FOLDER, ARCHIVE)
    parts, labels = [], []
    for part in SPLITS[split]:
        images = _map_images(os.path.join(folder, f"{part}_X.bin"))
        found = _read_labels(folder, part, len(images))
        if check_counts:
            check_published(found, PUBLISHED[part], NUM_CLASSES, f"{part}_X.bin in {folder}")
        parts.append(images)
        labels.append(found)
    return ImageArrays(
        parts=tuple(parts),
        labels=np.concatenate(labels),
        classes=_read_classes(os.path.join(folder, "class_names.txt")),
        files=tuple(f"{FOLDER}/{part}_X.bin" for part in SPLITS[split]),
    )


def _map_images(path: str) -> np.ndarray:
    """(n, 96, 96, 3) uint8, a view of the file: a plane per colour, each column by column."""
    size, each = _file_size(path), 3 * SIZE * SIZE
    if size == 0 or size % each:
        raise ValueError(
            f"{path} has {size:,} bytes, no multiple of the {each:,} of an image: unpack "
            f"{ARCHIVE} again"
        )
    stored = np.memmap(path, dtype=np.uint8, mode="r", shape=(size // each, 3, SIZE, SIZE))
    return stored.transpose(0, 3, 2, 1)


def _read_labels(folder: str, part: str, num_images: int) -> np.ndarray:
    """(n,) int64: the bytes of PART_y.bin, 1 to 10, minus one; -1 for the unlabelled part."""
    if part == "unlabeled":
        return np.full(num_images, -1, dtype=np.int64)
    path = os.path.join(folder, f"{part}_y.bin")
    _file_size(path)
    labels = np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1
    check_labels_of(labels, num_images, NUM_CLASSES, path)
    return labels


def _read_classes(path: str) -> tuple[str, ...]:
    _file_size(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        names = tuple(line.strip() for line in file if line.strip())
    if len(names) != NUM_CLASSES or len(set(names)) != NUM_CLASSES:
        raise ValueError(f"{path} must name {NUM_CLASSES} classes, one per line")
    return names


def _file_size(path: str) -> int:
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}: unpack {ARCHIVE} again")
    return os.path.getsize(path)
