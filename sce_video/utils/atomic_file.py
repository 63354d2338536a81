"""Atomic files: complete or absent, whatever happens while they are written."""

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
    """A hidden path beside ``path`` to write to, renamed to ``path`` when the block succeeds.

    If the block raises, the file at ``path`` stays as it was. The folder is made if needed, and
    the new content is on the disk before the old file is replaced.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Machines that share the disk may have processes of the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically; paths in it that are not UTF-8 keep their bytes."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="surrogateescape"))


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")
