"""Which file a loader worker had at hand when it died."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

_SLOTS, _WIDTH = 256, 1024  # workers of a loader, bytes of a path
_PID = 8
_PATIENCE = 2.0  # seconds until the end of a process must have shown
#: torch's words for a dead worker, of both of its ways to notice.
_DEATH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.+)", re.S)


class WorkerCrashError(RuntimeError):
    """A loader worker ended without a Python error: killed, or crashed inside a decoder."""


class CurrentFiles:
    """A table in shared memory: each worker's process id and the file it is working on.

    A decoder that crashes takes its process with it, and no exception is left to say where. The
    process that waits for the worker reads the table instead.
    """

    def __init__(self) -> None:
        self._table = torch.zeros(_SLOTS, _PID + _WIDTH, dtype=torch.uint8).share_memory_()

    @contextmanager
    def holding(self, path: str) -> Iterator[None]:
        """In a worker, for the time of the block: this file is at hand. Elsewhere nothing."""
        worker = get_worker_info()
        if worker is None or worker.id >= _SLOTS:
            yield
            return
        row = self._table[worker.id].numpy()
        name = os.fsencode(path)[-_WIDTH:]  # the end of a path tells more than its beginning
        row[_PID:] = 0
        row[_PID : _PID + len(name)] = list(name)
        row[:_PID] = list(os.getpid().to_bytes(_PID, "little"))
        try:
            yield
        finally:
            row[:_PID] = 0

    def of_the_dead(self) -> dict[int, str]:
        """Process ids that held a file and are no longer there, with their files."""
        found = {}
        for row in self._table.numpy():
            pid = int.from_bytes(row[:_PID].tobytes(), "little")
            if pid and not _is_alive(pid):
                found[pid] = os.fsdecode(row[_PID:].tobytes().rstrip(b"\0"))
        return found

    def of(self, pid: int) -> str | None:
        """The file that a process was working on; None if it held none."""
        for row in self._table.numpy():
            if int.from_bytes(row[:_PID].tobytes(), "little") == pid:
                return os.fsdecode(row[_PID:].tobytes().rstrip(b"\0"))
        return None


@contextmanager
def report_worker_crashes(dataloader: DataLoader) -> Iterator[None]:
    """While batches are taken in the block: a worker's death is told with the file at hand.

    Raises:
        WorkerCrashError: in the place of torch's RuntimeError, which names the process only, or of
            the broken connection that is noticed where the worker dies while it hands on a batch.
    """
    try:
        yield
    except RuntimeError as error:
        found = _DEATH.search(str(error))
        if found is None:
            raise
        pids = [int(word) for word in re.findall(r"\d+", found.group(1))]
        files = [
            path for held in _tables(dataloader.dataset) for path in map(held.of, pids) if path
        ]
        raise _death(pids, files, found.group(2).strip()) from error
    except (ConnectionError, EOFError) as error:
        dead = _wait_for_the_dead(dataloader)
        if not dead:
            raise
        raise _death(list(dead), list(dead.values()), f"{type(error).__name__}.") from error


def _death(pids: list[int], files: list[str], cause: str) -> WorkerCrashError:
    at_hand = f"while working on {', '.join(files)}" if files else "with no file at hand"
    advice = (
        "If this happens again with the same file, take it out of the list (tools/data/verify.py "
        "finds such files)"
        if files
        else "It may have been killed for want of memory: lower num_workers or batch_size"
    )
    return WorkerCrashError(
        f"a loader worker (process {', '.join(map(str, pids))}) died {at_hand}: {cause} {advice}"
    )


def _wait_for_the_dead(dataloader: DataLoader) -> dict[int, str]:
    """Files of workers that have ended with one at hand; it may take a moment to show."""
    end = time.monotonic() + _PATIENCE
    while True:
        dead: dict[int, str] = {}
        for held in _tables(dataloader.dataset):
            dead |= held.of_the_dead()
        if dead or time.monotonic() > end:
            return dead
        time.sleep(0.05)


def _tables(dataset: Any) -> list[CurrentFiles]:
    """Of a data set, and of those inside a Subset or a ConcatDataset."""
    held = getattr(dataset, "current_files", None)
    inner = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return ([held] if isinstance(held, CurrentFiles) else []) + [
        table for part in inner if part is not None for table in _tables(part)
    ]


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a child that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
    except OSError:
        return True
