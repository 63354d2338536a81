"""Name the file that a crashed data loader worker was reading."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets.loading.shared_batch import shared_tensor
from sce_video.utils.errors import UserError

_ROWS, _WIDTH = 256, 1024  # workers of a loader, bytes of a path
_PID = 8  # bytes of a process id
_PATIENCE = 2.0  # seconds to wait until a process is seen to have ended
#: torch's two messages for a crashed worker.
_CRASH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.+)", re.S)


class WorkerCrashError(UserError, RuntimeError):
    """A loader worker ended without a Python error: killed, or crashed inside a decoder."""


class CurrentFiles:
    """A table in shared memory with each worker's process id and the file it is reading.

    A crash inside a decoder ends the worker process without an exception. The main process then
    reads the file from this table.
    """

    def __init__(self) -> None:
        self._table = shared_tensor(
            (_ROWS, _PID + _WIDTH), torch.uint8, "the names of open files"
        ).zero_()

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Enter this worker's file for the duration of the block; no effect outside of workers."""
        worker = get_worker_info()
        if worker is None or worker.id >= _ROWS:
            yield
            return
        row = self._table[worker.id].numpy()
        name = os.fsencode(path)[-_WIDTH:]  # the end of a path is the informative part
        row[_PID:] = 0
        row[_PID : _PID + len(name)] = list(name)
        row[:_PID] = list(os.getpid().to_bytes(_PID, "little"))
        try:
            yield
        finally:
            row[:_PID] = 0

    def of_ended_processes(self) -> dict[int, str]:
        """Process id and file of each worker that ended while it was reading a file."""
        found = {}
        for row in self._table.numpy():
            pid = int.from_bytes(row[:_PID].tobytes(), "little")
            if pid and not _is_running(pid):
                found[pid] = os.fsdecode(row[_PID:].tobytes().rstrip(b"\0"))
        return found

    def of(self, pid: int) -> str | None:
        """The file that a process is reading; None if it is reading none."""
        for row in self._table.numpy():
            if int.from_bytes(row[:_PID].tobytes(), "little") == pid:
                return os.fsdecode(row[_PID:].tobytes().rstrip(b"\0"))
        return None


@contextmanager
def report_worker_crashes(dataloader: DataLoader) -> Iterator[None]:
    """In this block, the crash of a loader worker is reported with the file it was reading.

    Raises:
        WorkerCrashError: Instead of torch's RuntimeError, which names the process only, or of the
            connection error if the worker crashes while it sends a batch.
    """
    try:
        yield
    except RuntimeError as error:
        found = _CRASH.search(str(error))
        if found is None:
            raise
        pids = [int(word) for word in re.findall(r"\d+", found.group(1))]
        files = [
            path for table in _tables(dataloader.dataset) for path in map(table.of, pids) if path
        ]
        raise _crash_error(pids, files, found.group(2).strip()) from error
    except (ConnectionError, EOFError) as error:
        ended = _wait_for_ended_workers(dataloader)
        if not ended:
            raise
        cause = f"{type(error).__name__}."
        raise _crash_error(list(ended), list(ended.values()), cause) from error


def _crash_error(pids: list[int], files: list[str], cause: str) -> WorkerCrashError:
    work = f"while reading {', '.join(files)}" if files else "while it was reading no file"
    advice = (
        "If this happens again with the same file, remove it from the list (tools/data/verify.py "
        "finds such files)"
        if files
        else "It may have been killed for lack of memory: lower num_workers or batch_size"
    )
    return WorkerCrashError(
        f"a loader worker (process {', '.join(map(str, pids))}) crashed {work}: {cause} {advice}"
    )


def _wait_for_ended_workers(dataloader: DataLoader) -> dict[int, str]:
    """Process ids and files of workers that ended while reading; waits up to ``_PATIENCE``."""
    end = time.monotonic() + _PATIENCE
    while True:
        ended: dict[int, str] = {}
        for table in _tables(dataloader.dataset):
            ended |= table.of_ended_processes()
        if ended or time.monotonic() > end:
            return ended
        time.sleep(0.05)


def _tables(dataset: Any) -> list[CurrentFiles]:
    """The tables of a data set, and of those inside a Subset or a ConcatDataset."""
    own = getattr(dataset, "current_files", None)
    inner = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return ([own] if isinstance(own, CurrentFiles) else []) + [
        table for part in inner if part is not None for table in _tables(part)
    ]


def _is_running(pid: int) -> bool:
    """Whether a process is running; False for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
    except OSError:
        return True
