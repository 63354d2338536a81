"""Real write errors for tests: a limit of file sizes, and a folder's content to compare."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
