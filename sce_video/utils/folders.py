"""Search a folder for files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence


def find_files(
    root: str | os.PathLike[str],
    extensions: Sequence[str],
    skipped_folders: Collection[str] = (),
    follow_links: bool = True,
) -> list[str]:
    """All files below a folder with one of the extensions, relative to it, sorted.

    Hidden files and folders are left out; each folder is visited once.

    Args:
        root: The folder; the list is empty if there is none.
        extensions: In lower case, with the dot; compared without regard to case.
        skipped_folders: Names of folders that are left out.
        follow_links: Whether links to folders are followed.
    """
    return sorted(walk_files(root, extensions, skipped_folders, follow_links))


def walk_files(
    root: str | os.PathLike[str],
    extensions: Sequence[str],
    skipped_folders: Collection[str] = (),
    follow_links: bool = True,
) -> Iterator[str]:
    """The files of :func:`find_files`, as they are found."""
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=follow_links):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(
            name for name in subfolders if name[0] != "." and name not in skipped_folders
        )
        for name in files:
            if not name.startswith(".") and name.lower().endswith(tuple(extensions)):
                yield os.path.relpath(os.path.join(folder, name), root)
