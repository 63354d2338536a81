"""What the image data sets share: class folders, and files found by their names in lists."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from sce_video.data_tools.preparation.files import Located, relative_to_root
from sce_video.data_tools.preparation.official import Entry, OfficialLists, read_lines
from sce_video.datasets.video_list import IMAGE_EXTENSIONS
from sce_video.utils.folders import find_files

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
