"""Check the labels of a dataset against a classifier and against another dataset's labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.utils.files import regular_file


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of a dataset's classes; empty if it has none."""
    return tuple((getattr(dataset, "metainfo", None) or {}).get("classes", ()))


def check_same_classes(
    first: Sequence[str],
    second: Sequence[str],
    names: tuple[str, str] = ("the queries have", "the gallery has"),
) -> None:
    """Raise ValueError if the classes of two datasets differ.

    Labels are indices of the sorted folder names. A class that only one of the two has would shift
    the labels after it, and every metric would be wrong.

    Args:
        first: Class names of one dataset (:func:`classes_of`). Without names nothing is compared.
        second: Class names of the other one.
        names: Names of the two datasets in the message, with their verb.
    """
    if first and second and tuple(first) != tuple(second):
        only = [sorted(set(a) - set(b)) for a, b in ((first, second), (second, first))]
        raise ValueError(
            "the sub-folders of the two datasets differ, so their labels do not agree: only "
            f"{names[0]} {only[0]}, only {names[1]} {only[1]}. Give both the same classes, or use "
            "annotation lists"
        )


def check_dataset_labels(dataset: Any, num_classes: int) -> None:
    """Raise ValueError unless every sample has a label in ``[0, num_classes)``.

    If the ``dataset`` has no ``labels``, (N,) as in :class:`~sce_video.datasets.VideoDataset`, it
    is not checked.
    """
    labels = getattr(dataset, "labels", None)
    if labels is None:
        return
    labels = np.asarray(labels)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if not len(wrong):
        return
    first = int(wrong[0])
    where = dataset.describe(first) if hasattr(dataset, "describe") else f"sample {first}"
    if labels[first] < 0:
        raise ValueError(
            f"{where} has no label ({len(wrong)} of {len(labels)} samples have no label or a "
            "wrong one). A classifier needs 'path label' on every line, or a sub-folder per class"
        )
    raise ValueError(
        f"{where} has label {labels[first]}, but the classifier has {num_classes} classes, 0 to "
        f"{num_classes - 1} ({len(wrong)} of {len(labels)} labels are wrong). Set "
        "model.cls_head.num_classes to the number of classes of the dataset"
    )


_VALUES = {"-1": -1, "0": 0, "1": 1}


@dataclass(frozen=True)
class LabelTable:
    """Labels of N images for C classes."""

    #: N paths, relative to the dataset's folder.
    paths: tuple[str, ...]
    #: (N, C) int8: 1 if the image shows the class, -1 if it does not, 0 if it is "difficult" (VOC).
    labels: np.ndarray
    #: File that it was read from, for messages.
    source: str = ""

    def to_text(self) -> str:
        """Return lines ``path<TAB>1 -1 0 ...``."""
        rows = zip(self.paths, self.labels.tolist(), strict=True)
        return "".join(f"{path}\t{' '.join(map(str, row))}\n" for path, row in rows)

    def rows_of(self, paths: Sequence[str]) -> np.ndarray:
        """Return (len(paths), C) labels of images. Their paths may begin with the dataset's folder.

        Raises:
            ValueError: If an image is not in the table, or images lie in different folders.
        """
        number = {path: i for i, path in enumerate(self.paths)}
        root = ""
        if paths:  # what precedes a path of the table in the first one
            parts = paths[0].split(os.sep)
            ends = (os.sep.join(parts[start:]) for start in range(len(parts)))
            root = paths[0].removesuffix(next((end for end in ends if end in number), paths[0]))
        found = [number.get(path.removeprefix(root)) for path in paths]
        missing = [path for path, row in zip(paths, found, strict=True) if row is None]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(paths)} images are not in {self.source or 'the table'}, "
                f"the first is {missing[0]}"
            )
        return self.labels[np.array(found, dtype=np.int64)]


def read_label_table(path: str | Path) -> LabelTable:
    """Read what :meth:`LabelTable.to_text` wrote.

    ValueError, which names file and line, for an empty or malformed file.
    """
    names: list[str] = []
    rows: list[list[int]] = []
    with open(path, encoding="utf-8-sig", errors="surrogateescape", opener=regular_file) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            name, tab, values = line.rstrip("\n").partition("\t")
            words = values.split()
            same = not rows or len(words) == len(rows[0])
            if not tab or not words or not same or not set(words) <= _VALUES.keys():
                raise ValueError(
                    f"{path}, line {number}: {line.strip()!r:.200} must be 'path<TAB>labels', with "
                    "a 1, -1 or 0 for each class, as many as on the other lines"
                )
            names.append(name)
            rows.append([_VALUES[word] for word in words])
    if not rows:
        raise ValueError(f"{path} is empty: it must have a line for each image")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: {twice!r} is listed twice")
    return LabelTable(tuple(names), np.array(rows, dtype=np.int8), str(path))
