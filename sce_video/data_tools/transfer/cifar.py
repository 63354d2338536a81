"""CIFAR10 and CIFAR100 as transfer sets: their arrays, unpacked to PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sce_video.data_tools.transfer.common import (
    TransferLists,
    existing,
    transfer_lists,
    unique_entries,
)
from sce_video.utils.atomic_file import write_bytes
from sce_video.utils.plain_pickle import load_plain_pickle

CIFAR10_LAYOUT = """\
  cifar-10-batches-py/{data_batch_1,...,data_batch_5,test_batch,batches.meta}
                                              (cifar-10-python.tar.gz)"""
CIFAR100_LAYOUT = """\
  cifar-100-python/{train,test,meta}          (cifar-100-python.tar.gz)"""
_COUNTS = {"train": 50_000, "test": 10_000}
_SIDE = 32


def read_cifar10(root: Path) -> TransferLists:
    """CIFAR10: the images are written below ``root/png``, unless they are there.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
    """
    folder = existing(root / "cifar-10-batches-py", CIFAR10_LAYOUT)
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    names = _load(folder / "batches.meta", CIFAR10_LAYOUT).get("label_names")
    batches = {
        part: [(folder / name, _load(folder / name, CIFAR10_LAYOUT)) for name in batch]
        for part, batch in files.items()
    }
    return _unpack(root, "cifar10", batches, "labels", _class_names(folder, names, 10), 10)


def read_cifar100(root: Path) -> TransferLists:
    """CIFAR100 with its fine labels, see :func:`read_cifar10`."""
    folder = existing(root / "cifar-100-python", CIFAR100_LAYOUT)
    names = _load(folder / "meta", CIFAR100_LAYOUT).get("fine_label_names")
    batches = {part: [(folder / part, _load(folder / part, CIFAR100_LAYOUT))] for part in _COUNTS}
    classes = _class_names(folder, names, 100)
    return _unpack(root, "cifar100", batches, "fine_labels", classes, 100)


def _load(path: Path, layout: str) -> dict[str, Any]:
    content = load_plain_pickle(existing(path, layout))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a batch of CIFAR")
    return content


def _class_names(folder: Path, names: Any, count: int) -> list[str]:
    if not isinstance(names, list) or len(names) != count:
        raise ValueError(f"{folder}: the file of class names does not have {count} of them")
    return [str(name) for name in names]


def _unpack(
    root: Path,
    name: str,
    batches: dict[str, list[tuple[Path, dict[str, Any]]]],
    key: str,
    classes: list[str],
    num_classes: int,
) -> TransferLists:
    """Write the images of all batches, numbered in their order, and list them."""
    parts = {}
    for part, files in batches.items():
        rows: list[tuple[str, str, int]] = []
        for path, batch in files:
            images, labels = _images(path, batch.get("data")), batch.get(key)
            if not isinstance(labels, list) or len(labels) != len(images):
                raise ValueError(f"{path}: {len(images)} images do not match its {key!r}")
            for image, label in zip(images, labels, strict=True):
                rows.append((str(path), f"png/{part}/{len(rows):05d}.png", int(label)))
                _write_image(root / rows[-1][1], image)
        parts[part] = unique_entries(rows, num_classes)
    return TransferLists(transfer_lists(name, parts, _COUNTS, classes, num_classes))


def _images(path: Path, data: Any) -> np.ndarray:
    """(N, 32, 32, 3) RGB of rows of 3 x 32 x 32 bytes, a plane for each colour."""
    width = 3 * _SIDE * _SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (width,):
        raise ValueError(f"{path}: 'data' must be uint8 of shape (N, {width})")
    return data.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)


def _write_image(path: Path, image: np.ndarray) -> None:
    if not path.exists():
        _, encoded = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        write_bytes(path, encoded.tobytes())
