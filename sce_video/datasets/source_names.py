"""What the text that names a video, or a set of videos, is: a table, a row of one, a stream."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

#: Schemes of network streams.
_SCHEMES = ("rtsp", "rtsps", "rtmp", "rtmps", "srt", "udp", "tcp")
_ROW = re.compile(r"(.*?\.lance)/+(.+)", re.S)
_TABLE = re.compile(r".*\.lance/*", re.S)


def is_table(path: Any) -> bool:
    """Whether a path or URL names a table where a folder may be given: it ends with ``.lance``."""
    return isinstance(path, str | os.PathLike) and _TABLE.fullmatch(os.fspath(path)) is not None


def is_table_folder(folder: str | Path) -> bool:
    """Whether a path is that of a table itself, and no folder of an index."""
    return "://" in str(folder) or (Path(folder) / "_versions").is_dir()


def split_row_path(path: str) -> tuple[str, str] | None:
    """Table and path in it of ``TABLE.lance/PATH``; None for anything else."""
    found = _ROW.fullmatch(path)
    return None if found is None else (found[1], found[2])


def is_camera(source: Any) -> bool:
    """Whether a video is the address of a network stream such as ``rtsp://...``."""
    return isinstance(source, str) and source.partition("://")[0].lower() in _SCHEMES


def is_stream(source: Any) -> bool:
    """Whether a video is a network stream, a named pipe, or ``-`` for the standard input."""
    if is_camera(source) or source == "-":
        return True
    try:
        return isinstance(source, str | os.PathLike) and stat.S_ISFIFO(os.stat(source).st_mode)
    except (OSError, ValueError):
        return False
