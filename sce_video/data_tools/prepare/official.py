"""Official lists of a dataset: their content, their files, and the videos on disk.

The readers of all datasets raise FileNotFoundError if an official file is missing, with the
expected layout, and ValueError if a file is malformed, with the line or entry.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.text_tables import read_csv_lines
from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import read_text
from sce_video.utils.storage import walk_files

#: Optional folder from the user.
Folder = str | Path | None


@dataclass(frozen=True, slots=True)  # ImageNet has 1.3 million of these
class Entry:
    """One line of an official list: a name, and a label counted from 0 (-1 for none).

    Entries of two splits with the same name are the same video.
    """

    name: str
    label: int


@dataclass(frozen=True)
class Split:
    """One list to write."""

    list_name: str  # file name of the list, for example ``train_split1.txt``
    entries: tuple[Entry, ...]  # in the order of the official list
    published: int | None = None  # published number of videos; None if unknown
    published_files: int | None = None  # number that can be downloaded, if lower (Kinetics)
    per_class: int | None = None  # published number of videos per class, if it is constant (HMDB51)

    @property
    def title(self) -> str:
        """Return the name of the split in tables."""
        return self.list_name.removesuffix(".txt")


@dataclass(frozen=True)
class ClassMap:
    """A file of class names, whose line i (from 0) names label i, and their published number."""

    file_name: str
    names: tuple[str, ...]
    published: int | None = None


@dataclass(frozen=True)
class OfficialLists:
    """Content of the official files of a dataset."""

    name: str  # short name of the dataset, for file names and messages
    splits: tuple[Split, ...]  # the lists to write
    class_maps: tuple[ClassMap, ...]  # the class maps to write
    published_videos: int | None = None  # published number of different videos; None if unknown
    unused: tuple[str, ...] = ()  # names of videos that are listed but in no split (HMDB51)
    notes: tuple[str, ...] = ()  # notes to print
    kind: str = "video"  # kind of the listed files, ``video`` or ``image``

    def names(self) -> list[str]:
        """Return the name of each video once: first those in splits, then the unused ones."""
        used = (entry.name for split in self.splits for entry in split.entries)
        return list(dict.fromkeys((*used, *self.unused)))


def read_lines(path: Path, unique: bool = False) -> list[tuple[str, str]]:
    """Return ``PATH, line NUMBER`` and the stripped text of each line that is not blank.

    Raises:
        ValueError: If the file is empty or a folder, or if ``unique`` is set and a line occurs
            twice.
    """
    try:
        text = read_text(path, "surrogateescape")
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, but must be a text file") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    found = [(f"{path}, line {number}", line) for number, line in lines if line]
    if not found:
        raise ValueError(f"{path} is empty. Unpack it again from the official download")
    if unique:
        unique_entries((where, line, -1) for where, line in found)
    return found


def read_matches(path: Path, pattern: str, form: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the place and the match of each line; ValueError, with ``form``, without a match."""
    for where, line in read_lines(path):
        match = re.fullmatch(pattern, line)
        if match is None:
            raise ValueError(f"{where}: {line!r:.200} must be {form}")
        yield where, match


