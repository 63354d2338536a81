"""Lists of videos or images from an annotation file, and segments in paths."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TextIO

import numpy as np

from sce_video.utils.files import local_copy, regular_file, text_encoding, write_text
from sce_video.utils.seconds import parse_seconds
from sce_video.utils.storage import exists

#: Extensions of readable containers that cameras, recorders and players use. Extensions of audio
#: files and pictures are left out (.ogg, .mj2, .heic).
VIDEO_EXTENSIONS = (
    ".264", ".265", ".3g2", ".3gp", ".apng", ".asf", ".avc", ".avi", ".dav", ".dif", ".divx", ".dv",
    ".f4v", ".flv", ".gif", ".h263", ".h264", ".h265", ".hevc", ".ismv", ".ivf", ".m1v", ".m2p",
    ".m2t", ".m2ts", ".m2v", ".m4v", ".mjpeg", ".mjpg", ".mk3d", ".mkv", ".mod", ".mov", ".mp4",
    ".mpe", ".mpeg", ".mpg", ".mpv", ".mts", ".mxf", ".nsv", ".nut", ".obu", ".ogm", ".ogv",
    ".qt", ".rcv", ".rm", ".rmvb", ".tod", ".trp", ".ts", ".vc1", ".vob", ".vro", ".webm", ".wmv",
    ".wtv", ".y4m",
)  # fmt: skip
#: Element of a list of extensions that also accepts all other files that contain a video.
BY_CONTENT = "*"
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
#: Names of the path column of a CSV file, in lower case.
PATH_COLUMNS = ("path", "video", "video_path", "file", "filepath", "filename")
#: Names of the label column of a CSV file, in lower case.
LABEL_COLUMNS = ("label", "class", "class_name", "label_name", "category")
#: Maximum label. It is limited, because metrics have a column for each class up to the largest.
MAX_LABEL = 999_999

_INTEGER = re.compile(r"-?[0-9]+")
_MAX_LINE = 8192  # in characters; longer lines are not paths
#: Pattern of a segment such as ``a.mp4@12.5-17``.
MOMENT = re.compile(r"(?s)(.+)@([^@-]{1,20})-([^@-]{1,20})")


def split_segment(path: str) -> tuple[str, float, float] | None:
    """Split ``a.mp4@12.5-17`` into video, start and end; None for any other or existing path."""
    found = MOMENT.fullmatch(path)
    if found is None or os.path.exists(path):
        return None
    try:
        start, end = parse_seconds(found[2]), parse_seconds(found[3])
    except ValueError:
        return None
    return (found[1], start, end) if end > start else None


def video_of(path: str) -> str:
    """Return the path of the video if a path denotes a segment, otherwise the path itself."""
    found = split_segment(path)
    return path if found is None else found[0]


@dataclass(frozen=True)
class VideoList:
    """Paths and labels in flat arrays.

    Loader workers share the memory of these arrays with their parent. The memory of Python strings
    would be copied page by page, because reading an object changes its reference count.

    Attributes:
        blob: (B,) uint8, all paths one after the other, as bytes of the file system.
        ends: (N,) int64, end of each path in ``blob``.
        labels: (N,) int64, -1 for a path without a label.
        classes: Names of the labels, if they are known.
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
        blob = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        return cls(blob, ends, np.asarray(labels, dtype=np.int64), tuple(classes))

    def __len__(self) -> int:
        return len(self.ends)

    def path(self, index: int) -> str:
        """Return the path at ``index``, as written in the list."""
        begin = int(self.ends[index - 1]) if index > 0 else 0
        return os.fsdecode(self.blob[begin : int(self.ends[index])].tobytes())

    def select(self, indices: np.ndarray) -> VideoList:
        """Return the entries at some indices, keeping the label names."""
        paths = [self.path(int(index)) for index in indices]
        return VideoList.from_paths(paths, self.labels[indices], self.classes)


#: Parts into which :func:`subset_indices` divides a list.
PARTS = ("training", "held_out", "gallery")


