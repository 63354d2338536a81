"""Labelled videos in the formats of users.

They are class folders, a table, a list, or a CSV file of videos or segments. Nothing here needs
torch, so wrong input is refused before the libraries are imported.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.segments import check_segment_files, segment_of_row, segment_path
from sce_video.datasets.sources import (
    dataset_settings,
    is_table,
    list_root,
    list_videos,
    scan_folder,
)
from sce_video.datasets.text_tables import DELIMITERS, read_csv_lines, write_csv
from sce_video.datasets.video_list import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    VIDEO_EXTENSIONS,
    VideoList,
    line_number,
    read_annotation_list,
    split_segment,
    write_annotation_list,
)
from sce_video.utils.command import printable
from sce_video.utils.files import write_text

_SHOWN = 5  # maximum number of listed videos with several labels


@dataclass(frozen=True)
class GroupColumns:
    """Columns of a CSV file in addition to path and label, by their names in its header.

    Attributes:
        group: Column of what videos have in common and must not help to recognise a class, such as
            the person, the scene or the recording. Groups are tested and held out as a whole.
        fold: Column of folds. Each fold is tested once. ``NAME=VALUE`` also chooses a fold.
    """

    group: str | None = None
    fold: str | None = None

    def check(self, source: str | None) -> GroupColumns:
        """Return these columns; ValueError if some are set but ``source`` is not a CSV file."""
        given = self.group or self.fold
        if not given:
            return self
        if source is None:
            raise ValueError(f"{given!r} names a column of a CSV file, but no file is given")
        if os.path.isdir(source) or Path(source).suffix.lower() not in DELIMITERS:
            raise ValueError(
                f"{given!r} names a column of a CSV file, but {source} is not a CSV file. Give "
                "the videos as a CSV file with the columns path, label and this one"
            )
        return self

    @property
    def fold_name(self) -> str | None:
        """Return the name of the column of folds, without the value."""
        return None if self.fold is None else self.fold.partition("=")[0]


NO_COLUMNS = GroupColumns()


@dataclass(frozen=True)
class LabelledVideos:
    """Videos with a label each, made by :func:`read_labelled`.

    Attributes:
        source: Source as the user gave it.
        root: Folder or table that the paths are relative to.
        videos: Paths, labels from 0, and class names unless the labels come from a list of plain
            numbers.
        listed: Whether these are not simply all videos below ``root`` with the labels of their
            folders or rows.
        lines: Line number of each video in a CSV file.
        groups: Group of each video, from a column of the CSV file; empty without groups.
        folds: Fold of each video, from a column of the CSV file; empty without folds.
        extensions: Extensions by which a folder was listed; None for the usual ones.
    """

    source: str
    root: str
    videos: VideoList
    listed: bool = False
    lines: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    extensions: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def num_classes(self) -> int:
        """Return K: the number of names, or the largest number of a list plus one."""
        return len(self.videos.classes) or int(self.videos.labels.max()) + 1

    def name(self, label: int) -> str:
        """Return the name of a label; its number if it has none."""
        return self.videos.classes[label] if self.videos.classes else str(label)

    def paths(self) -> list[str]:
        """Return the paths, relative to ``root``."""
        return [self.videos.path(i) for i in range(len(self))]

    def where(self, index: int) -> str:
        """Return file and line of a listed video, for messages."""
        line = self.lines[index] if self.lines else line_number(self.source, index)
        return f"{self.source}, line {line}"

    def subset(self, indices: np.ndarray) -> LabelledVideos:
        """Return the videos at some indices, with the numbers and names of all classes."""
        chosen = indices.tolist()
        groups, folds = (
            tuple(c[i] for i in chosen) if c else () for c in (self.groups, self.folds)
        )
        videos = self.videos.select(indices)
        return replace(self, videos=videos, listed=True, lines=(), groups=groups, folds=folds)

    def in_fold(self, columns: GroupColumns) -> np.ndarray:
        """Return the mask (N,) of the fold that ``NAME=VALUE`` chooses, by default the first one.

        Raises:
            ValueError: If the fold does not exist or is the only one.
        """
        names = sorted(set(self.folds), key=_in_order)
        chosen = (columns.fold or "").partition("=")[2] or names[0]
        if chosen not in names or len(names) < 2:
            raise ValueError(
                f"{self.source} has the folds {', '.join(names)}, of which {chosen!r} cannot be "
                f"held out. Give one of two or more: --fold-column {columns.fold_name}={names[0]}"
            )
        return np.array([fold == chosen for fold in self.folds])

    def write_groups(self, folder: str | Path, name: str) -> str | None:
        """Write ``folder/NAME_groups.csv`` for :func:`read_groups`; None without groups and folds.

        Raises:
            WriteError: If the file cannot be written.
        """
        columns = {"path": self.paths(), "group": self.groups, "fold": self.folds}
        kept = {name: values for name, values in columns.items() if values}
        if len(kept) == 1:
            return None
        file = Path(folder, f"{name}_groups.csv").resolve()
        write_csv(file, [[*kept], *zip(*kept.values(), strict=True)])
        return str(file)

    def repeated(self, rule: str = "") -> list[str]:
        """Describe videos that are listed or labelled twice, and groups that are in two folds.

        Args:
            rule: Text that follows the first sentence and says how repeated rows are handled.
        """
        labels: list[int] = self.videos.labels.tolist()
        first: dict[str, int] = {}
        files = (os.path.normpath(path) for path in self.paths())
        kept = [first.setdefault(file, i) for i, file in enumerate(files)]
        again = sum(i != old for i, old in enumerate(kept))
        other = [(i, old) for i, old in enumerate(kept) if labels[i] != labels[old]]
        pairs = {*zip(self.groups, self.folds, strict=False)}
        torn = sum(count > 1 for count in Counter(group for group, _ in pairs).values())
        lines = [
            f"{torn} groups of {self.source} are in several folds, so their videos are compared "
            "with each other"
        ] * (torn > 0)
        if not again:
            return lines
        lines += [
            f"{again} rows of {self.source} name a video or segment again, {len(other)} of them "
            f"with another label{rule}"
        ]
        for i, old in other[:_SHOWN]:
            names = [f"{self.name(labels[at])!r} ({self.where(at)})" for at in (old, i)]
            lines.append(f"  {self.videos.path(i)}: {names[0]} and {names[1]}")
        return lines

    def few(self, count: int, seed: int) -> LabelledVideos:
        """Draw ``count`` videos of every class, using the seed.

        Raises:
            ValueError: If a class has fewer videos.
        """
        found = np.bincount(self.videos.labels, minlength=self.num_classes)
        least = int(found.argmin())
        if count > found[least]:
            raise ValueError(
                f"--few {count} is too many, because {self.source} has only {found[least]} videos "
                f"of the class {self.name(least)!r}"
            )
        random = np.random.default_rng(seed)
        order = random.permutation(len(self))
        labels = self.videos.labels[order]
        chosen = [order[labels == c][:count] for c in range(self.num_classes)]
        return self.subset(np.sort(np.concatenate(chosen)))

    def dataset(self, folder: str | Path, name: str, write: bool = True) -> dict[str, Any]:
        """Return settings for a dataset's config, and write the list ``folder/NAME.txt`` if needed.

        Without ``write``, the list is only named, because the folder may still contain another
        training run.

        Raises:
            ValueError: If a path or a class has a name that a list cannot contain.
            WriteError: If a list cannot be written.
        """
        settings: dict[str, Any] = dataset_settings(
            self.root if is_table(self.root) else os.path.abspath(self.root), self.extensions
        )
        if not self.listed:
            return settings
        file = Path(folder, f"{name}.txt").resolve()
        settings["ann_file"] = str(file)
        names = file.with_name("classes.txt")
        if self.videos.classes:
            settings["class_file"] = str(names)
        if not write:
            return settings
        refused = write_annotation_list(str(file), self.paths(), self.videos.labels.tolist())
        classes = self.videos.classes
        refused += [c for c in classes if c != c.strip() or len(c.splitlines()) != 1]
        if refused:
            raise ValueError(
                f"a list cannot contain the name {refused[0]!r:.200} (a line break, a space at an "
                f"end, or no text). Rename it in {self.source}"
            )
        if classes:
            write_text(names, "".join(f"{c}\n" for c in classes))
        return settings


def _in_order(name: str) -> tuple[int, str]:
    """Return a key for sorting names, which puts 2 before 10."""
    return (int(name) if name.isdecimal() and name.isascii() else -1, name)


def read_groups(file: str, count: int) -> tuple[list[str], list[str]]:
    """Read the groups and the folds of ``count`` samples, each empty if there are none.

    The file is one of :meth:`LabelledVideos.write_groups`; ValueError for anything else.
    """
    lines = [row for _, row in read_csv_lines(file)]
    header, rows = lines[0] if lines else [], lines[1:]
    if len(rows) != count or not {*header} & {"group", "fold"}:
        raise ValueError(f"{file} does not have the groups or folds of the {count} tested samples")
    groups, folds = (
        [row[header.index(name)] for row in rows] if name in header else []
        for name in ("group", "fold")
    )
    return groups, folds


def read_labelled(
    source: str,
    data_root: str | None = None,
    fewest: int = 2,
    columns: GroupColumns = NO_COLUMNS,
    extensions: Sequence[str] | None = None,
) -> LabelledVideos:
    """Read the labelled videos of a source.

    Args:
        source: Folder with a sub-folder for each class; table with labels (``v.lance``); list of
            ``path label``; or ``.csv`` or ``.tsv`` file with the columns path and label, with or
            without a header. The class names of a list are read from the file that the search page
            writes next to it, if it exists (``labels_classes.txt`` for ``labels.txt`` and
            ``labels_train.txt``).
        data_root: Folder or table that the paths of a file are relative to. None uses the file's
            own folder or the current one.
        fewest: Minimum number of classes, default 2.
        columns: Columns of groups and folds to read from a CSV file.
        extensions: Extensions by which a folder is listed; None for
            :func:`~sce_video.datasets.sources.listed_extensions`.

    Raises:
        ValueError: If the source or a column does not exist, a video has no label, or there are too
            few classes.
    """
    columns.check(source)
    if os.path.isdir(source) or is_table(source):
        if data_root is not None:
            raise ValueError(
                f"{source} is a folder, but --data-root belongs to a list or a CSV file. Remove "
                "--data-root"
            )
        videos = list_videos(source) if is_table(source) else scan_folder(source, extensions)
        found = LabelledVideos(source, source, videos, extensions=extensions)
    elif not os.path.exists(source):
        raise ValueError(f"there is no folder, list or CSV file {source!r}")
    else:
        table = Path(source).suffix.lower() in DELIMITERS
        found = _read_csv(source, columns) if table else _read_list(source)
        root = list_root(source, data_root, found.videos)
        found = replace(found, root=root, videos=_relative(found.videos, root))
        _check_segments(found)
    unlabelled = np.flatnonzero(found.videos.labels < 0)
    if len(unlabelled) < len(found) and len(unlabelled):
        raise ValueError(
            f"{found.videos.path(int(unlabelled[0]))!r} of {source} has no label "
            f"({len(unlabelled)} of {len(found)} videos): put it into the sub-folder of its class"
        )
    count = 0 if len(unlabelled) else len(np.unique(found.videos.labels))
    if count < fewest:
        raise ValueError(
            f"{source} has {count or 'no'} class{'es' * (count != 1)}, but a classifier needs two "
            "or more. Give a folder with a sub-folder for each class, a list of 'path label', or a "
            "CSV file with the columns path and label"
        )
    return found


def _relative(videos: VideoList, root: str) -> VideoList:
    """Return the videos with absolute paths below the root made relative to it."""
    below = os.path.join(os.path.abspath(root), "")
    paths = [videos.path(i) for i in range(len(videos))]
    if not any(path.startswith(below) for path in paths):
        return videos
    relative = [path.removeprefix(below) for path in paths]
    return VideoList.from_paths(relative, videos.labels.tolist(), videos.classes)


def _check_segments(listed: LabelledVideos) -> None:
    """Raise ValueError, with file and line, for a segment without a video, or beyond its end."""
    found = (split_segment(os.path.join(listed.root, path)) for path in listed.paths())
    ends = ((i, segment[0], segment[2]) for i, segment in enumerate(found) if segment is not None)
    check_segment_files((listed.where(i), file, end) for i, file, end in ends)


def _read_list(source: str) -> LabelledVideos:
    stem = Path(source).stem
    stems = (stem, stem.removesuffix("_train"), stem.removesuffix("_test"))
    files = [Path(source).with_name(f"{name}_classes.txt") for name in stems]
    class_file = next((str(file) for file in files if file.is_file()), None)
    return LabelledVideos(source, "", read_annotation_list(source, class_file=class_file), True)


def _read_csv(source: str, more: GroupColumns) -> LabelledVideos:
    """Return the videos of a table of text; labels are names, numbered in sorted order."""
    lines = list(read_csv_lines(source))
    if not lines:
        raise ValueError(f"{source} is empty: it must have a line for each video")
    before, _, last = lines[0][1][0].rpartition(" ")
    if len(lines[0][1]) == 1 and before and last.isdecimal() and more == NO_COLUMNS:
        return _read_list(source)  # SlowFast's lists of path and label are named .csv
    path, label = columns = _columns(source, lines[0][1])
    rows = lines[lines[0][1][path].lower() in PATH_COLUMNS :]
    for number, row in rows:
        if len(row) <= max(columns) or not row[path] or not row[label]:
            raise ValueError(f"{source}, line {number}: the path or the label is missing in {row}")
    if not rows:
        raise ValueError(f"{source} contains a header but no videos")
    paths = [row[path] for _, row in rows]
    header = [name.lower() for name in lines[0][1]]
    if "start" in header and "end" in header:  # a row is a segment, and a sample
        times = [header.index("start"), header.index("end")]
        for i, (number, row) in enumerate(rows):
            start, end = (row[column] if column < len(row) else "" for column in times)
            span = segment_of_row(f"{source}, line {number}", start, end)
            paths[i] = segment_path(paths[i], *span)
    names = {row[label] for _, row in rows}
    # Sort 2 before 10 if all of them are numbers.
    numbers = all(name.isdecimal() and name.isascii() for name in names)
    classes = sorted(names, key=_in_order if numbers else None)
    number_of = {name: number for number, name in enumerate(classes)}
    labels = [number_of[row[label]] for _, row in rows]
    groups, folds = (_column(source, lines[0][1], rows, n) for n in (more.group, more.fold_name))
    videos, numbered = VideoList.from_paths(paths, labels, classes), [number for number, _ in rows]
    return LabelledVideos(source, "", videos, True, tuple(numbered), groups, folds)


def _column(
    source: str, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], name: str | None
) -> tuple[str, ...]:
    """Return a column's cells by its name; empty for None. ValueError if any is missing."""
    if name is None:
        return ()
    if name not in header:
        known = ", ".join(header)
        raise ValueError(f"{source} has no column {name!r}. Its first line is {known:.200}")
    at = header.index(name)
    for number, row in rows:
        if len(row) <= at or not row[at]:
            raise ValueError(f"{source}, line {number}: the column {name!r} is empty")
    return tuple(row[at] for _, row in rows)


