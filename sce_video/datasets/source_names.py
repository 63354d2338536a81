"""What the text that names a video, or a set of videos, is: a table, or a row of one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

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
