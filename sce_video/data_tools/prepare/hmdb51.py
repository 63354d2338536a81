"""HMDB51: the official splits (testTrainMulti_7030_splits) and folder (hmdb51_org)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    first_existing,
    locate_by_name,
    read_lines,
)

LAYOUT = """\
  hmdb51_org/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi   (hmdb51_org.rar, and the
                                                     archives of all classes in it, in hmdb51_org/)
  testTrainMulti_7030_splits/brush_hair_test_split{1,2,3}.txt       (test_train_splits.rar)"""

# Kuehne et al. 2011: 70 training and 30 test videos per class and split.
PUBLISHED_VIDEOS = 6766
PUBLISHED_CLASSES = 51
PER_CLASS = {"train": 70, "test": 30}
_MARKS = {"0": None, "1": "train", "2": "test"}
_FILE_NAME = re.compile(r"(.+)_test_split([123])\.txt")


def read_hmdb51(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read all ``CLASS_test_split{1,2,3}.txt``; labels number the sorted class names.

    Args:
        root: Folder of the data set.
        annotations: Folder of the splits, ``root/testTrainMulti_7030_splits`` unless given.

    Raises:
        FileNotFoundError: There are no split files, or a class lacks one of its three.
        ValueError: A malformed line, an unknown mark, a video listed twice; the message names file
            and line.
    """
    folder = annotations or root / "testTrainMulti_7030_splits"
    first_existing([folder], root, LAYOUT, "folder of splits")
    found = [m for name in os.listdir(folder) if (m := _FILE_NAME.fullmatch(name))]
    classes = tuple(sorted({match[1] for match in found if not match[1].startswith(".")}))
    if not classes:
        raise FileNotFoundError(
            f"no CLASS_test_split1.txt in {folder}\n"
            f"{root} must hold the unpacked official downloads:\n{LAYOUT}"
        )
    splits, unused = [], []
    for number in (1, 2, 3):
        parts: dict[str, list[Entry]] = {"train": [], "test": []}
        for label, name in enumerate(classes):
            path = first_existing(
                [folder / f"{name}_test_split{number}.txt"], root, LAYOUT, f"split {number}"
            )
            for video, part in read_class_split(path).items():
                if part is None:
                    unused.append(f"{name}/{video}")
                else:
                    parts[part].append(Entry(f"{name}/{video}", label))
        for part, entries in parts.items():
            per_class = PER_CLASS[part]
            published = PUBLISHED_CLASSES * per_class
            list_name = f"{part}_split{number}.txt"
            splits.append(Split(list_name, tuple(entries), published, per_class=per_class))
    return OfficialLists(
        name="hmdb51",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, PUBLISHED_CLASSES),),
        published_videos=PUBLISHED_VIDEOS,
        unused=tuple(unused),
    )


def read_class_split(path: Path) -> dict[str, str | None]:
    """File name -> "train", "test" or None (not used), from lines ``NAME.avi MARK``.

    Mark 1 is train, 2 is test, 0 is neither. Names contain characters such as ``# & ( ; [ !``.

    Raises:
        ValueError: A malformed line, an unknown mark, a name listed twice; the message names file
            and line.
    """
    parts: dict[str, str | None] = {}
    for number, line in read_lines(path):
        name, _, mark = line.rpartition(" ")
        name = name.strip()
        where = f"{path}, line {number}"
        if not name or "/" in name or mark not in _MARKS:
            raise ValueError(
                f"{where}: {line!r} must be 'NAME.avi MARK' with mark 0 (not used), 1 (train) "
                "or 2 (test)"
            )
        if name in parts:
            raise ValueError(f"{where}: {name!r} is listed twice")
        parts[name] = _MARKS[mark]
    return parts


def locate_hmdb51(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the videos, by name; ``videos`` is ``root/hmdb51_org`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    folder = first_existing([videos or root / "hmdb51_org"], root, LAYOUT, "folder of videos")
    return locate_by_name(root, folder, official.names())
