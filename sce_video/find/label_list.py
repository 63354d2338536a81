"""Labels that a user gives to videos and segments, stored in files that finetuning can read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import numpy as np

from sce_video.datasets.clip_sampling import check_span
from sce_video.datasets.segments import Segment, read_segments, write_segment_file
from sce_video.datasets.video_list import (
    MAX_LABEL,
    annotation_line,
    list_line,
    read_annotation_list,
    split_segment,
)
from sce_video.utils.files import file_identity, read_text, remove_unfinished, write_text

#: Maximum length of a label in characters (chosen by hand)
_MAX_NAME = 100
#: Number of changes that can be undone
_UNDONE = 200
#: Number of decimal places of seconds. More would not select a different frame.
_DIGITS = 3


class WatchedFiles:
    """Files that are written only if no other program has changed them.

    Args:
        what: Noun for an entry of the files in messages, such as ``"label"``.
        files: Files to write, which need not exist.
    """

    def __init__(self, what: str, *files: Path) -> None:
        self._what, self._files = what, files
        for file in files:
            remove_unfinished(file.parent, file.name)
        self._stamps = [file_identity(file) for file in files]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Allow the block to write the files; raise ValueError if another program changed them."""
        if [file_identity(file) for file in self._files] != self._stamps:
            raise ValueError(
                f"another program has changed {self._files[0]}, so the last {self._what} was not "
                "written. Restart the page to read the file again"
            )
        try:
            yield
        finally:
            self._stamps = [file_identity(file) for file in self._files]


