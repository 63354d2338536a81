"""Who may write to an output folder at the same time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_MASTER = "master.lock"
_RUNS = "*run-of-*.lock"


@contextlib.contextmanager
def run_lock(parts: Path, base: str, count: int) -> Iterator[None]:
    """Hold an output folder for one plan, together with the other shards of that plan.

    Every run removes temporary files and failed outputs, so two that make the same files would
    destroy each other's. Shards of one plan make different files, whatever their order; each
    shard's journal has a lock of its own. A file system without locks lets everybody in.

    Args:
        parts: Folder of the journals; made if needed.
        base: Of the names of the plan's results.
        count: Of the shards.

    Raises:
        ValueError: A run of another plan is under way.
        OSError: The folder cannot be written.
    """
    parts.mkdir(parents=True, exist_ok=True)
    mine = parts / f"{base}run-of-{count}.lock"
    with _open(mine) as held:
        with _open(parts / _MASTER) as master:  # so that two do not look at the same time
            _lock(master, fcntl.LOCK_EX)
            for other in sorted(parts.glob(_RUNS)):
                if other != mine:
                    _check_free(other, parts.parent)
            _lock(held, fcntl.LOCK_SH)
        yield


def _check_free(path: Path, folder: Path) -> None:
    with _open(path) as file:
        try:
            _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run ({path.name.removesuffix('.lock')}) is writing to {folder}: wait for "
                "it; only shards of one list, all with the same I/N's N, may run at once"
            ) from None


def _open(path: Path) -> TextIO:
    try:
        return open(path, "a+")
    except PermissionError:
        return open(path)  # another user's, which is enough to see its lock


def _lock(file: TextIO, how: int) -> None:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks
