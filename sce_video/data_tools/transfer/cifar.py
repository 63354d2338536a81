"""CIFAR10 and CIFAR100 as transfer sets: their arrays, unpacked to PNG files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from sce_video.data_tools.transfer.common import (
    TransferLists,
    existing,
    transfer_lists,
    unique_entries,
)
from sce_video.datasets.array_sets import ARRAY_SETS
from sce_video.datasets.array_sets.cifar import CIFAR10, CIFAR100, PUBLISHED, CifarFiles
from sce_video.utils.atomic_file import write_bytes

CIFAR10_LAYOUT = """\
  cifar-10-batches-py/{data_batch_1,...,data_batch_5,test_batch,batches.meta}
                                              (cifar-10-python.tar.gz)"""
CIFAR100_LAYOUT = """\
  cifar-100-python/{train,test,meta}          (cifar-100-python.tar.gz)"""


def read_cifar10(root: Path) -> TransferLists:
    """CIFAR10: the images are written below ``root/png``, unless they are there.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
    """
    return _read(root, CIFAR10, CIFAR10_LAYOUT)


def read_cifar100(root: Path) -> TransferLists:
    """CIFAR100 with its fine labels, see :func:`read_cifar10`."""
    return _read(root, CIFAR100, CIFAR100_LAYOUT)


def _read(root: Path, files: CifarFiles, layout: str) -> TransferLists:
    """Write the images of both splits, numbered in their order, and list them."""
    for name in (files.meta, *(batch for split in files.batches.values() for batch in split)):
        existing(root / files.folder / name, layout)
    name = files.name.lower()
    splits = {split: ARRAY_SETS[name](str(root), split, False) for split in PUBLISHED}
    parts = {}
    for split, images in splits.items():
        paths = [f"png/{split}/{number:05d}.png" for number in range(len(images))]
        rows = zip(images.names(), paths, images.labels.tolist(), strict=True)
        parts[split] = unique_entries(rows, files.num_classes)
        for number, path in enumerate(paths):
            _write_image(root / path, images.image(number))
    classes = list(splits["train"].classes)
    lists = transfer_lists(name, parts, PUBLISHED, classes, files.num_classes)
    return TransferLists(lists)


def _write_image(path: Path, image: np.ndarray) -> None:
    if not path.exists():
        _, encoded = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        write_bytes(path, encoded.tobytes())