def subset_indices(
    labels: np.ndarray, part: str, held_out: int, gallery: int = 0, seed: int = 0
) -> np.ndarray:
    """Divide N videos with a seed, and return the ascending indices of one part.

    Args:
        labels: (N,) labels. Videos without a label (-1) form one class.
        part: ``held_out``, ``training`` (all other videos) or ``gallery`` (some training videos).
        held_out: Number of held-out videos, in proportion to the sizes of the classes.
        gallery: Maximum number of gallery videos, the same for each class if possible.
        seed: Random seed.

    Raises:
        ValueError: If the part is unknown, or a part would have no videos.
    """
    count, numbers = len(labels), {"held_out": held_out, "gallery": gallery, "seed": seed}
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    wrong = [f"{k}={v!r}" for k, v in numbers.items() if type(v) is not int or v < 0]
    if wrong or not 0 < held_out < count or (part == "gallery" and not gallery):
        given = ", ".join(wrong) or f"held_out={held_out}, gallery={gallery}"
        raise ValueError(
            f"{count} videos cannot be divided with {given}, because each part needs a video"
        )
    order = np.random.default_rng(seed).permutation(count)
    rank, sizes = _ranks(labels[order])
    chosen = order[np.argsort((rank + 0.5) / sizes, kind="stable")]
    if part == "held_out":
        return np.sort(chosen[:held_out])
    rest = chosen[held_out:]
    if part == "gallery":
        rest = rest[np.argsort(_ranks(labels[rest])[0], kind="stable")][:gallery]
    return np.sort(rest)