def read_csv(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield ``PATH, line NUMBER`` and the cells of each line of a table without a header."""
    return ((f"{path}, line {number}", cells) for number, cells in read_csv_lines(path))


def read_mat(path: Path, key: str) -> Any:
    """Read a variable from a MATLAB file of version 5, the version of the official files.

    Raises:
        MissingPackageError: If scipy cannot be imported.
        ValueError: If the file is damaged or lacks the variable.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingPackageError(
            f"reading {path} needs scipy, which cannot be imported ({error}). Run pip install -c "
            "requirements/constraints.txt -e '.[transfer]'"
        ) from error
    try:
        content = loadmat(path, squeeze_me=True, variable_names=[key])
    except Exception as error:  # a damaged file can raise any error
        reason = str(error)[:200] or type(error).__name__
        raise ValueError(f"{path} is not a readable MATLAB file: {reason}") from error
    if key not in content:
        raise ValueError(f"{path} has no variable {key!r}")
    return content[key]


def unique_entries(
    rows: Iterable[tuple[str, str, int]], shown: Callable[[str], str] = repr
) -> tuple[Entry, ...]:
    """Return the entries of rows (place, name, label); ValueError if a name is listed twice."""
    entries: dict[str, Entry] = {}
    for where, name, label in rows:
        if name in entries:
            raise ValueError(f"{where}: {shown(name)} is listed twice")
        entries[name] = Entry(name, label)
    return tuple(entries.values())


def read_class_file(name: str) -> tuple[str, ...]:
    """Return the class names in one of this package's text files."""
    path = Path(__file__).parent / "classes" / f"{name}.txt"
    return tuple(path.read_text(encoding="utf-8").splitlines())


def is_count(text: str) -> bool:
    """Return whether a text is a whole number that is small enough for a count."""
    return text.isdecimal() and len(text) <= 18


def first_existing(candidates: Sequence[Path], root: Path, layout: str, what: str) -> Path:
    """Return the first of the paths that exists.

    Raises:
        FileNotFoundError: If none exists. The message lists the paths and the expected layout.
    """
    for path in candidates:
        if path.exists():
            return path
    looked = ", ".join(str(path) for path in candidates)
    raise FileNotFoundError(
        f"there is no {what}. The command looked for {looked}\n"
        f"{root} must contain the unpacked official downloads:\n{layout}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a phrase that names the most similar known name, ignoring case."""
    by_lower = {other.lower(): other for other in known}
    # With cutoff=0, there is always a match, which shows what the names look like.
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0)
    return f"the nearest known name is {by_lower[close[0]]!r}" if close else "no names are known"


def check_disjoint(what: str, first: Split, second: Split) -> None:
    """Raise ValueError if a video is in both splits; ``what`` names their source."""
    common = {entry.name for entry in first.entries} & {entry.name for entry in second.entries}
    if common:
        raise ValueError(
            f"{len(common)} videos are in {first.title} and in {second.title} of {what}, for "
            f"example {min(common)}. Use the official files unchanged"
        )


# -- places of the files ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Located:
    """Place of a video, or its expected place if it is missing.

    Attributes:
        path: Path with ``/``, relative to the dataset's folder, or absolute if it is not below it.
        missing: Reason why the video counts as missing; None if it exists.
        remark: Unusual property of the path, for a note.
    """

    path: str
    missing: str | None = None
    remark: str | None = None


def files_below(folder: Path, extensions: Sequence[str] = VIDEO_EXTENSIONS) -> list[str]:
    """Return the sorted paths of all videos below a folder, relative to it, with ``/``.

    Hidden files and folders are left out, and links to folders are followed.
    """
    return sorted(path.replace(os.sep, "/") for path in walk_files(folder, extensions))


def relative_to_root(path: Path, root: Path) -> str:
    """Return a path for a list: relative to ``root``, or absolute if it is not below ``root``."""
    inside = os.path.relpath(path, root)
    if inside == os.pardir or inside.startswith(os.pardir + os.sep):
        inside = os.path.abspath(path)
    return inside.replace(os.sep, "/")


def _locate(
    root: Path,
    folder: Path,
    names: Sequence[str],
    paths: Collection[str],
    key: Callable[[str], str],
    several: str,
    remark: str | None = None,
    extension: str = "",
) -> dict[str, Located]:
    """Find the file of each name: the path itself, otherwise the only path with the same key.

    Args:
        root: Folder of the dataset.
        folder: Folder of the files.
        names: Names in the official lists.
        paths: Files below ``folder``, a set if there are many.
        key: Function that returns the key of a path, or of a name with its extension.
        several: Reason if several paths have the key.
        remark: Remark on a file that is found by its key.
        extension: Extension that is missing in names.
    """
    prefix = relative_to_root(folder, root)
    prefix = "" if prefix == "." else prefix + "/"
    by_key: dict[str, list[str]] = {}
    # Compute keys only if something is missing, because ImageNet has 1.3 million paths.
    if not set(names).issubset(paths):
        for path in sorted(paths):
            by_key.setdefault(key(path), []).append(path)
    located: dict[str, Located] = {}
    for name in names:
        if name in paths:
            located[name] = Located(prefix + name)
            continue
        others = by_key.get(key(name + extension), [])
        if len(others) == 1:
            located[name] = Located(prefix + others[0], remark=remark)
        else:
            reason = f"{several}: {', '.join(others)}" if others else "no such file"
            located[name] = Located(prefix + name + extension, reason)
    return located


@dataclass(frozen=True)
class Downloads:
    """Layout of a dataset's unpacked official downloads in its folder."""

    layout: str  # files in the folder, for messages and for ``--help``
    lists: tuple[str, ...] = ("",)  # sub-folders for the official lists, in order of preference
    files: tuple[str, ...] = ("",)  # sub-folders for the videos, in order of preference
    what: str = "videos"  # content of ``files``, for messages
    uncut: str = ""  # sub-folder of the long videos that clips are cut from
    extension: str = ""  # extension that the lists omit from video names

    def find(self, root: Path, folder: Folder, what: str, *names: str) -> Path:
        """Return an official file by any of its names, in ``folder`` if it is given.

        Raises:
            FileNotFoundError: If none exists. The message lists the paths and the layout.
        """
        folders = [Path(folder)] if folder else [root / name for name in self.lists]
        candidates = [parent / name for parent in folders for name in names]
        return first_existing(candidates, root, self.layout, what)

    def folder(self, root: Path, given: Folder = None) -> Path:
        """Return the folder of the videos, or ``given``; FileNotFoundError if none exists."""
        folders = [Path(given)] if given else [root / name for name in self.files]
        return first_existing(folders, root, self.layout, f"folder of {self.what}")

    def locate(
        self, root: Path, official: OfficialLists, given: Folder = None
    ) -> dict[str, Located]:
        """Return the locations of the videos by name (see :meth:`folder`).

        Names are paths below the folder. If there is no such file, case is ignored, because copies
        of UCF101 spell HandstandPushups differently. If the dataset has an ``extension``, names are
        file names without it, and files are found in any sub-folder.

        Returns:
            Location of every name. ``missing`` says why no file, or more than one file, matches.

        Raises:
            FileNotFoundError: If no folder of videos exists.
        """
        folder, names = self.folder(root, given), official.names()
        paths = set(files_below(folder))
        if self.extension:

            def stem(path: str) -> str:
                return os.path.splitext(os.path.basename(path))[0]

            several = "several files have its name"
            return _locate(root, folder, names, paths, stem, several, extension=self.extension)
        remark = "with other upper and lower case than in the official list"
        several = "several files differ from it in case only"
        return _locate(root, folder, names, paths, str.lower, several, remark)


MOVED = "in another folder than in the official archive"


def locate_images(root: Path, folder: Path, official: OfficialLists) -> dict[str, Located]:
    """Find the images of lists whose names are paths below ``folder``.

    An image that is not at its path is searched by its file name in the same first-level folder,
    because common scripts sort the images of ``val`` into class folders.
    """

    def top_and_name(path: str) -> str:
        return f"{path.partition('/')[0]}/{path.rpartition('/')[2]}"

    names = official.names()
    tops = {name.partition("/")[0] for name in names}
    paths = {f"{t}/{path}" for t in tops for path in files_below(folder / t, IMAGE_EXTENSIONS)}
    return _locate(root, folder, names, paths, top_and_name, "several files of that name", MOVED)


#: Seed of the original script, so that the same videos are drawn.
_SEED = 99999


def class_balanced(split: Split, samples: int) -> Split:
    """Draw about ``samples`` videos of a split, the same number from every class.

    This follows the SEVERE benchmark's small training sets, including the seed (Thoker et al. 2022;
    fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/utils.py). The number per class is
    rounded up, so 1,000 videos of UCF101 become 1,010. Classes with fewer videos keep all of them.

    Raises:
        ValueError: If there are fewer samples than classes.
    """
    labels = np.array([entry.label for entry in split.entries])
    classes = np.unique(labels)
    if samples < len(classes):
        raise ValueError(
            f"{samples} samples are fewer than the {len(classes)} classes of {split.title}"
        )
    wanted = math.ceil(samples / len(classes))
    random = np.random.RandomState(_SEED)  # the original script uses this generator
    chosen: list[int] = []
    for label in classes:
        of_class = np.flatnonzero(labels == label)
        count = min(wanted, len(of_class))
        chosen += of_class[random.choice(len(of_class), count, replace=False)].tolist()
    entries = tuple(split.entries[index] for index in chosen)
    return Split(f"{split.title}_{samples}.txt", entries)
