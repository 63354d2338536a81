"""Transfer sets whose official lists are MATLAB files: Stanford Cars and Oxford Flowers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sce_video.data_tools.transfer.common import (
    TransferLists,
    existing,
    transfer_lists,
    unique_entries,
)
from sce_video.utils.errors import MissingPackageError

CARS_LAYOUT = """\
  cars_train/NUMBER.jpg                       (cars_train.tgz)
  cars_test/NUMBER.jpg                        (cars_test.tgz)
  devkit/cars_train_annos.mat                 (car_devkit.tgz)
  devkit/cars_test_annos_withlabels.mat"""
FLOWERS_LAYOUT = """\
  jpg/image_NUMBER.jpg                        (102flowers.tgz)
  setid.mat, imagelabels.mat"""


def read_cars(root: Path) -> TransferLists:
    """Stanford Cars (Krause et al. 2013): 196 classes, numbered from 1 in the files.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
        MissingPackageError: scipy cannot be imported.
    """
    parts = {}
    for part, stem in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        path = existing(root / f"devkit/{stem}.mat", CARS_LAYOUT)
        annotations = np.atleast_1d(_read_mat(path, "annotations"))
        if not {"class", "fname"} <= set(annotations.dtype.names or ()):
            raise ValueError(
                f"{path}: its annotations have no 'class' and 'fname'; the test set needs the file "
                "with labels, cars_test_annos_withlabels.mat"
            )
        rows = [
            (str(path), f"cars_{part}/{name}", _number(path, label) - 1)
            for name, label in zip(annotations["fname"], annotations["class"], strict=True)
        ]
        parts[part] = rows
    count = 1 + max(label for rows in parts.values() for _, _, label in rows)
    entries = {part: unique_entries(rows, count) for part, rows in parts.items()}
    classes = [f"class {number}" for number in range(1, count + 1)]
    counts = {"train": 8_144, "test": 8_041}
    return TransferLists(transfer_lists("cars", entries, counts, classes, 196))


def read_flowers(root: Path) -> TransferLists:
    """Oxford Flowers 102 (Nilsback and Zisserman 2008): official validation split.

    The training set is ``trnid``, 10 images of each class.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
        MissingPackageError: scipy cannot be imported.
    """
    setid = existing(root / "setid.mat", FLOWERS_LAYOUT)
    path = existing(root / "imagelabels.mat", FLOWERS_LAYOUT)
    labels = [_number(path, value) - 1 for value in np.atleast_1d(_read_mat(path, "labels"))]
    count = max(labels) + 1
    parts = {}
    for part, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        rows = []
        for value in np.atleast_1d(_read_mat(setid, key)):
            number = _number(setid, value)
            if not 1 <= number <= len(labels):
                raise ValueError(f"{setid}: {key} names image {number} of {len(labels)} labels")
            rows.append((str(setid), f"jpg/image_{number:05d}.jpg", labels[number - 1]))
        parts[part] = unique_entries(rows, count)
    classes = [f"class {number}" for number in range(1, count + 1)]
    counts = {"train": 1_020, "val": 1_020, "test": 6_149}
    return TransferLists(transfer_lists("flowers", parts, counts, classes, 102))


def _number(path: Path, value: Any) -> int:
    """A whole number of a MATLAB array, which stores all as floats or small integers."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{path}: {value!r:.60} is not a number") from None
    if number != value:
        raise ValueError(f"{path}: {value!r:.60} is not a whole number")
    return number


def _read_mat(path: Path, key: str) -> Any:
    """One variable of a MATLAB file of version 5 (the official files are)."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingPackageError(
            f"reading {path} needs scipy, which cannot be imported ({error}): "
            "pip install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error
    try:
        content = loadmat(path, squeeze_me=True, variable_names=[key])
    except Exception as error:  # a damaged file can raise anything
        reason = str(error)[:200] or type(error).__name__
        raise ValueError(f"{path} is no readable MATLAB file: {reason}") from error
    if key not in content:
        raise ValueError(f"{path} has no variable {key!r}")
    return content[key]
