"""Find the files of the names in official lists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.utils.folders import find_files

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
