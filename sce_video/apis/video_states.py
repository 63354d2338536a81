"""The videos of a folder or a table, and the states by which changed ones are noticed."""

from __future__ import annotations

import os

from sce_video.datasets import scan_folder
from sce_video.datasets.source_names import is_table
from sce_video.datasets.sources import list_videos
from sce_video.datasets.tables.open_tables import read_table
from sce_video.datasets.tables.storage import is_remote

_STATE = ("path", "size", "source_mtime_ns")


def real_path(root: str | os.PathLike[str]) -> str:
    """A folder or table without links; the URI of a table in an object store as it is."""
    name = os.fspath(root)
    return name.rstrip("/") if is_remote(name) else os.path.realpath(name)


def video_states(root: str) -> dict[str, tuple[int, int]]:
    """(size, modification time in ns) of all videos by relative path, sorted.

    Of a row of a table they are the bytes of its packets and the time of the file that it was made
    from. A file that does not exist any more has (-1, -1).

    Raises:
        ValueError: there is no video.
        TableError, MissingPackageError: the table cannot be read.
    """
    if is_table(root):
        return _states_of_rows(root)
    videos = scan_folder(root)
    states = {}
    for path in sorted(videos.path(i) for i in range(len(videos))):
        try:
            status = os.stat(os.path.join(root, path))
        except OSError:  # a dangling link, or removed since; decoding reports the reason
            states[path] = (-1, -1)
        else:
            states[path] = (status.st_size, status.st_mtime_ns)
    return states


def _states_of_rows(table: str) -> dict[str, tuple[int, int]]:
    content = read_table(table).call("read", list(_STATE))
    columns = (content[name].to_pylist() for name in _STATE)
    found = {path: (size, time) for path, size, time in zip(*columns, strict=True)}  # newest last
    videos = list_videos(table)  # without rows of failed imports
    return {path: found[path] for path in (videos.path(i) for i in range(len(videos)))}