def _ranks(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position (N,) of each label among equal labels, and the number (N,) of those."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    by_class = np.argsort(inverse, kind="stable")
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks, counts[inverse]


def read_annotation_list(
    ann_file: str, kind: str = "video", class_file: str | None = None
) -> VideoList:
    """Read a list whose lines are ``path label``, or only ``path``.

    The label is the last word of a line if it is an integer, so paths may contain spaces. Blank
    lines and a byte order mark are skipped.

    Args:
        ann_file: Path or URL of the list.
        kind: Kind of the listed files, ``video`` or ``image``.
        class_file: Path or URL of a file whose line *i*, counted from 0, is the name of label *i*.

    Raises:
        ValueError: If the file does not exist, is empty or has another format, if a label is
            negative, larger than :data:`MAX_LABEL` or without a name, or if only some lines have
            labels. The message names file and line.
    """
    refuse_table(ann_file)
    if os.path.isdir(ann_file):
        raise ValueError(
            f"the annotation file {ann_file!r} is a folder. To use the {kind}s below it, set "
            "data_root to the folder and ann_file=None"
        )
    classes = [] if class_file is None else _read_classes(class_file)
    if not exists(ann_file):
        raise ValueError(f"there is no annotation file {ann_file!r}")
    # Pack the paths immediately, because millions of Python strings would take much more memory.
    blob, ends, labels = bytearray(), array("q"), array("q")
    with _open(ann_file, newest=True) as file:
        for number, line in enumerate(file, 1):
            line, where = line.rstrip("\n"), f"{ann_file}, line {number}"
            if not line.strip():
                continue
            if not ends:
                _check_format(line, where, kind)
            path, label = _parse_line(line.strip(), where)
            if labels and (label < 0) != (labels[0] < 0):
                raise ValueError(f"{where}: {_mixed(line.strip(), label)}")
            if classes and label >= len(classes):
                raise ValueError(
                    f"{where}: label {label} is out of range: {class_file} names the classes 0 to "
                    f"{len(classes) - 1}"
                )
            blob += os.fsencode(path)
            ends.append(len(blob))
            labels.append(label)
    if not ends:
        raise ValueError(f"the annotation file {ann_file!r} lists no {kind}s")
    offsets, numbers = np.array(ends, dtype=np.int64), np.array(labels, dtype=np.int64)
    return VideoList(np.frombuffer(blob, np.uint8), offsets, numbers, tuple(classes))


def refuse_table(path: str) -> None:
    """Raise ValueError if a path is a table of videos although files are needed."""
    named = os.fspath(path).rstrip("/").endswith(".lance")
    if named or os.path.isdir(os.path.join(path, "_versions")):
        raise ValueError(
            f"{path!r} is a Lance table, but files are needed here. Tables, whose names end with "
            ".lance, can be given to pretrain, evaluate, embed, index, predict and doctor, and to "
            "LanceVideoDataset in a config"
        )


def _open(path: str, newest: bool = False) -> TextIO:
    file = local_copy(path, newest)
    return open(file, encoding=text_encoding(file), errors="surrogateescape", opener=regular_file)


def _read_classes(class_file: str) -> list[str]:
    if not exists(class_file):
        raise ValueError(f"there is no file of class names {class_file!r}")
    with _open(class_file, newest=True) as file:
        names = [line.strip() for line in file.read().rstrip().splitlines()]
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if not name or name in seen:
            problem = "appears a second time in the file" if name else "is not a class name"
            raise ValueError(f"{class_file}, line {number}: {name!r} {problem}")
        seen.add(name)
    if not names:
        raise ValueError(f"the file of class names {class_file!r} is empty")
    return names


def _check_format(line: str, where: str, kind: str) -> None:
    """Raise ValueError if a line is not text, a header, or a comma-separated row."""
    if "\0" in line or len(line) > _MAX_LINE:
        raise ValueError(f"{where}: this is not a text file. A list has 'path label' on every line")
    if {word.lower() for word in line.split()} <= {*PATH_COLUMNS, *LABEL_COLUMNS}:
        raise ValueError(
            f"{where}: {line.strip()!r} is a header, but lists have no header. Remove the line, or "
            "rename the file to .csv or .tsv"
        )
    fields = [field.strip() for field in line.split(",")]
    last = fields[-1]
    # Refuse "a.mp4,3", "a.mp4, 3", and tables such as label,youtube_id,time_start,time_end,split.
    if len(fields) > 1 and (last.isdecimal() or (len(fields) > 2 and "." not in last)):
        raise ValueError(
            f"{where}: {line.strip()!r} is a line of a table with commas. Every line of a list "
            f"contains 'path label', separated by a space or a tab, or only the path of a {kind}. "
            "The label is the number of the class, counted from 0. If this is a table with the "
            "columns path and label, rename it to .csv. For Kinetics' own tables, use sce-video "
            "prepare kinetics"
        )


def _mixed(line: str, label: int) -> str:
    """Return the message for a label after lines without labels, or vice versa."""
    words, extensions = line.split(), VIDEO_EXTENSIONS + IMAGE_EXTENSIONS
    if label < 0 and len(words) > 1 and not words[-1].lower().endswith(extensions):
        return f"{words[-1]!r} is not a label (a whole number), but earlier lines have labels"
    has, had = ("a label", "no labels") if label >= 0 else ("no label", "labels")
    return f"{line!r} has {has}, but earlier lines have {had}. Label either all lines or none"


def line_number(ann_file: str, index: int) -> int:
    """Return the line number, counted from 1, of entry ``index`` of an annotation list."""
    with _open(ann_file) as file:
        lines = (number for number, line in enumerate(file, 1) if line.strip())
        return next(islice(lines, index, None))


def _parse_line(line: str, where: str) -> tuple[str, int]:
    path, _, last = line.rpartition(" ") if "\t" not in line else line.rpartition("\t")
    if not _INTEGER.fullmatch(last):
        return line, -1
    if last.startswith("-"):
        raise ValueError(
            f"{where}: label {last:.40} is negative. Leave it out if there is no label"
        )
    if len(last.lstrip("0")) > len(str(MAX_LABEL)):
        raise ValueError(
            f"{where}: label {last:.40} is too large. The largest label is {MAX_LABEL}"
        )
    if not path.strip():
        raise ValueError(f"{where}: {line!r} is a label without a path")
    return path.strip(), int(last)


def write_annotation_list(file: str, paths: Sequence[str], labels: Sequence[int]) -> list[str]:
    """Write a list for :func:`read_annotation_list`, with labels unless all of them are -1.

    Returns:
        Paths that :func:`list_line` refuses, so that they are missing from the list.

    Raises:
        ValueError: If no path can be listed.
    """
    labelled = any(label >= 0 for label in labels)
    lines = [
        (path, list_line(path, label) if (label >= 0) == labelled else None)
        for path, label in zip(paths, labels, strict=True)
    ]
    listed = "".join(f"{line}\n" for _, line in lines if line is not None)
    if not listed:
        raise ValueError(f"{file}: none of {len(paths)} paths can be written to a list")
    write_text(file, listed)
    return [path for path, line in lines if line is None]


def annotation_line(path: str, label: int) -> str:
    """Return a line of an annotation list: the path, and the label unless it is -1."""
    if label < 0:
        return path
    return f"{path}\t{label}" if "\t" in path else f"{path} {label}"


def list_line(path: str, label: int = -1) -> str | None:
    """Return the line that :func:`read_annotation_list` reads as this path and label.

    The result is None if there is no such line, because of line breaks, spaces at an end, bytes
    that are not text, a number as the last word of a path without a label, or a row of a table.
    """
    line = annotation_line(path, label)
    if len(line.splitlines()) != 1 or line != line.strip() or line.startswith("\ufeff"):
        return None
    try:
        os.fsencode(line)  # raises an error for a lone surrogate that stands for no byte
        _check_format(line, "", "video")
        return line if _parse_line(line, "") == (path, max(label, -1)) else None
    except ValueError:
        return None
