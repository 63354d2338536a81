"""Atomic writing: a file is either the old or the complete new one, also after a crash."""

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
    """Yield a temporary path in the same folder, renamed to ``path`` if the block succeeds.

    If the block raises, the file at ``path`` is unchanged. The folder is created if needed, and the
    new content is flushed to disk before the old file is replaced.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several machines on one file system may have the same id.
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
