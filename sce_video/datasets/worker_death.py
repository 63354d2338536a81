"""Which file a loader worker had at hand when it died."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

_SLOTS, _WIDTH = 256, 1024  # workers of a loader, bytes of a path
_PID = 8
#: torch's words for a dead worker, of both of its ways to notice.
_DEATH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.+)", re.S)


class WorkerDiedError(RuntimeError):
    """A loader worker ended without a Python error: killed, or crashed inside a decoder."""


class FilesAtHand:
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

    def of(self, pid: int) -> str | None:
        """The file that a process was working on; None if it held none."""
        for row in self._table.numpy():
            if int.from_bytes(row[:_PID].tobytes(), "little") == pid:
                return os.fsdecode(row[_PID:].tobytes().rstrip(b"\0"))
        return None


@contextmanager
def naming_dead_workers(dataloader: DataLoader) -> Iterator[None]:
    """While batches are taken in the block: a worker's death is told with the file at hand.

    Raises:
        WorkerDiedError: in the place of torch's RuntimeError, which names the process only.
    """
    try:
        yield
    except RuntimeError as error:
        found = _DEATH.search(str(error))
        if found is None:
            raise
        dataset: Any = dataloader.dataset
        dataset = getattr(dataset, "dataset", dataset)  # inside a Subset
        held = getattr(dataset, "files_at_hand", None)
        pids = [int(word) for word in re.findall(r"\d+", found.group(1))]
        files = [path for pid in pids if held is not None and (path := held.of(pid)) is not None]
        at_hand = f"while working on {', '.join(files)}" if files else "with no file at hand"
        advice = (
            "if this happens again with the same file, take it out of the list (tools/data/"
            "verify.py finds such files)"
            if files
            else "it may have been killed for want of memory: lower num_workers or batch_size"
        )
        raise WorkerDiedError(
            f"a loader worker (process {', '.join(map(str, pids))}) died {at_hand}: "
            f"{found.group(2).strip()} {advice}"
        ) from error