def _columns(source: str, first: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of the columns with the path and the label, from the first line."""
    names = [name.lower() for name in first]
    found = [
        next((names.index(n) for n in known if n in names), None)
        for known in (PATH_COLUMNS, LABEL_COLUMNS)
    ]
    if found[0] is None and len(first) == 2 and first[0].lower().endswith(VIDEO_EXTENSIONS):
        return 0, 1
    if found[0] is None or found[1] is None:
        what = "path" if found[0] is None else "label"
        raise ValueError(
            f"{source} has no column {what}. Its first line is {','.join(first)!r:.200}. Name the "
            "columns path and label in the first line"
        )
    return found[0], found[1]


def read_pair(
    train: str,
    test: str | None,
    data_root: str | None = None,
    columns: GroupColumns = NO_COLUMNS,
    extensions: Sequence[str] | None = None,
) -> tuple[LabelledVideos, LabelledVideos | None]:
    """Read the videos to train and to test a classifier, which must have the same classes.

    ``data_root`` applies to sources that are files, and ``columns`` apply to ``train``. See
    :func:`read_labelled`.
    """
    found = []
    files = [path for path in (train, test) if path is not None and os.path.isfile(path)]
    for path in (train, test):
        root = data_root if path in files or not files else None
        own = columns if path is train else NO_COLUMNS
        found.append(
            None if path is None else read_labelled(path, root, columns=own, extensions=extensions)
        )
    first, second = found
    assert first is not None
    if second is not None:
        check_pair(first, second)
    return first, second


def tell_repeated(*sets: LabelledVideos | None) -> None:
    """Print which videos of labelled sets are listed several times, or with several labels."""
    for line in (line for one in sets if one is not None for line in one.repeated()):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def check_pair(train: LabelledVideos, test: LabelledVideos) -> None:
    """Raise ValueError unless two sets have the same classes: names, or numbers of the first."""
    first, second = (
        {s.name(i) for i in np.unique(s.videos.labels).tolist()} for s in (train, test)
    )
    named = bool(train.videos.classes) or bool(test.videos.classes)
    only = [sorted(a - b) for a, b in ((first, second), (second, first))]
    if (named and train.videos.classes != test.videos.classes) or only[1]:
        raise ValueError(
            f"the classes of {train.source} and {test.source} differ: only in the first "
            f"{_some(only[0])}, only in the second {_some(only[1])}"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5])) + ", ..." * (len(names) > 5)
    return shown or "none"
