"""UCF101: the official lists (ucfTrainTestlist) and folder (UCF-101)."""

from __future__ import annotations

from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    first_existing,
    locate_by_name,
    nearest,
    read_lines,
)

LAYOUT = """\
  UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi   (UCF101.rar)
  ucfTrainTestlist/classInd.txt                         (UCF101TrainTestSplits-RecognitionTask.zip)
  ucfTrainTestlist/{trainlist,testlist}{01,02,03}.txt"""

# Soomro et al. 2012; numbers of lines in the official lists.
PUBLISHED_VIDEOS = 13320
PUBLISHED_CLASSES = 101
PUBLISHED = {1: (9537, 3783), 2: (9586, 3734), 3: (9624, 3696)}


def read_ucf101(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read classInd.txt, trainlist0N.txt and testlist0N.txt.

    Args:
        root: Folder of the data set.
        annotations: Folder of the lists, ``root/ucfTrainTestlist`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed line, an unknown class, a video listed twice; the message names file
            and line.
    """
    folder = annotations or root / "ucfTrainTestlist"
    classes = read_class_index(
        first_existing([folder / "classInd.txt"], root, LAYOUT, "class index")
    )
    splits = []
    for number, counts in PUBLISHED.items():
        pair = []
        for part, published in zip(("train", "test"), counts, strict=True):
            path = first_existing(
                [folder / f"{part}list0{number}.txt"], root, LAYOUT, f"{part} list {number}"
            )
            entries = read_split_list(path, classes, labelled=part == "train")
            pair.append(Split(f"{part}_split{number}.txt", entries, published))
        check_disjoint(str(folder), *pair)
        splits += pair
    return OfficialLists(
        name="ucf101",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, PUBLISHED_CLASSES),),
        published_videos=PUBLISHED_VIDEOS,
    )


def read_class_index(path: Path) -> tuple[str, ...]:
    """The names of classInd.txt (lines such as ``1 ApplyEyeMakeup``), in order of their numbers.

    Raises:
        ValueError: A malformed line, a name listed twice, numbers that are not 1, 2, 3, ...
    """
    names: list[str] = []
    for number, line in read_lines(path):
        index, _, name = line.partition(" ")
        where = f"{path}, line {number}"
        if index != str(len(names) + 1) or not name.strip():
            raise ValueError(
                f"{where}: {line!r} must be '{len(names) + 1} CLASS': classes are numbered from 1 "
                "without gaps"
            )
        if name.strip() in names:
            raise ValueError(f"{where}: class {name.strip()!r} is listed twice")
        names.append(name.strip())
    return tuple(names)


def read_split_list(path: Path, classes: tuple[str, ...], labelled: bool) -> tuple[Entry, ...]:
    """The videos of a list with lines ``CLASS/FILE.avi NUMBER`` (labelled) or ``CLASS/FILE.avi``.

    Labels are the numbers minus one. Class names are compared without regard to case: there are
    copies of the lists that spell HandstandPushups as HandStandPushups.

    Raises:
        ValueError: A malformed line, an unknown class, the number of another class, a video listed
            twice; the message names file and line.
    """
    label_of = {name.lower(): label for label, name in enumerate(classes)}
    entries: dict[str, Entry] = {}
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        words = line.split()
        folder, _, name = words[0].partition("/")
        if len(words) != (2 if labelled else 1) or not folder or not name or "/" in name:
            expected = "CLASS/FILE.avi NUMBER" if labelled else "CLASS/FILE.avi"
            raise ValueError(f"{where}: {line!r} must be '{expected}'")
        label = label_of.get(folder.lower())
        if label is None:
            raise ValueError(
                f"{where}: unknown class {folder!r}; {nearest(folder, classes)} (classInd.txt)"
            )
        if labelled and words[1] != str(label + 1):
            raise ValueError(
                f"{where}: {line!r:.200} gives number {words[1]:.40}, but classInd.txt numbers "
                f"{folder} {label + 1}"
            )
        if words[0] in entries:
            raise ValueError(f"{where}: {words[0]!r} is listed twice")
        entries[words[0]] = Entry(words[0], label)
    return tuple(entries.values())


def locate_ucf101(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the videos, by name; ``videos`` is ``root/UCF-101`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    folder = first_existing([videos or root / "UCF-101"], root, LAYOUT, "folder of videos")
    return locate_by_name(root, folder, official.names())
