"""Content of official lists: classes, splits, videos, published counts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)  # ImageNet has 1.3 million
class Entry:
    """One line of an official list.

    Attributes:
        name: Name of the video; the same name in two splits is the same video.
        label: Counted from 0; -1 means that the list has none.
    """

    name: str
    label: int


@dataclass(frozen=True)
class Split:
    """One list to write.

    Attributes:
        list_name: File name of the list, for example ``train_split1.txt``.
        entries: In the order of the official list.
        published: Published number of videos, None without one.
        published_files: Number of these that can still be downloaded, if it is lower (Kinetics).
        per_class: Published number of videos per class, if all classes have the same (HMDB51).
    """

    list_name: str
    entries: tuple[Entry, ...]
    published: int | None = None
    published_files: int | None = None
    per_class: int | None = None

    @property
    def title(self) -> str:
        """Name of the split in tables."""
        return self.list_name.removesuffix(".txt")


@dataclass(frozen=True)
class ClassMap:
    """A file with one class name per line: line i, counted from 0, is the name of label i.

    Attributes:
        file_name: Of the file.
        names: Of the classes.
        published: Published number of classes, None without one.
    """

    file_name: str
    names: tuple[str, ...]
    published: int | None = None


@dataclass(frozen=True)
class OfficialLists:
    """Content of the official files of a data set.

    Attributes:
        name: Short name of the data set, for file names and messages.
        splits: The lists to write.
        class_maps: The class maps to write.
        published_videos: Published number of different videos, None without one.
        unused: Names of videos that are listed but in no split (HMDB51).
        notes: Notes to print.
        kind: What is listed, ``video`` or ``image``: how files are checked, and for messages.
    """

    name: str
    splits: tuple[Split, ...]
    class_maps: tuple[ClassMap, ...]
    published_videos: int | None = None
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = "video"

    def names(self) -> list[str]:
        """All videos once: those of the splits in order, then the unused."""
        used = (entry.name for split in self.splits for entry in split.entries)
        return list(dict.fromkeys((*used, *self.unused)))


def read_lines(path: Path) -> list[tuple[int, str]]:
    """(line number from 1, stripped text) of the lines that are not blank.

    Raises:
        ValueError: The file is empty or a folder.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, but must be a text file") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise ValueError(f"{path} is empty: unpack it again from the official download")
    return lines


def is_count(text: str) -> bool:
    """Whether a text is a whole number of a size that a count can have."""
    return text.isdecimal() and len(text) <= 18


def first_existing(candidates: Sequence[Path], root: Path, layout: str, what: str) -> Path:
    """The first of the paths that exists.

    Raises:
        FileNotFoundError: None exists; the message lists the paths and the expected layout.
    """
    for path in candidates:
        if path.exists():
            return path
    looked = ", ".join(str(path) for path in candidates)
    raise FileNotFoundError(
        f"no {what}: looked for {looked}\n"
        f"{root} must hold the unpacked official downloads:\n{layout}"
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """A phrase with the most similar known name, compared without regard to case."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0)
    return f"the nearest known name is {by_lower[close[0]]!r}" if close else "no names are known"


def check_disjoint(what: str, first: Split, second: Split) -> None:
    """Raise ValueError if a video is in both splits; ``what`` names their source."""
    common = {entry.name for entry in first.entries} & {entry.name for entry in second.entries}
    if common:
        raise ValueError(
            f"{len(common)} videos are in {first.title} and in {second.title} of {what}, for "
            f"example {min(common)}: use the official files unchanged"
        )
