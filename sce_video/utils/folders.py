"""Search a folder for files."""

from __future__ import annotations

import os
from collections.abc import Sequence


def find_files(root: str | os.PathLike[str], extensions: Sequence[str]) -> list[str]:
    """All files below a folder with one of the extensions, relative to it, sorted.

    Hidden files and folders are left out. Links to folders are followed, each folder is visited
    once.

    Args:
        root: The folder; the list is empty if there is none.
        extensions: In lower case, with the dot; compared without regard to case.
    """
    paths: list[str] = []
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in files:
            if not name.startswith(".") and name.lower().endswith(tuple(extensions)):
                paths.append(os.path.relpath(os.path.join(folder, name), root))
    return sorted(paths)