class LabelList:
    """Labels of videos in a list ``path label``, and their names in a file of classes.

    Every change replaces both files immediately. Lines of videos that are not in the index are
    kept. Line *i* of the class file, counted from 0, is the name of label *i*, so
    :class:`~sce_video.datasets.VideoDataset` can read both files as ``ann_file`` and
    ``class_file``.

    Args:
        file: File of the list. The class names are in a file next to it, for example
            ``labels_classes.txt`` for ``labels.txt``.

    Raises:
        ValueError: If the file exists but has no labels, or gives a video two labels.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.labels: dict[str, int] = {}
        self.classes: list[str] = []
        # For each change, the number of classes before it, and the labels that it replaced.
        self._undo: list[tuple[int, dict[str, int | None]]] = []
        self._files = WatchedFiles("label", file, self.class_file)
        if file.exists():
            self._read()

    @property
    def class_file(self) -> Path:
        """File with the names of the classes."""
        return self.file.with_name(f"{self.file.stem}_classes.txt")

    @property
    def undo_depth(self) -> int:
        """Number of changes that can be undone."""
        return len(self._undo)

    def number(self, name: str) -> int:
        """Return the number of a class; raise ValueError if no class has this name."""
        if name not in self.classes:
            known = ", ".join(self.classes) or "none"
            raise ValueError(f"{self.file} has no label {name!r:.200}. Its labels are: {known}")
        return self.classes.index(name)

    def of_paths(self, paths: Iterable[str]) -> np.ndarray:
        """Return the label (N,) int64 of each path; -1 for a path without a label."""
        known = self.labels
        return np.array([known.get(path, -1) for path in paths], dtype=np.int64)

    def apply(self, paths: Iterable[str], name: str | None) -> tuple[int, list[str]]:
        """Give videos a label.

        Args:
            paths: Paths of the videos as in the list.
            name: Name of the label, which may be new; None removes the label.

        Returns:
            The number of labels that changed, and the paths that a list cannot contain.

        Raises:
            ValueError: If the name is not valid, a list cannot contain any of the paths, or another
                program has changed the files.
            WriteError: If a file cannot be written. In this case, nothing changes.
        """
        paths = list(dict.fromkeys(paths))
        refused = [] if name is None else [path for path in paths if list_line(path, 0) is None]
        if refused and len(refused) == len(paths):
            raise ValueError(
                f"a list cannot contain the path {refused[0]!r:.200}, because of a line break or "
                "outer spaces. Rename the file and update the index"
            )
        before, label = len(self.classes), None
        if name is not None:
            name = class_name(name)
            label = self.classes.index(name) if name in self.classes else before
            if label > MAX_LABEL:
                raise ValueError(f"cannot add a class: the limit of {before} is reached")
        left_out = set(refused)
        old = {path: self.labels.get(path) for path in paths if path not in left_out}
        changed = {path: known for path, known in old.items() if known != label}
        if changed:
            classes = self.classes if name is None or label != before else [*self.classes, name]
            self._write(dict.fromkeys(changed, label), classes)
            self._undo = [*self._undo[1 - _UNDONE :], (before, changed)]
        return len(changed), refused

    def undo(self) -> list[str]:
        """Undo the last change, and return the paths whose labels changed."""
        if not self._undo:
            return []
        count, replaced = self._undo[-1]
        self._write(replaced, self.classes[:count])
        self._undo.pop()
        return list(replaced)

    def split(self, share: float = 0.25) -> tuple[Path, ...]:
        """Write lists for training and testing next to this one, and return their paths.

        A fraction ``share`` of each class's videos is used for testing, but at least one if the
        class has two. The videos are chosen by a hash of their paths, so a new label moves only few
        other videos to another list. If the list contains segments, only the list itself is
        returned, because finetuning must hold out whole recordings.

        Raises:
            ValueError: If no class has two videos.
        """
        if any(map(split_segment, self.labels)):
            return (self.file,)

        def spread(path: str) -> int:
            """Return a 44-bit hash that scatters similar paths."""
            checksum = crc32(path.encode("utf-8", "surrogateescape"))
            mixed = (checksum * 0x9E3779B97F4A7C15 ^ checksum << 32) % 2**64  # Fibonacci hashing
            return (mixed * 0xBF58476D1CE4E5B9 % 2**64) >> 20

        paths_of: dict[int, list[str]] = {}
        for path, label in self.labels.items():
            paths_of.setdefault(label, []).append(path)
        tested: set[str] = set()
        for paths in paths_of.values():
            count = max(1, round(share * len(paths))) if len(paths) > 1 else 0
            tested.update(sorted(paths, key=spread)[:count])
        if not tested:
            raise ValueError(
                "give the same label to at least two videos, one for training and one for testing"
            )
        train, test = (self.file.with_name(f"{self.file.stem}_{p}.txt") for p in ("train", "test"))
        write_text(train, self._lines(path for path in self.labels if path not in tested))
        write_text(test, self._lines(path for path in self.labels if path in tested))
        return train, test

    def _read(self) -> None:
        """Read the list and the names of its classes."""
        class_file = str(self.class_file) if self.class_file.exists() else None
        if read_text(self.file, "surrogateescape").strip():
            videos = read_annotation_list(str(self.file), class_file=class_file)
            if (videos.labels < 0).any():
                raise ValueError(
                    f"{self.file} lists videos without labels. Give another file with --labels"
                )
            for i, label in enumerate(videos.labels.tolist()):
                if self.labels.setdefault(videos.path(i), label) != label:
                    raise ValueError(
                        f"{self.file} gives {videos.path(i)!r} two labels. Remove one of the lines"
                    )
            self.classes = list(videos.classes)
        elif class_file is not None:  # The user has removed all labels, but not the classes.
            text = read_text(self.class_file, "surrogateescape")
            self.classes = [class_name(line) for line in text.splitlines() if line.strip()]
        if not self.classes and self.labels:  # Without a class file, the numbers are the names.
            self.classes = [str(number) for number in range(max(self.labels.values()) + 1)]

    def _write(self, changes: dict[str, int | None], classes: list[str]) -> None:
        """Write changed labels (None removes one) and classes, then change them in memory."""
        before = self.labels
        labels = {**before, **changes}
        self.labels = {path: label for path, label in labels.items() if label is not None}
        writers = [
            (self.class_file, "".join(f"{name}\n" for name in classes)),
            (self.file, self._lines(self.labels)),
        ]
        # Between the two writes, every label in the list must have a name in the class file.
        if len(classes) < len(self.classes):
            writers.reverse()
        try:
            with self._files.writing():
                for file, text in writers:
                    write_text(file, text)
        except BaseException:
            self.labels = before
            raise
        self.classes = classes

    def _lines(self, paths: Iterable[str]) -> str:
        """Return the lines for some videos as a list file contains them."""
        return "".join(f"{annotation_line(path, self.labels[path])}\n" for path in paths)


def label_file(folder: str | Path, given: str | os.PathLike | None) -> Path:
    """Return the list of labels: the given file, or ``labels.txt`` in the index's folder."""
    return Path(folder, "labels.txt") if given is None else Path(given)


