"""Labels given by hand, kept in the list and the class file that finetuning reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from zlib import crc32

import numpy as np

from sce_video.datasets.video_list import MAX_LABEL, list_line, read_annotation_list, split_segment
from sce_video.utils.files import read_bytes, read_text, remove_unfinished, write_text

#: Characters of the name of a label at most, chosen by hand.
_MAX_NAME = 100
_UNDONE = 200  # changes that can be taken back


@dataclass
class LabelList:
    """Labels of videos in a list ``path label`` and a file of class names.

    Every change is written at once; both files are replaced as a whole. Lines of videos that are
    not in the index are kept. Line *i* of the class file, counted from 0, names label *i*, as
    :class:`~sce_video.datasets.VideoDataset` reads ``ann_file`` and ``class_file``.

    Args:
        file: The list; the classes are beside it, ``labels.txt`` has ``labels_classes.txt``.

    Raises:
        ValueError: There is such a list, but it is none of labels, or lists a video twice.
    """

    file: Path
    labels: dict[str, int] = field(default_factory=dict, init=False)
    classes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        #: Of each change the number of classes before it, and the labels that it replaced.
        self._undo: list[tuple[int, dict[str, int | None]]] = []
        for file in (self.file, self.class_file):
            remove_unfinished(file.parent, file.name)
        if self.file.exists():
            self._read()
        self._stamp = self._stamps()

    @property
    def class_file(self) -> Path:
        """File of the class names."""
        return self.file.with_name(f"{self.file.stem}_classes.txt")

    @property
    def undo_depth(self) -> int:
        """Number of changes that can be taken back."""
        return len(self._undo)

    def number(self, name: str) -> int:
        """The number of a class; ValueError if there is none of this name."""
        if name not in self.classes:
            known = ", ".join(self.classes) or "none"
            raise ValueError(f"{self.file} has no label {name!r:.200}; its labels: {known}")
        return self.classes.index(name)

    def of_paths(self, paths: Iterable[str]) -> np.ndarray:
        """The label of each path, int64; -1 for none."""
        known = self.labels
        return np.array([known.get(path, -1) for path in paths], dtype=np.int64)

    def apply(self, paths: Iterable[str], name: str | None) -> tuple[int, list[str]]:
        """Give videos a label; returns how many changed, and the paths that no list can hold.

        Args:
            paths: As they stand in the list.
            name: Of the class, a new one or one of ``classes``; None removes the label.

        Raises:
            ValueError: the name, or none of the paths, can be written in a list; the files were
                changed by another program.
            WriteError: a file cannot be written; nothing is changed then.
        """
        paths = list(dict.fromkeys(paths))
        refused = [] if name is None else [path for path in paths if list_line(path, 0) is None]
        if refused and len(refused) == len(paths):
            raise ValueError(
                f"a list cannot hold the name {refused[0]!r:.200} (a line break, a blank at an "
                "end, or no text): rename the file and update the index"
            )
        before, label = len(self.classes), None
        if name is not None:
            name = class_name(name)
            label = self.classes.index(name) if name in self.classes else before
            if label > MAX_LABEL:
                raise ValueError(f"there are {before} classes, no more are possible")
        left_out = set(refused)
        old = {path: self.labels.get(path) for path in paths if path not in left_out}
        changed = {path: known for path, known in old.items() if known != label}
        if changed:
            classes = self.classes if name is None or label != before else [*self.classes, name]
            self._write(dict.fromkeys(changed, label), classes)
            self._undo = [*self._undo[1 - _UNDONE :], (before, changed)]
        return len(changed), refused

    def undo(self) -> list[str]:
        """Take the last change back; returns the paths whose labels changed."""
        if not self._undo:
            return []
        count, replaced = self._undo[-1]
        self._write(replaced, self.classes[:count])
        self._undo.pop()
        return list(replaced)

    def split(self, share: float = 0.25) -> tuple[Path, ...]:
        """Write two lists beside this one, to train and to test; returns their paths.

        Of each class, ``share`` of its videos (at least one, if it has two) are for the test,
        chosen by a hash of the path: a further label moves few of the others. Of segments it is
        this list alone: finetuning holds whole recordings out.

        Raises:
            ValueError: no class has two videos.
        """
        if any(map(split_segment, self.labels)):
            return (self.file,)
        labels = np.fromiter(self.labels.values(), np.uint64, len(self.labels))
        encoded = (path.encode("utf-8", "surrogateescape") for path in self.labels)
        hashed = np.fromiter(map(crc32, encoded), np.uint64, len(self.labels))
        # Checksums of names that are alike are alike too: Fibonacci hashing takes them apart.
        hashed = (hashed * np.uint64(0x9E3779B97F4A7C15)) ^ (hashed << np.uint64(32))
        hashed *= np.uint64(0xBF58476D1CE4E5B9)
        order = np.argsort(labels << np.uint64(44) | hashed >> np.uint64(20), kind="stable")
        sizes = np.bincount(labels.astype(np.int64))
        firsts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        counts = np.where(sizes > 1, np.maximum(1, np.round(share * sizes)), 0)
        tested = np.zeros(len(labels), dtype=np.int64)
        tested[order] = np.arange(len(labels)) - firsts < np.repeat(counts, sizes)
        if not tested.any():
            raise ValueError("label at least two videos of a class: one to train, one to test")
        names = [self.file.with_name(f"{self.file.stem}_{part}.txt") for part in ("train", "test")]
        lines = self._lines()
        for name, chosen in zip(names, (tested == 0, tested == 1), strict=True):
            write_text(name, "".join(compress(lines, chosen.tolist())))
        return names[0], names[1]

    def _read(self) -> None:
        class_file = str(self.class_file) if self.class_file.exists() else None
        if read_bytes(self.file).strip():
            videos = read_annotation_list(str(self.file), class_file=class_file)
            if (videos.labels < 0).any():
                raise ValueError(
                    f"{self.file} lists videos without labels: give another file (--labels)"
                )
            for i, label in enumerate(videos.labels.tolist()):
                if self.labels.setdefault(videos.path(i), label) != label:
                    raise ValueError(
                        f"{self.file} gives {videos.path(i)!r} two labels: remove one of the lines"
                    )
            self.classes = list(videos.classes)
        elif class_file is not None:  # all labels were taken back
            text = read_text(self.class_file, "surrogateescape")
            self.classes = [class_name(line) for line in text.splitlines() if line.strip()]
        if not self.classes and self.labels:  # numbers without names
            self.classes = [str(number) for number in range(max(self.labels.values()) + 1)]

    def _write(self, changes: dict[str, int | None], classes: list[str]) -> None:
        """Change labels and classes in both files, then here; None removes a label."""
        if self._stamps() != self._stamp:
            raise ValueError(
                f"{self.file} was changed by another program since this page was opened: start the "
                "page again to read it; the last label was not written"
            )
        before = self.labels
        labels = {**before, **changes}
        self.labels = {path: label for path, label in labels.items() if label is not None}
        writers = [
            (self.class_file, "".join(f"{name}\n" for name in classes)),
            (self.file, "".join(self._lines())),
        ]
        if len(classes) < len(self.classes):  # every label of the list has a name, in between too
            writers.reverse()
        try:
            for file, text in writers:
                write_text(file, text)
        except BaseException:
            self.labels = before
            raise
        finally:
            self._stamp = self._stamps()
        self.classes = classes

    def _lines(self) -> list[str]:
        # A tab in a path would be taken for the one before the label.
        return [
            f"{path}{chr(9) if chr(9) in path else ' '}{label}\n"
            for path, label in self.labels.items()
        ]

    def _stamps(self) -> list[tuple[int, int] | None]:
        """Size and time of the two files."""
        files = (self.file, self.class_file)
        stats = [file.stat() if file.exists() else None for file in files]
        return [None if s is None else (s.st_size, s.st_mtime_ns) for s in stats]


def label_file(folder: str | Path, given: str | os.PathLike | None) -> Path:
    """The list of labels of an index: the given one, else ``labels.txt`` in its folder."""
    return Path(folder, "labels.txt") if given is None else Path(given)


def class_name(text: str) -> str:
    """The name as it is written: one space between words.

    Raises:
        ValueError: it is empty, longer than 100 characters, or has characters that are not printed.
    """
    name = " ".join(text.split())
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(
            f"a label is a name of 1 to {_MAX_NAME} printable characters, got {text[:60]!r}"
        )
    return name
