"""CIFAR10 and CIFAR100 (Krizhevsky 2009): the folders of the official "python version" archives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.array_sets.image_arrays import (
    ImageArrays,
    check_labels_of,
    check_published,
    check_split,
    find_set_folder,
)
from sce_video.utils.plain_pickle import load_plain_pickle

SIZE = 32
PUBLISHED = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class CifarFiles:
    """Names of files and keys of one of the two sets.

    Attributes:
        name: Of the set, in messages.
        folder: That the archive unpacks to.
        archive: Name of the official archive.
        batches: Files of each split.
        label_key: Key of the labels in a batch.
        meta: File of the class names.
        names_key: Key of the class names in it.
        num_classes: Their number.
    """

    name: str
    folder: str
    archive: str
    batches: dict[str, tuple[str, ...]]
    label_key: str
    meta: str
    names_key: str
    num_classes: int


CIFAR10 = CifarFiles(
    name="CIFAR10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    batches={
        "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test": ("test_batch",),
    },
    label_key="labels",
    meta="batches.meta",
    names_key="label_names",
    num_classes=10,
)
CIFAR100 = CifarFiles(
    name="CIFAR100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    batches={"train": ("train",), "test": ("test",)},
    label_key="fine_labels",
    meta="meta",
    names_key="fine_label_names",
    num_classes=100,
)


def read_cifar10(root: str, split: str = "train", check_counts: bool = True) -> ImageArrays:
    """CIFAR10: 50,000 (``train``) or 10,000 (``test``) images of 32 x 32, 10 classes.

    Args:
        root: Folder of ``cifar-10-batches-py``.
        split: ``train`` or ``test``.
        check_counts: Refuse other numbers of images than the published ones.

    Raises:
        ValueError: A file is missing, damaged, no pickle of plain data, or has other counts.
    """
    return _read(CIFAR10, root, split, check_counts)


def read_cifar100(root: str, split: str = "train", check_counts: bool = True) -> ImageArrays:
    """CIFAR100 with its 100 fine labels, as :func:`read_cifar10`; folder ``cifar-100-python``."""
    return _read(CIFAR100, root, split, check_counts)


def _read(files: CifarFiles, root: str, split: str, check_counts: bool) -> ImageArrays:
    check_split(split, tuple(files.batches), files.name)
    folder = find_set_folder(root, files.folder, files.archive)
    meta = _load(os.path.join(folder, files.meta), files)
    classes = meta.get(files.names_key)
    if not isinstance(classes, list) or len(classes) != files.num_classes:
        raise ValueError(
            f"{os.path.join(folder, files.meta)} must hold {files.num_classes} class names in "
            f"{files.names_key!r}"
        )
    batches = [_read_batch(os.path.join(folder, name), files) for name in files.batches[split]]
    labels = np.concatenate([labels for _, labels in batches])
    if check_counts:
        what = f"the {split} split of {files.name} in {folder}"
        check_published(labels, PUBLISHED[split], files.num_classes, what)
    return ImageArrays(
        parts=tuple(images for images, _ in batches),
        labels=labels,
        classes=tuple(str(name) for name in classes),
        files=tuple(f"{files.folder}/{name}" for name in files.batches[split]),
    )


def _read_batch(path: str, files: CifarFiles) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) uint8 and labels (n,) int64 of one batch file.

    A row of ``data`` is one image: its red, its green, its blue plane, each row by row.
    """
    batch = _load(path, files)
    data = batch.get("data")
    labels = batch.get(files.label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise ValueError(f"{path} must hold an array 'data' (n, {3 * SIZE * SIZE}) of uint8")
    if data.shape[1] != 3 * SIZE * SIZE:
        raise ValueError(f"{path}: 'data' has shape {data.shape}, not (n, {3 * SIZE * SIZE})")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"{path} must hold a list of whole numbers {files.label_key!r}")
    found = np.array(labels, dtype=np.int64)
    check_labels_of(found, len(data), files.num_classes, path)
    images = data.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), found


def _load(path: str, files: CifarFiles) -> dict[str, Any]:
    """The dict of a pickle; nothing that the file names is called."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}: unpack {files.archive} again")
    loaded = load_plain_pickle(Path(path))
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} must hold a dict, not a {type(loaded).__name__}")
    return loaded
