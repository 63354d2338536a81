"""Official lists of a data set: their content, and where the files that they name are.

Classes, splits and published counts; smaller lists drawn from them; files found by their names;
and clips that official files give as times in long videos, as a table from which repack cuts them.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS
from sce_video.utils.files import write_text
from sce_video.utils.storage import find_files


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
    # cutoff=0: a name that is far off still shows what names look like.
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


RESPELLED = "with other upper and lower case than in the official list"


@dataclass(frozen=True, slots=True)
class Located:
    """Where a video is, or is expected.

    Attributes:
        path: Relative to the data set's folder (absolute if it is not below), with ``/``. The
            expected path if the file is missing.
        missing: Why it counts as missing; None if it exists.
        remark: What is unusual about its path; the user is told how often that occurs.
    """

    path: str
    missing: str | None = None
    remark: str | None = None


def list_videos(folder: Path) -> list[str]:
    """All video files below a folder at any depth, sorted, relative to it.

    Hidden files and folders are left out; links to folders are followed.
    """
    return sorted(path.replace(os.sep, "/") for path in find_files(folder, VIDEO_EXTENSIONS))


def relative_to_root(path: Path, root: Path) -> str:
    """``path`` as written in lists: relative to ``root``, absolute if it is not below."""
    inside = os.path.relpath(path, root)
    if inside == os.pardir or inside.startswith(os.pardir + os.sep):
        return os.path.abspath(path).replace(os.sep, "/")
    return inside.replace(os.sep, "/")


def locate_by_name(root: Path, folder: Path, names: Sequence[str]) -> dict[str, Located]:
    """Find files whose names in the lists are their paths below ``folder``.

    A name without an exact match is compared without regard to case, and matches if exactly one
    file fits: UCF101 has v_HandStandPushups_... in the folder HandstandPushups, and copies of the
    data set differ in the spelling.
    """
    prefix = relative_to_root(folder, root)
    prefix = "" if prefix == "." else prefix + "/"
    paths = list_videos(folder)
    exact = set(paths)
    by_lower: dict[str, list[str]] = {}
    for path in paths:
        by_lower.setdefault(path.lower(), []).append(path)
    located: dict[str, Located] = {}
    for name in names:
        others = by_lower.get(name.lower(), [])
        if name in exact:
            located[name] = Located(prefix + name)
        elif len(others) == 1:
            located[name] = Located(prefix + others[0], remark=RESPELLED)
        elif others:
            reason = f"several files differ from it in case only: {', '.join(others)}"
            located[name] = Located(prefix + name, reason)
        else:
            located[name] = Located(prefix + name, "no such file")
    return located


def locate_by_stem(
    root: Path, folder: Path, names: Sequence[str], paths: Sequence[str], extension: str = ".mp4"
) -> dict[str, Located]:
    """Find files by names without extension, which lists of clips give.

    Args:
        root: Folder of the data set.
        folder: Folder of the clips.
        names: Of the lists.
        paths: The videos below ``folder``, as :func:`list_videos` returns them.
        extension: That a missing file is expected to have.
    """
    prefix = relative_to_root(folder, root)
    prefix = "" if prefix == "." else prefix + "/"
    by_stem: dict[str, list[str]] = {}
    for path in paths:
        by_stem.setdefault(os.path.splitext(os.path.basename(path))[0], []).append(path)
    located: dict[str, Located] = {}
    for name in names:
        found = by_stem.get(name, [])
        if len(found) == 1:
            located[name] = Located(prefix + found[0])
        else:
            reason = f"several files have its name: {', '.join(found)}" if found else "no such file"
            located[name] = Located(prefix + name + extension, reason)
    return located


@dataclass(frozen=True)
class Downloads:
    """Where the unpacked official downloads of a set lie in its folder.

    Attributes:
        layout: Shown in messages and by ``--help``.
        lists: Sub-folders for the official lists, in order of preference.
        files: Sub-folders for the videos, likewise.
        what: What the latter hold, for messages.
        uncut: Sub-folder of the long videos that clips are cut from.
        by_stem: The lists name videos without extension, instead of by paths.
    """

    layout: str
    lists: tuple[str, ...] = ("",)
    files: tuple[str, ...] = ("",)
    what: str = "videos"
    uncut: str = ""
    by_stem: bool = False

    def find(self, root: Path, folder: Path | None, what: str, *names: str) -> Path:
        """An official file by any of its names, in ``folder`` if that is given.

        Raises:
            FileNotFoundError: There is none; the message lists the paths and the layout.
        """
        folders = [folder] if folder else [root / name for name in self.lists]
        candidates = [folder / name for folder in folders for name in names]
        return first_existing(candidates, root, self.layout, what)

    def folder(self, root: Path, given: Path | None = None) -> Path:
        """The folder of the videos, ``given`` if there is one.

        Raises:
            FileNotFoundError: It does not exist.
        """
        folders = [given] if given else [root / name for name in self.files]
        return first_existing(folders, root, self.layout, f"folder of {self.what}")

    def locate(
        self, root: Path, official: OfficialLists, given: Path | None = None
    ) -> dict[str, Located]:
        """Locations of the videos by name, see :meth:`folder`."""
        folder, names = self.folder(root, given), official.names()
        if self.by_stem:
            return locate_by_stem(root, folder, names, list_videos(folder))
        return locate_by_name(root, folder, names)


MOVED = "in another folder than in the official archive"
_WNID = re.compile(r"n[0-9]{8}")


def list_images(folder: Path) -> list[str]:
    """All image files below a folder at any depth, sorted, relative to it, with ``/``."""
    return sorted(path.replace(os.sep, "/") for path in find_files(folder, IMAGE_EXTENSIONS))


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders that are WordNet ids (``n01440764``), sorted."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if _WNID.fullmatch(e.name) and e.is_dir())


def read_wnids(path: Path) -> tuple[str, ...]:
    """The WordNet ids of a file with one per line, sorted: the label is the rank.

    Raises:
        ValueError: A line that is none, or one listed twice; the message names file and line.
    """
    found: list[str] = []
    for number, line in read_lines(path):
        if not _WNID.fullmatch(line):
            raise ValueError(f"{path}, line {number}: {line!r:.100} is no WordNet id (n01440764)")
        if line in found:
            raise ValueError(f"{path}, line {number}: {line} is listed twice")
        found.append(line)
    return tuple(sorted(found))


def check_class_folders(
    folder: Path, present: Collection[str], wanted: Sequence[str], archive: str
) -> None:
    """Raise ValueError if a class has no folder: it would shift the labels of all after it."""
    missing = [wnid for wnid in wanted if wnid not in present]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(wanted)} class folders: {shown}. Unpack "
            f"{archive} again"
        )


def entries_of_folders(root: Path, part: str, wnids: Sequence[str]) -> tuple[Entry, ...]:
    """The images of ``root/part/WNID/`` for each class, sorted.

    Raises:
        ValueError: A folder without any image.
    """
    entries: list[Entry] = []
    for label, wnid in enumerate(wnids):
        names = list_images(root / part / wnid)
        if not names:
            raise ValueError(f"{root / part / wnid} holds no image: unpack its archive again")
        entries += [Entry(f"{part}/{wnid}/{name}", label) for name in names]
    return tuple(entries)


def locate_images(root: Path, folder: Path, official: OfficialLists) -> dict[str, Located]:
    """Find the images of lists whose names are paths below ``folder``.

    A name that is not there is searched for by its file name in the same first-level folder:
    common scripts sort the images of ``val`` into folders of classes.
    """
    names = official.names()
    prefix = relative_to_root(folder, root)
    prefix = "" if prefix == "." else prefix + "/"
    tops = sorted({name.partition("/")[0] for name in names})
    paths = {f"{top}/{path}" for top in tops for path in list_images(folder / top)}
    # Only where something is missing: ImageNet has 1.3 million paths to sort.
    moved: dict[tuple[str, str], list[str]] = {}
    if not paths.issuperset(names):
        for path in sorted(paths):
            moved.setdefault((path.partition("/")[0], path.rpartition("/")[2]), []).append(path)
    located: dict[str, Located] = {}
    for name in names:
        if name in paths:
            located[name] = Located(prefix + name)
            continue
        others = moved.get((name.partition("/")[0], name.rpartition("/")[2]), [])
        if len(others) == 1:
            located[name] = Located(prefix + others[0], remark=MOVED)
        else:
            reason = (
                f"several files of that name: {', '.join(others)}" if others else "no such file"
            )
            located[name] = Located(prefix + name, reason)
    return located


_SEED = 99999


def class_balanced(split: Split, samples: int) -> Split:
    """About ``samples`` videos of a split, the same number of every class.

    As the SEVERE benchmark draws its small training sets, with its seed (Thoker et al. 2022;
    fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/utils.py): ``samples`` divided by the
    classes and rounded up, so 1,000 of UCF101 are 1,010 videos; classes with fewer give all.

    Args:
        split: With a label for every entry, in the order of the official list.
        samples: At least one per class.

    Raises:
        ValueError: Fewer samples than classes.
    """
    labels = np.array([entry.label for entry in split.entries])
    classes = np.unique(labels)
    if samples < len(classes):
        raise ValueError(
            f"{samples} samples are fewer than the {len(classes)} classes of {split.title}"
        )
    wanted = math.ceil(samples / len(classes))
    random = np.random.RandomState(_SEED)  # the generator of the original
    chosen: list[int] = []
    for label in classes:
        of_class = np.flatnonzero(labels == label)
        count = min(wanted, len(of_class))
        chosen += of_class[random.choice(len(of_class), count, replace=False)].tolist()
    return replace(
        split,
        list_name=f"{split.title}_{samples}.txt",
        entries=tuple(split.entries[index] for index in chosen),
        published=None,
        per_class=None,
    )


@dataclass(frozen=True)
class Clip:
    """A part of a video.

    Attributes:
        video: File name of the video, without extension.
        start: Seconds from the first frame.
        end: Seconds from the first frame.
        name: File name of the clip, without extension.
    """

    video: str
    start: float
    end: float
    name: str


def write_segments(path: Path, root: Path, folder: Path, clips: Iterable[Clip]) -> str:
    """Write a table of segments for ``repack``, and say what to do with it.

    Args:
        path: Of the table; a segment of a video that is not on disk is left out, and counted.
        root: Folder of the data set; paths in the table are relative to it.
        folder: Folder of the videos.
        clips: What to cut.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: Two videos have one name, or none of the videos is there.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of videos {folder}: name it with --videos")
    paths: dict[str, str] = {}
    for name in list_videos(folder):
        video = relative_to_root(folder / name, root)
        other = paths.setdefault(Path(name).stem, video)
        if other != video:
            raise ValueError(f"{other} and {video} have one name: move one of them away")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "start", "end", "output"))
    written, missing, videos = 0, 0, set()
    for clip in clips:
        if clip.video not in paths:
            missing += 1
            videos.add(clip.video)
            continue
        row = (paths[clip.video], f"{clip.start:.3f}", f"{clip.end:.3f}", f"{clip.name}.mp4")
        writer.writerow(row)
        written += 1
    if not written:
        raise ValueError(
            f"{folder} has none of the {len(videos)} videos, for example {min(videos)}"
        )
    write_text(path, text.getvalue())
    lost = f"; {missing:,} clips of {len(videos):,} videos that are not there" if missing else ""
    return f"{path}: {written:,} clips of {len(paths):,} videos{lost}"
