"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A hidden name beside ``path``, to write to; the file gets ``path`` when the block ends well.

    Until then, and when the block ends with an exception, what was at ``path`` stays. The folder is
    made; what was written reaches the disk before the old file goes.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several machines, whose numbers may be the same, write to one disk.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield unfinished
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text whole or not at all; names of files that are no UTF-8 keep their bytes."""
    with atomic_file(path) as unfinished:
        unfinished.write_bytes(text.encode("utf-8", errors="surrogateescape"))


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Write plain data whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")
