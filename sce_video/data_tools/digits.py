"""The digits inside scikit-learn as PNG files: real images that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sce_video.utils.atomic_file import write_bytes
from sce_video.utils.errors import MissingPackageError

#: Published: the test part of UCI's "Optical Recognition of Handwritten Digits".
NUM_IMAGES = 1797
NUM_CLASSES = 10
SIZE = 8
#: Shade of a pixel: 0 to 16 of the 4x4 cells of the original scan were inked.
MAX_SHADE = 16
#: Fifths of every class, in the order of the set.
PARTS = {"train": 3, "val": 1, "test": 1}


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The images, (1797, 8, 8) uint8 in 0..255, and their labels, (1797,) int64.

    Raises:
        MissingPackageError: scikit-learn cannot be imported.
        ValueError: The installed scikit-learn has other digits than the published ones.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"the digits are those of scikit-learn, which cannot be imported ({error}): "
            "pip install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error
    found: Any = datasets.load_digits()
    shades, labels = np.asarray(found.images), np.asarray(found.target)
    check_digits(shades, labels)
    return np.round(shades * (255 / MAX_SHADE)).astype(np.uint8), labels.astype(np.int64)


def check_digits(shades: np.ndarray, labels: np.ndarray) -> None:
    """Raise ValueError unless there are 1,797 images of 8x8 with shades 0 to 16, of ten classes."""
    shape = (NUM_IMAGES, SIZE, SIZE)
    if shades.shape != shape or labels.shape != shape[:1]:
        raise ValueError(
            f"scikit-learn's digits are {shades.shape} with {labels.shape} labels, not {shape}: "
            "install the version of requirements/constraints.txt"
        )
    if set(np.unique(labels)) != set(range(NUM_CLASSES)):
        raise ValueError(f"scikit-learn's digits have the labels {np.unique(labels)}, not 0 to 9")
    if shades.min() < 0 or shades.max() > MAX_SHADE:
        raise ValueError(
            f"scikit-learn's digits have shades from {shades.min()} to {shades.max()}, not within "
            f"0 to {MAX_SHADE}"
        )


def split_digits(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Positions of the images of each part, ascending: fixed, and stratified by class.

    The first three fifths of every class are ``train``, the next fifth ``val``, the last ``test``:
    stretches, since neighbours in the set may be of the same writer.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in PARTS}
    total = sum(PARTS.values())
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        ends = np.cumsum(list(PARTS.values())) * len(positions) // total
        for name, stretch in zip(PARTS, np.split(positions, ends[:-1]), strict=True):
            parts[name].append(stretch)
    return {name: np.sort(np.concatenate(stretches)) for name, stretches in parts.items()}


def write_digits(root: str | Path) -> dict[str, int]:
    """Write ``root/PART/LABEL/NUMBER.png``, grey, NUMBER being the position in the set.

    Repeating it writes the same bytes again.

    Returns:
        Number of images of each part.

    Raises:
        MissingPackageError: scikit-learn cannot be imported.
        ValueError: See :func:`load_digits`; or ``root`` holds other PNG files than these.
    """
    root = Path(root)
    images, labels = load_digits()
    parts = split_digits(labels)
    files = {
        root / part / str(labels[i]) / f"{i:04d}.png": images[i]
        for part, positions in parts.items()
        for i in positions.tolist()
    }
    others = sorted(set(root.glob("*/*/*.png")) - set(files))
    if others:
        raise ValueError(f"{others[0]} is not of the digits: choose another folder, or remove it")
    for path, image in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, cv2.imencode(".png", image)[1].tobytes())
    return {part: len(positions) for part, positions in parts.items()}
