"""Lists of videos: from an annotation file or from a plain folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

VIDEO_EXTENSIONS = (
    ".3gp", ".avi", ".flv", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts",
    ".webm", ".wmv",
)  # fmt: skip


@dataclass(frozen=True)
class VideoList:
    """Paths and labels in three flat arrays.

    Loader workers share these pages of memory with their parent; a list of Python strings would
    be copied page by page as reference counts are touched.

    Attributes:
        blob: (B,) uint8, all paths behind each other, as bytes of the file system.
        ends: (N,) int64, where each path ends in ``blob``.
        labels: (N,) int64, -1 where there is none.
        classes: Names of the labels, where folders give them.
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
        """The path at ``index``, as it stood in the list."""
        begin = int(self.ends[index - 1]) if index > 0 else 0
        return os.fsdecode(self.blob[begin : int(self.ends[index])].tobytes())


def read_annotation_list(ann_file: str) -> VideoList:
    """Read a list with one video a line: ``path label`` or ``path`` alone.

    The label is the last word of a line if that is a whole number, so paths may hold spaces. Blank
    lines and a byte order mark do not count.

    Raises:
        ValueError: No such file, no line in it, a negative label, or lines with and without a
            label mixed; the message names file and line.
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
        raise ValueError(f"the annotation file {ann_file!r} lists no video")
    return VideoList.from_paths(paths, labels)


def _mixed(line: str, label: int) -> str:
    """What is wrong with a line that has no label where those before it have one, or has one."""
    if label >= 0:
        return (
            f"{line!r} has a label, the lines before it have none; give all of them a label or none"
        )
    words = line.split()
    if len(words) > 1 and not words[-1].lower().endswith(VIDEO_EXTENSIONS):
        return f"{words[-1]!r} is no label (a whole number); the lines before it have one"
    return f"{line!r} has no label, the lines before it have one; give all of them a label or none"


def line_number(ann_file: str, index: int) -> int:
    """The line, counted from 1, on which entry ``index`` of an annotation list stands."""
    with open(ann_file, encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip())
        return next(islice(lines, index, None))


def _parse_line(line: str, place: str) -> tuple[str, int]:
    path, _, last = line.rpartition(" ") if "\t" not in line else line.rpartition("\t")
    try:
        label = int(last)
    except ValueError:
        return line, -1
    if label < 0:
        raise ValueError(f"{place}: label {label} is negative; leave it out if there is none")
    if not path.strip():
        raise ValueError(f"{place}: {line!r} is a label without a path")
    return path.strip(), label


def scan_folder(root: str, extensions: Sequence[str] = VIDEO_EXTENSIONS) -> VideoList:
    """Find all videos below a folder, sorted by path.

    The first-level sub-folders that hold videos are the classes, numbered in sorted order; a video
    lying directly in ``root`` has no label (-1). Hidden files and folders are left out, links to
    folders are followed.

    Args:
        root: The folder.
        extensions: Endings that make a file a video, in lower case, with the dot.

    Returns:
        Paths relative to ``root``.

    Raises:
        ValueError: No such folder, or no video in it.
    """
    if not os.path.isdir(root):
        raise ValueError(f"there is no folder {root!r}")
    paths: list[str] = []
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in files:
            if not name.startswith(".") and name.lower().endswith(tuple(extensions)):
                paths.append(os.path.relpath(os.path.join(folder, name), root))
    if not paths:
        raise ValueError(f"no video in {root!r}; looked for {' '.join(extensions)}")
    paths.sort()
    tops = [path.split(os.sep)[0] if os.sep in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    number = {name: label for label, name in enumerate(classes)}
    return VideoList.from_paths(paths, [-1 if t is None else number[t] for t in tops], classes)
