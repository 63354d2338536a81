"""What an official list says, as plain data: classes, splits, videos, published counts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One line of an official list.

    Attributes:
        name: Of the video, unique in its data set: the same name in two splits is the same video.
        label: From 0.
    """

    name: str
    label: int


@dataclass(frozen=True)
class Split:
    """One list to be written.

    Attributes:
        list_name: File name of the list, for example ``train_split1.txt``.
        entries: In the order of the official list.
        published: Number of videos that the authors publish, None where there is no such number.
        published_files: How many of these can be had at all, where it is fewer (Kinetics).
        per_class: Published number of videos of every class, where it is one number (HMDB51).
    """

    list_name: str
    entries: tuple[Entry, ...]
    published: int | None = None
    published_files: int | None = None
    per_class: int | None = None

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.list_name.removesuffix(".txt")


@dataclass(frozen=True)
class ClassMap:
    """A file with one class name a line: line i, counted from 0, is the name of label i."""

    file_name: str
    names: tuple[str, ...]
    published: int


@dataclass(frozen=True)
class OfficialLists:
    """All that the official files of a data set say.

    Attributes:
        name: Short name of the data set, for file names and messages.
        splits: The lists to be written.
        class_maps: The class maps to be written.
        published_videos: Number of different videos, None where it is not published.
        unused: Names of videos that the lists name but put in no split (HMDB51).
        notes: Sentences for the user.
    """

    name: str
    splits: tuple[Split, ...]
    class_maps: tuple[ClassMap, ...]
    published_videos: int | None = None
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """All videos once: those of the splits in order, then the unused."""
        used = (entry.name for split in self.splits for entry in split.entries)
        return list(dict.fromkeys((*used, *self.unused)))


def read_lines(path: Path) -> list[tuple[int, str]]:
    """(line number from 1, text without surrounding blanks) of the lines that hold something.

    Raises:
        ValueError: The file is empty, or a folder.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, but should be a text file") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise ValueError(f"{path} is empty: unpack it again from the official download")
    return lines


def first_existing(candidates: Sequence[Path], root: Path, layout: str, what: str) -> Path:
    """The first of the paths that exists.

    Raises:
        FileNotFoundError: None does; the message shows what was looked for, and the layout.
    """
    for path in candidates:
        if path.exists():
            return path
    looked = ", ".join(str(path) for path in candidates)
    raise FileNotFoundError(
        f"no {what}: looked for {looked}\n"
        f"{root} must hold the official downloads as they unpack:\n{layout}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A phrase that names the nearest known name; case does not count."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0)
    return f"the nearest known name is {by_lower[close[0]]!r}" if close else "there are no names"


def check_disjoint(what: str, first: Split, second: Split) -> None:
    """Raise ValueError when a video is in both splits; ``what`` says whose they are."""
    common = {entry.name for entry in first.entries} & {entry.name for entry in second.entries}
    if common:
        raise ValueError(
            f"{len(common)} videos are in {first.title} and in {second.title} of {what}, for "
            f"example {min(common)}: take the official files as they are"
        )
