"""Name the file that a crashed data loader worker was reading, and go on without it."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets.loading.batches import shared_tensor
from sce_video.datasets.readers.errors import TooManyBadFilesError
from sce_video.utils.errors import UserError
from sce_video.utils.files import write_text

_ROWS, _WIDTH = 256, 4096  # workers of a loader, bytes of a path (PATH_MAX)
_PID = 8  # bytes of a process id
_PATIENCE = 2.0  # seconds to wait until a process is seen to have ended
#: torch's two messages for a crashed worker.
_CRASH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.+)", re.S)


class WorkerCrashError(UserError, RuntimeError):
    """A loader worker ended without a Python error: killed, or crashed inside a decoder.

    ``files`` are what the workers were reading, ``cause`` is how they ended.
    """

    def __init__(self, message: str, files: tuple[str, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.files, self.cause = files, cause


class CurrentFiles:
    """A table in shared memory with each worker's process id and the file it is reading.

    A crash inside a decoder ends a worker without an exception; the main process reads this table.
    """

    def __init__(self) -> None:
        shape = (_ROWS, _PID + _WIDTH)
        self._table = shared_tensor(shape, torch.uint8, "the names of open files").zero_()

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
        row[_PID : _PID + len(name)] = np.frombuffer(name, dtype=np.uint8)
        row[:_PID] = list(os.getpid().to_bytes(_PID, "little"))
        try:
            yield
        finally:  # a thread that exceeded its time limit leaves the file that is read now
            if row[_PID:].tobytes().rstrip(b"\0") == name:
                row[:_PID] = 0

    def entries(self) -> dict[int, str]:
        """Process id and file of each worker that is reading one."""
        rows = {int.from_bytes(row[:_PID].tobytes(), "little"): row for row in self._table.numpy()}
        rows.pop(0, None)
        return {p: os.fsdecode(r[_PID:].tobytes().rstrip(b"\0")) for p, r in rows.items()}

    def clear(self) -> None:
        """Forget all files: the workers that were reading them have ended, or will be ended."""
        self._table.zero_()


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
        reading, pids = _reading(dataloader), [int(word) for word in re.findall(r"\d+", found[1])]
        # torch says how a worker ended in the first error, which a second one may have replaced.
        first = _CRASH.search(str(error.__cause__)) or found
        files = [reading[pid] for pid in pids if pid in reading]
        raise _crash_error(pids, files, first[2].strip()) from error
    except (ConnectionError, EOFError, FileNotFoundError) as error:  # of a batch being fetched
        end, ended = time.monotonic() + _PATIENCE, dict[int, str]()
        with _child_signals_deferred(deliver=False):  # torch's handler would raise here
            while not ended and time.monotonic() < end:
                alive = {child.pid for child in multiprocessing.active_children()}
                reading = _reading(dataloader)
                ended = {pid: path for pid, path in reading.items() if pid not in alive}
                time.sleep(0 if ended else 0.05)
        if not ended:
            raise
        cause = f"{type(error).__name__}."
        raise _crash_error(list(ended), list(ended.values()), cause) from error


def _reading(dataloader: DataLoader) -> dict[int, str]:
    """Process id and file of each worker that is reading one, or has ended while it did."""
    parts = _parts(dataloader.dataset)
    return {k: v for part in parts for k, v in part.current_files.entries().items()}


def _crash_error(pids: list[int], files: list[str], cause: str) -> WorkerCrashError:
    work = f"while reading {', '.join(files)}" if files else "while it was reading no file"
    advice = (
        "If this happens again with the same file, remove it from the list (sce-video verify "
        "finds such files)"
    )
    if not files:
        advice = "It may have been killed for lack of memory: lower num_workers or batch_size"
    processes = ", ".join(map(str, pids))
    message = f"a loader worker (process {processes}) crashed {work}: {cause} {advice}"
    return WorkerCrashError(message, tuple(files), cause)


def batches_without_crashes(dataloader: DataLoader) -> Iterator[Any]:
    """The batches of a loader; new workers replace crashed ones where the data set skips bad files.

    Under ``on_error="skip"`` the file that a crashed worker was reading becomes a bad file, and new
    workers make the batches that were not yet delivered. The sampler must give the same order each
    time it is iterated over, as those of evaluation do.

    Raises:
        WorkerCrashError: A worker crashed while it was reading no file, or bad files are errors.
    """
    parts = _parts(dataloader.dataset)
    skip = bool(parts) and all(part.on_error == "skip" for part in parts)
    found: set[str] = set()
    delivered = 0
    loader = dataloader
    while True:
        try:
            # A crash is reported when the next batch is asked for, not before: torch's signal
            # handler would raise in whatever the main process is computing meanwhile.
            with report_worker_crashes(loader):
                for batch in loader:
                    delivered += 1
                    with _child_signals_deferred():
                        yield batch
            return
        except WorkerCrashError as error:
            if not skip or found.issuperset(error.files):
                raise  # without a file, too
            found.update(error.files)
            reason = f"crashed the process that was reading it ({error.cause.split('.')[0]})"
            for part in parts:
                part.current_files.clear()
                for path in error.files:
                    part.mark_bad(path, reason)
        with _child_signals_deferred(deliver=False):  # as the other workers end
            if loader.persistent_workers:
                loader._iterator = None
            gc.collect()  # the iterator may be part of a cycle with the traceback of the crash
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
                 "multiprocessing_context", "prefetch_factor")  # fmt: skip
        settings = {name: getattr(dataloader, name) for name in names}
        if dataloader.batch_sampler is None:
            settings |= {"batch_size": None, "sampler": list(dataloader.sampler)[delivered:]}
        else:
            settings["batch_sampler"] = list(dataloader.batch_sampler)[delivered:]
        loader = DataLoader(dataloader.dataset, **settings)


@contextmanager
def _child_signals_deferred(deliver: bool = True) -> Iterator[None]:
    """Call the handler of SIGCHLD after the block; with ``deliver=False`` never."""
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # Python calls handlers in the main thread only
        return
    received: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
    if received and deliver:
        handler(signal.SIGCHLD, None)


def _parts(dataset: Any) -> list[Any]:
    """The data set, or those inside a Subset or a ConcatDataset, that have ``current_files``."""
    own = [dataset] if isinstance(getattr(dataset, "current_files", None), CurrentFiles) else []
    inner = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return own + [found for part in inner if part is not None for found in _parts(part)]


class BadFileReport:
    """Counts bad files, writes them to a report, and raises when there are too many.

    The report at ``path`` (None for none), an atomic file, has one JSON object per line, ``{"path":
    ..., "count": ..., "error": ...}``, sorted by path: how often reading the file failed, and its
    first error. An existing report is continued; ValueError if it cannot be read. At most
    ``max_bad_share`` of the ``num_files`` of the data set may be bad.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, num_files: int, max_bad_share: float = 0.05
    ) -> None:
        if not 0 <= max_bad_share <= 1:
            raise ValueError(f"max_bad_share must lie in [0, 1], got {max_bad_share}")
        if num_files < 1:
            raise ValueError(f"num_files must be at least 1, got {num_files}")
        self.path = None if path is None else os.fspath(path)
        self.num_files, self.max_bad_share = num_files, max_bad_share
        self.counts: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        if self.path is None or not os.path.exists(self.path):
            return
        damaged = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                    self.counts[entry["path"]] = int(entry["count"])
                    self.errors[entry["path"]] = entry["error"]
                except damaged as error:
                    raise ValueError(
                        f"{self.path}, line {number} is no entry of a bad-file report: "
                        "move the file away or choose another path"
                    ) from error

    def __len__(self) -> int:
        """Number of distinct bad files."""
        return len(self.counts)

    def add(self, failures: Iterable[tuple[str, str]]) -> None:
        """Count (path, error) pairs and update the report.

        Raises:
            TooManyBadFilesError: More than ``max_bad_share`` of the files are bad; lists them.
            WriteError: The report cannot be written; the failures are counted.
        """
        failures = list(failures)
        for path, error in failures:
            self.counts[path] = self.counts.get(path, 0) + 1
            self.errors.setdefault(path, error)
        if failures and self.path is not None:
            paths = sorted(self.counts)
            rows = [{"path": p, "count": self.counts[p], "error": self.errors[p]} for p in paths]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.check()

    def check(self) -> None:
        """Raise :class:`TooManyBadFilesError` if the limit is exceeded."""
        if len(self) > self.max_bad_share * self.num_files:
            listed = "\n".join(f"  {path}: {self.errors[path]}" for path in sorted(self.counts))
            raise TooManyBadFilesError(
                f"{len(self)} of {self.num_files} files cannot be decoded, more than the "
                f"allowed share of {self.max_bad_share:g} (max_bad_share); report: {self.path}\n"
                f"{listed}"
            )
