"""Labelled videos from class folders, tables, lists or CSV files, and checks for their classes.

This module does not need torch, so that invalid input is refused before torch is imported.
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

_SHOWN = 5  # maximum number of videos or classes in a message


@dataclass(frozen=True)
class GroupColumns:
    """Names of further columns of a CSV file.

    Attributes:
        group: Column of a property that must not help to recognise a class, such as the person, the
            scene or the recording. Groups are tested and held out as a whole.
        fold: Column of folds. Each fold is tested once. ``NAME=VALUE`` also chooses a fold.
    """

    group: str | None = None
    fold: str | None = None

    def check(self, source: str | None) -> GroupColumns:
        """Return these columns; ValueError if any is set but ``source`` is not a CSV file."""
        given = self.group or self.fold
        if not given:
            return self
        if source is None:
            raise ValueError(f"{given!r} names a column of a CSV file, but no file is given")
        if os.path.isdir(source) or Path(source).suffix.lower() not in DELIMITERS:
            raise ValueError(
                f"{given!r} names a column of a CSV file, but {source} is not a CSV file. List "
                "the videos in a CSV file with the columns path and label and this column"
            )
        return self

    @property
    def fold_name(self) -> str | None:
        """Return the name of the column of folds, without ``=VALUE``."""
        return None if self.fold is None else self.fold.partition("=")[0]


NO_COLUMNS = GroupColumns()


@dataclass(frozen=True)
class LabelledVideos:
    """Videos with labels.

    Attributes:
        source: Source as the user gave it.
        root: Folder or table that the paths are relative to.
        videos: Paths, labels from 0, and class names. Lists of plain numbers have no class names.
        listed: Whether the videos are listed. Otherwise they are all videos below ``root``, with
            the labels of their folders or rows.
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
        """Return the number of class names or, without names, the largest label plus one."""
        return len(self.videos.classes) or int(self.videos.labels.max()) + 1

    def name(self, label: int) -> str:
        """Return the name of a label, or its number if it has no name."""
        return self.videos.classes[label] if self.videos.classes else str(label)

    def paths(self) -> list[str]:
        """Return the paths, relative to ``root``."""
        return [self.videos.path(i) for i in range(len(self))]

    def where(self, index: int) -> str:
        """Return file and line of a listed video, for messages."""
        line = self.lines[index] if self.lines else line_number(self.source, index)
        return f"{self.source}, line {line}"

    def subset(self, indices: np.ndarray) -> LabelledVideos:
        """Return the videos at some indices. Labels and class names stay the same."""
        chosen = indices.tolist()
        groups, folds = (
            tuple(c[i] for i in chosen) if c else () for c in (self.groups, self.folds)
        )
        videos = self.videos.select(indices)
        return replace(self, videos=videos, listed=True, lines=(), groups=groups, folds=folds)

    def in_fold(self, columns: GroupColumns) -> np.ndarray:
        """Return the mask (N,) of the fold that ``NAME=VALUE`` chooses, by default the first fold.

        Raises:
            ValueError: If the fold does not exist or is the only one.
        """
        names = sorted(set(self.folds), key=_in_order)
        chosen = (columns.fold or "").partition("=")[2] or names[0]
        if chosen not in names or len(names) < 2:
            raise ValueError(
                f"{self.source} has the folds {', '.join(names)}, of which {chosen!r} cannot be "
                "held out. There must be two or more, and one of them must be chosen, for example "
                f"--fold-column {columns.fold_name}={names[0]}"
            )
        return np.array([fold == chosen for fold in self.folds])

    def groups_file(self, folder: str | Path, name: str) -> str | None:
        """Return the path ``folder/NAME_groups.csv``; None without groups and folds."""
        if not (self.groups or self.folds):
            return None
        return str(Path(folder, f"{name}_groups.csv").resolve())

    def repeated(self, rule: str = "") -> list[str]:
        """Describe videos that are listed or labelled twice, and groups that are in two folds.

        Args:
            rule: End of the first sentence, which explains how repeated rows are handled.
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
            f"{again} rows of {self.source} repeat a video or segment, {len(other)} of them with a "
            f"different label{rule}"
        ]
        for i, old in other[:_SHOWN]:
            names = [f"{self.name(labels[at])!r} ({self.where(at)})" for at in (old, i)]
            lines.append(f"  {self.videos.path(i)}: {names[0]} and {names[1]}")
        return lines

    def few(self, count: int, seed: int) -> LabelledVideos:
        """Draw ``count`` videos of every class with a seed.

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

        If the listed videos have groups or folds, they are written to :meth:`groups_file`. With
        ``write=False``, nothing is written yet, because the folder may still contain an earlier
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
                f"a list cannot contain the name {refused[0]!r:.200}, because it has a line break "
                f"or a space at an end, or is not text. Rename it in {self.source}"
            )
        if classes:
            write_text(names, "".join(f"{c}\n" for c in classes))
        if (groups := self.groups_file(folder, name)) is not None:
            columns = {"path": self.paths(), "group": self.groups, "fold": self.folds}
            kept = {column: values for column, values in columns.items() if values}
            write_csv(groups, [[*kept], *zip(*kept.values(), strict=True)])
        return settings


def _in_order(name: str) -> tuple[int, str]:
    """Return a key that sorts numbers by value, so that 2 precedes 10."""
    return (int(name) if name.isdecimal() and name.isascii() else -1, name)


def read_groups(file: str, count: int) -> tuple[list[str], list[str]]:
    """Read the groups and folds of ``count`` samples, each empty if there are none.

    ValueError unless :meth:`LabelledVideos.dataset` wrote the file for these samples.
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
        source: Folder with a sub-folder for each class, table with labels (``v.lance``), list with
            lines ``path label``, or ``.csv`` or ``.tsv`` file with the columns path and label,
            whose header may be missing. The class names of a list are read from the file that the
            search page writes next to it, if it exists (``labels_classes.txt`` for ``labels.txt``
            and ``labels_train.txt``).
        data_root: Folder or table that the paths in a file are relative to. None uses the folder of
            the file or the current folder, whichever contains one of the first videos.
        fewest: Minimum number of classes.
        columns: Columns of groups and folds of a CSV file.
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
            f"({len(unlabelled)} of {len(found)} videos). Move it to the sub-folder of its class"
        )
    count = 0 if len(unlabelled) else len(np.unique(found.videos.labels))
    if count < fewest:
        raise ValueError(
            f"{source} has {count or 'no'} class{'es' * (count != 1)}, but a classifier needs two "
            "or more. Use a folder with a sub-folder for each class, a list with lines 'path "
            "label', or a CSV file with the columns path and label"
        )
    return found


def _relative(videos: VideoList, root: str) -> VideoList:
    """Make the absolute paths of videos relative to ``root`` if they lie below it."""
    below = os.path.join(os.path.abspath(root), "")
    paths = [videos.path(i) for i in range(len(videos))]
    if not any(path.startswith(below) for path in paths):
        return videos
    relative = [path.removeprefix(below) for path in paths]
    return VideoList.from_paths(relative, videos.labels.tolist(), videos.classes)


def _check_segments(listed: LabelledVideos) -> None:
    """Raise ValueError for a listed segment that has no video, or that ends after its video."""
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
    """Read a CSV file. Labels are ranks of the class names."""
    lines = list(read_csv_lines(source))
    if not lines:
        raise ValueError(f"{source} is empty, but must have a line for each video")
    before, _, last = lines[0][1][0].rpartition(" ")
    if len(lines[0][1]) == 1 and before and last.isdecimal() and more == NO_COLUMNS:
        return _read_list(source)  # SlowFast's lists of paths and labels are also called .csv
    path, label = columns = _columns(source, lines[0][1])
    rows = lines[lines[0][1][path].lower() in PATH_COLUMNS :]
    for number, row in rows:
        if len(row) <= max(columns) or not row[path] or not row[label]:
            raise ValueError(f"{source}, line {number}: the path or the label is missing in {row}")
    if not rows:
        raise ValueError(f"{source} contains a header but no videos")
    paths = [row[path] for _, row in rows]
    header = [name.lower() for name in lines[0][1]]
    if "start" in header and "end" in header:  # each row is a segment
        times = [header.index("start"), header.index("end")]
        for i, (number, row) in enumerate(rows):
            start, end = (row[column] if column < len(row) else "" for column in times)
            span = segment_of_row(f"{source}, line {number}", start, end)
            paths[i] = segment_path(paths[i], *span)
    names = {row[label] for _, row in rows}
    # Sort numeric names by value, so that 2 precedes 10.
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
    """Return the cells of a column; empty if ``name`` is None. ValueError if a cell is empty."""
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
    """Return the positions of the columns of paths and labels, judging by the first line."""
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

    ``data_root`` applies to sources that are files. ``columns`` apply to ``train``, and the groups
    also to ``test`` if it has this column. All arguments are explained at :func:`read_labelled`.
    """
    files = [path for path in (train, test) if path is not None and os.path.isfile(path)]
    roots = {path: data_root if path in files or not files else None for path in (train, test)}
    first = read_labelled(train, roots[train], columns=columns, extensions=extensions)
    if test is None:
        return first, None
    shared = GroupColumns(columns.group if _has_column(test, columns.group) else None)
    second = read_labelled(test, roots[test], columns=shared, extensions=extensions)
    check_pair(first, second)
    return first, second


def _has_column(source: str, name: str | None) -> bool:
    """Return whether a source is a CSV file that has a column of this name."""
    if name is None or not os.path.isfile(source) or Path(source).suffix.lower() not in DELIMITERS:
        return False
    return name in next(read_csv_lines(source), (0, []))[1]


def tell_repeated(*sets: LabelledVideos | None) -> None:
    """Print which videos are listed several times or with several labels."""
    for line in (line for one in sets if one is not None for line in one.repeated()):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def check_pair(train: LabelledVideos, test: LabelledVideos) -> None:
    """Raise ValueError unless the classes of ``test`` are those of ``train``."""
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
    shown = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN)
    return shown or "none"


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the class names of a dataset; empty if it has none."""
    metainfo = getattr(dataset, "metainfo", None) or {}
    return tuple(metainfo["classes"]) if "classes" in metainfo else ()


def check_same_classes(
    first: Sequence[str],
    second: Sequence[str],
    names: tuple[str, str] = ("the queries have", "the gallery has"),
) -> None:
    """Raise ValueError if the classes of two datasets differ.

    Labels are ranks of the folder names. A class that only one dataset has would shift the labels
    of later classes, and every metric would be wrong.

    Args:
        first: Class names of one dataset (:func:`classes_of`); empty to compare nothing.
        second: Class names of the other dataset.
        names: Names of the two datasets, each with a verb, for the message.
    """
    if first and second and tuple(first) != tuple(second):
        only = [sorted(set(a) - set(b)) for a, b in ((first, second), (second, first))]
        raise ValueError(
            "the sub-folders of the two datasets differ, so their labels do not agree: only "
            f"{names[0]} {only[0]}, only {names[1]} {only[1]}. Use the same classes in both, or "
            "annotation lists"
        )


def check_dataset_labels(dataset: Any, num_classes: int) -> None:
    """Raise ValueError unless every sample has a label in ``[0, num_classes)``.

    A dataset without an attribute ``labels`` is not checked.
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
