"""Lists of videos or images: from an annotation file or from a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from sce_video.utils.folders import find_files

VIDEO_EXTENSIONS = (
    ".3gp", ".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts",
    ".webm", ".wmv",
)  # fmt: skip
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
#: Largest label: metrics have a column for each class up to the largest.
MAX_LABEL = 999_999


_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class VideoList:
    """Paths and labels in three flat arrays.

    Loader workers share these memory pages with their parent; a list of Python strings would be
    copied page by page, because reading an object changes its reference count.

    Attributes:
        blob: (B,) uint8, the concatenated paths, as bytes of the file system.
        ends: (N,) int64, end of each path in ``blob``.
        labels: (N,) int64, -1 where there is none.
        classes: Names of the labels, where they come from folders.
    """

    blob: np.ndarray
    ends: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...] = ()

    @classmethod
    def from_paths(
        cls, paths: Sequence[str], labels: Sequence[int], classes: Sequence[str] = ()
    ) -> VideoList:
        """Pack N paths and N labels."""
        encoded = [os.fsencode(path) for path in paths]
        return cls(
            blob=np.frombuffer(b"".join(encoded), dtype=np.uint8),
            ends=np.cumsum([len(path) for path in encoded], dtype=np.int64),
            labels=np.asarray(labels, dtype=np.int64),
            classes=tuple(classes),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def path(self, index: int) -> str:
        """The path at ``index``, as written in the list."""
        begin = int(self.ends[index - 1]) if index > 0 else 0
        return os.fsdecode(self.blob[begin : int(self.ends[index])].tobytes())


def read_annotation_list(ann_file: str, kind: str = "video") -> VideoList:
    """Read a list with one file per line: ``path label``, or ``path`` on every line.

    The label is the last word of a line if that is an integer, so paths may contain spaces. Blank
    lines and a byte order mark are skipped.

    Args:
        ann_file: The list.
        kind: What is listed, ``video`` or ``image``, for the message.

    Raises:
        ValueError: No such file, no line in it, a label that is negative or more than
            :data:`MAX_LABEL`, or lines with and without a label mixed; the message names file and
            line.
    """
    if not os.path.isfile(ann_file):
        raise ValueError(f"there is no annotation file {ann_file!r}")
    paths: list[str] = []
    labels: list[int] = []
    with open(ann_file, encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            path, label = _parse_line(line.strip(), f"{ann_file}, line {number}")
            if labels and (label < 0) != (labels[0] < 0):
                raise ValueError(f"{ann_file}, line {number}: {_mixed(line.strip(), label)}")
            paths.append(path)
            labels.append(label)
    if not paths:
        raise ValueError(f"the annotation file {ann_file!r} lists no {kind}")
    return VideoList.from_paths(paths, labels)


def _mixed(line: str, label: int) -> str:
    """Message for a line with a label after lines without one, or the other way round."""
    if label >= 0:
        return (
            f"{line!r} has a label, the lines before it have none; give all of them a label or none"
        )
    words = line.split()
    if len(words) > 1 and not words[-1].lower().endswith(VIDEO_EXTENSIONS + IMAGE_EXTENSIONS):
        return f"{words[-1]!r} is no label (a whole number); the lines before it have one"
    return f"{line!r} has no label, the lines before it have one; give all of them a label or none"


def line_number(ann_file: str, index: int) -> int:
    """The line number, counted from 1, of entry ``index`` of an annotation list."""
    with open(ann_file, encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip())
        return next(islice(lines, index, None))


def _parse_line(line: str, where: str) -> tuple[str, int]:
    path, _, last = line.rpartition(" ") if "\t" not in line else line.rpartition("\t")
    if not _INTEGER.fullmatch(last):
        return line, -1
    if last.startswith("-"):
        raise ValueError(f"{where}: label {last:.40} is negative; leave it out if there is none")
    if len(last.lstrip("0")) > len(str(MAX_LABEL)):
        raise ValueError(f"{where}: label {last:.40} is no class number, at most {MAX_LABEL}")
    if not path.strip():
        raise ValueError(f"{where}: {line!r} is a label without a path")
    return path.strip(), int(last)


def scan_folder(
    root: str, extensions: Sequence[str] = VIDEO_EXTENSIONS, kind: str = "video"
) -> VideoList:
    """Find all videos (or images) below a folder, sorted by path.

    The first-level sub-folders that contain any are the classes, numbered in sorted order; a file
    directly in ``root`` has no label (-1). For hidden files and links see
    :func:`~sce_video.utils.folders.find_files`.

    Args:
        root: The folder.
        extensions: Extensions of the files, in lower case, with the dot.
        kind: What is searched, ``video`` or ``image``, for the message.

    Returns:
        Paths relative to ``root``.

    Raises:
        ValueError: No such folder, or no such file in it.
    """
    if not os.path.isdir(root):
        raise ValueError(f"there is no folder {root!r}")
    paths = find_files(root, extensions)
    if not paths:
        raise ValueError(f"no {kind} in {root!r}; searched for {' '.join(extensions)}")
    tops = [path.split(os.sep)[0] if os.sep in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    number = {name: label for label, name in enumerate(classes)}
    return VideoList.from_paths(paths, [-1 if t is None else number[t] for t in tops], classes)
