"""Disk faults for tests: a limit of file sizes, a changed bit; a folder's content to compare."""

from __future__ import annotations

import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writing past ``size`` bytes fails with EFBIG, as with ``ulimit -f``; Python ignores SIGXFSZ.

    Shared memory and the files that pytest captures output in are limited too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def damage(path: Path) -> str:
    """Flip one bit in the middle of the largest tensor; returns the record's name."""
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda info: info.file_size)
        header = record.header_offset
    content = bytearray(path.read_bytes())
    name_length, extra_length = np.frombuffer(content[header + 26 : header + 30], "<u2").tolist()
    content[header + 30 + name_length + extra_length + record.file_size // 2] ^= 8
    path.write_bytes(content)
    return record.filename
