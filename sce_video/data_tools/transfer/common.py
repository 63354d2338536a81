"""What the readers of the transfer sets share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sce_video.data_tools.preparation.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
)
from sce_video.datasets.label_table import LabelTable


class TransferLists(NamedTuple):
    """Content of the official files of a transfer set.

    Attributes:
        official: Splits and classes; the name of an image is its path below the set's folder.
        tables: Labels of multi-label splits by file name; empty for the others.
    """

    official: OfficialLists
    tables: Mapping[str, LabelTable] = {}


def transfer_lists(
    name: str,
    parts: Mapping[str, Sequence[Entry]],
    published: Mapping[str, int],
    classes: Sequence[str],
    num_classes: int,
) -> OfficialLists:
    """The lists ``train.txt``, ``val.txt`` (where official) and ``test.txt``.

    Args:
        name: Short name of the set.
        parts: Images of each split, by its name.
        published: Number of images of each split.
        classes: Names of the labels.
        num_classes: Published number of classes.

    Raises:
        ValueError: an image is in two splits.
    """
    splits = [Split(f"{part}.txt", tuple(rows), published[part]) for part, rows in parts.items()]
    for number, split in enumerate(splits):
        for other in splits[:number]:
            check_disjoint(name, other, split)
    class_map = ClassMap("classes.txt", tuple(classes), num_classes)
    return OfficialLists(name, tuple(splits), (class_map,))


def unique_entries(rows: Iterable[tuple[str, str, int]], num_classes: int) -> tuple[Entry, ...]:
    """Entries of (where, path, label).

    Raises:
        ValueError: an image is listed twice, or a label is no class; the message says where.
    """
    entries: dict[str, Entry] = {}
    for where, name, label in rows:
        if name in entries:
            raise ValueError(f"{where}: {name!r} is listed twice")
        if not 0 <= label < num_classes:
            raise ValueError(f"{where}: {name!r} has class number {label} of {num_classes} classes")
        entries[name] = Entry(name, label)
    return tuple(entries.values())


def existing(path: Path, layout: str) -> Path:
    """The path of an official file.

    Raises:
        FileNotFoundError: there is none; the message shows the expected layout.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"no {path}: the folder must hold the unpacked official downloads:\n{layout}"
        )
    return path


def locate_images(root: Path, names: Iterable[str]) -> dict[str, Located]:
    """Locations of images whose names are their paths below ``root``."""
    return {
        name: Located(name, None if os.path.isfile(root / name) else "no such file")
        for name in names
    }