def class_name(text: str) -> str:
    """Return the name of a label with single spaces between words.

    Raises:
        ValueError: If the name is empty, longer than 100 characters, or not printable.
    """
    name = " ".join(text.split())
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(
            f"a label must have 1 to {_MAX_NAME} printable characters, got {text[:60]!r}"
        )
    return name


class SegmentList:
    """Labelled segments in a CSV file with the columns ``path,start,end,label``.

    Every change replaces the file immediately. Lines of videos that are not in the index are kept.

    Args:
        file: CSV file, which need not exist.

    Raises:
        ValueError: If the file exists but does not contain segments.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.segments: list[Segment] = []
        self._undo: list[list[Segment]] = []
        self._files = WatchedFiles("segment", file)
        if file.exists():
            self.segments = read_segments(str(file))

    @property
    def undo_depth(self) -> int:
        """Number of changes that can be undone."""
        return len(self._undo)

    def of(self, path: str) -> list[Segment]:
        """Return the segments of a video, sorted by start."""
        return sorted((s for s in self.segments if s.path == path), key=lambda s: (s.start, s.end))

    def classes(self) -> list[str]:
        """Return the different labels in the order of their first segment."""
        return list(dict.fromkeys(s.label for s in self.segments))

    def add(self, path: str, start: float, end: float, label: str) -> Segment:
        """Add a segment, which may overlap others, unless the list contains an equal one.

        Raises:
            ValueError: If the segment has no length, the label is not valid, the file cannot
                contain the path, or another program has changed the file.
            WriteError: If the file cannot be written. In this case, nothing changes.
        """
        if not (math.isfinite(start) and math.isfinite(end)) or start < 0:
            raise ValueError(
                f"a segment needs a start and an end in seconds, got {start} and {end}"
            )
        segment = Segment(path, round(start, _DIGITS), round(end, _DIGITS), class_name(label))
        check_span("the segment", segment.start, segment.end)
        if path != path.strip() or len(path.splitlines()) != 1:
            raise ValueError(
                f"the list of segments cannot contain the path {path!r:.200}. Rename the file"
            )
        if segment not in self.segments:
            self._change([*self.segments, segment])
        return segment

    def remove(self, segment: Segment) -> None:
        """Remove a segment; raise ValueError if there is no such segment, or as :meth:`add`."""
        if segment not in self.segments:
            raise ValueError("this segment no longer exists")
        self._change([s for s in self.segments if s != segment])

    def undo(self) -> None:
        """Undo the last change, if any."""
        if self._undo:
            self._write(self._undo[-1])
            self._undo.pop()

    def _change(self, segments: list[Segment]) -> None:
        """Write other segments, and remember the current ones for :meth:`undo`."""
        before = self.segments
        self._write(segments)
        self._undo = [*self._undo[1 - _UNDONE :], before]

    def _write(self, segments: list[Segment]) -> None:
        with self._files.writing():
            write_segment_file(self.file, segments)
        self.segments = segments
