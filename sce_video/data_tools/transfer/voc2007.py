"""Pascal VOC2007: a multi-label set, with a list of every class for every split."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sce_video.data_tools.preparation.official import Entry, read_lines
from sce_video.data_tools.transfer.common import TransferLists, existing, transfer_lists
from sce_video.datasets.label_table import LabelTable

LAYOUT = """\
  VOCdevkit/VOC2007/JPEGImages/NUMBER.jpg     (VOCtrainval_06-Nov-2007.tar, VOCtest_06-Nov-2007.tar)
  VOCdevkit/VOC2007/ImageSets/Main/CLASS_{train,val,test}.txt"""
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
PUBLISHED = {"train": 2_501, "val": 2_510, "test": 4_952}


def read_voc2007(root: Path) -> TransferLists:
    """Lists without labels, and tables ``{train,val,test}_labels.txt`` of 1, -1 and 0 (difficult).

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line, or classes that list other images; the message says where.
    """
    tables = {f"{part}_labels.txt": _read_table(root, part) for part in PUBLISHED}
    parts = {
        part: tuple(Entry(path, -1) for path in tables[f"{part}_labels.txt"].paths)
        for part in PUBLISHED
    }
    official = transfer_lists("voc2007", parts, PUBLISHED, CLASSES, 20)
    return TransferLists(official, tables)


def _read_table(root: Path, part: str) -> LabelTable:
    """The 20 lists of a split, whose lines are ``NUMBER LABEL``."""
    folder = root / "VOCdevkit/VOC2007"
    columns: dict[str, dict[str, int]] = {}
    for name in CLASSES:
        path = existing(folder / f"ImageSets/Main/{name}_{part}.txt", LAYOUT)
        columns[name] = {}
        for number, line in read_lines(path):
            words = line.split()
            if len(words) != 2 or words[1] not in ("-1", "0", "1"):
                raise ValueError(f"{path}, line {number}: {line!r} must be 'NUMBER -1', 0 or 1")
            if words[0] in columns[name]:
                raise ValueError(f"{path}, line {number}: {words[0]!r} is listed twice")
            columns[name][words[0]] = int(words[1])
        if columns[name].keys() != columns[CLASSES[0]].keys():
            odd = min(columns[name].keys() ^ columns[CLASSES[0]].keys())
            raise ValueError(
                f"{path} and the list of {CLASSES[0]} have different images, for example {odd!r}"
            )
    images = list(columns[CLASSES[0]])
    labels = [[columns[name][image] for name in CLASSES] for image in images]
    paths = tuple(f"VOCdevkit/VOC2007/JPEGImages/{image}.jpg" for image in images)
    return LabelTable(paths, np.array(labels, dtype=np.int8))
