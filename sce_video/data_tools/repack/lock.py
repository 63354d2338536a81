"""Which runs may write to an output folder at the same time.

Shards of one plan share the folder, so they need a lock that several runs hold together. filelock
has shared locks only on top of SQLite, which must not lie on a network file system, so this module
uses ``flock`` itself.
"""

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
    """Lock an output folder for one plan, shared with the other shards of that plan.

    Every run removes temporary files and failed outputs, so two runs that make the same files
    would destroy each other's. Shards of one plan make different files; each shard's journal has a
    lock of its own. A file system without locks admits every run.

    Args:
        parts: Folder of the journals; made if needed.
        base: Prefix of the names of the plan's results.
        count: Number of shards.

    Raises:
        ValueError: A run of another plan is writing to the folder.
        OSError: The folder cannot be written.
    """
    parts.mkdir(parents=True, exist_ok=True)
    own = parts / f"{base}run-of-{count}.lock"
    with _open(own) as held:
        with _open(parts / _MASTER) as master:  # two runs must not check at the same time
            _lock(master, fcntl.LOCK_EX)
            for other in sorted(parts.glob(_RUNS)):
                if other != own:
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
                "it; only shards of one list, all with the same N in --shard I/N, may run at once"
            ) from None


def _open(path: Path) -> TextIO:
    try:
        return open(path, "a+")
    except PermissionError:
        return open(path)  # another user's lock file; reading suffices to see whether it is locked


def _lock(file: TextIO, mode: int) -> None:
    try:
        fcntl.flock(file, mode)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks
