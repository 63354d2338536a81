"""Failures while samples are loaded: crashed workers, and a report of bad files."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets.loading.batches import shared_tensor
from sce_video.datasets.readers.base import TooManyBadFilesError
from sce_video.utils.errors import CRASH_SIGNALS, UserError
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.private_parts import end_persistent_workers

#: Maximum number of workers whose files are recorded. No machine has this many cores for a loader.
_ROWS = 256
#: Maximum recorded length of a path in bytes. Linux does not allow longer paths (PATH_MAX).
_WIDTH = 4096
#: Size of a process id in bytes.
_PID = 8
#: Maximum time in seconds to wait until the end of a process is noticed.
_PATIENCE = 2.0
#: Pattern that matches both of torch's messages about a crashed worker.
_CRASH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.+)", re.S)


class WorkerCrashError(UserError, RuntimeError):
    """A loader worker was killed, or crashed inside a decoder, without a Python error.

    ``files`` are the files that the workers were reading, and ``cause`` says how they ended.
    """

    def __init__(self, message: str, files: tuple[str, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.files, self.cause = files, cause


class CurrentFiles:
    """A table in shared memory with each worker's process id and the file it is reading.

    The main process reads the table if a worker ends without an exception, as after a crash inside
    a decoder.
    """

    def __init__(self) -> None:
        shape = (_ROWS, _PID + _WIDTH)
        self._table = shared_tensor(shape, torch.uint8, "the names of open files").zero_()

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Record this worker's file during the block; no effect outside workers."""
        worker = get_worker_info()
        if worker is None or worker.id >= _ROWS:
            yield
            return
        row = self._table[worker.id].numpy()
        name = os.fsencode(path)[-_WIDTH:]  # the end of a path is its most informative part
        row[_PID:] = 0
        row[_PID : _PID + len(name)] = np.frombuffer(name, dtype=np.uint8)
        row[:_PID] = list(os.getpid().to_bytes(_PID, "little"))
        try:
            yield
        finally:  # a thread that exceeded its time limit must not clear the next file
            if row[_PID:].tobytes().rstrip(b"\0") == name:
                row[:_PID] = 0

    def entries(self) -> dict[int, str]:
        """Return the file that each worker is reading, by process id."""
        rows = {int.from_bytes(row[:_PID].tobytes(), "little"): row for row in self._table.numpy()}
        rows.pop(0, None)
        return {p: os.fsdecode(r[_PID:].tobytes().rstrip(b"\0")) for p, r in rows.items()}

    def clear(self) -> None:
        """Remove all files after a crash, because all workers end."""
        self._table.zero_()


@contextmanager
def report_worker_crashes(dataloader: DataLoader) -> Iterator[None]:
    """Add the file that was being read to the error if a loader worker crashes in this block.

    Raises:
        WorkerCrashError: If a worker crashes. It replaces torch's RuntimeError, which names only
            the process, or a connection error if the worker crashes while it sends a batch.
    """
    try:
        yield
    except RuntimeError as error:
        found = _CRASH.search(str(error))
        if found is None:
            raise
        reading, pids = _reading(dataloader), [int(word) for word in re.findall(r"\d+", found[1])]
        # torch's first error states how the worker ended, but a second error may have replaced it.
        first = _CRASH.search(str(error.__cause__)) or found
        files = [reading[pid] for pid in pids if pid in reading]
        raise _crash_error(pids, files, first[2].strip()) from error
    except (ConnectionError, EOFError, FileNotFoundError) as error:  # a batch was being sent
        end, ended = time.monotonic() + _PATIENCE, dict[int, str]()
        with _child_signals_deferred(deliver=False):  # torch's handler would raise an error here
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
    """Return the file that each worker is reading, or was reading when it ended, by process id."""
    entries = (part.current_files.entries() for part in _parts(dataloader.dataset))
    return {pid: path for own in entries for pid, path in own.items()}


def _crash_error(pids: list[int], files: list[str], cause: str) -> WorkerCrashError:
    work = f"while reading {', '.join(files)}" if files else "while it was reading no file"
    advice = (
        "If this happens again with the same file, remove it from the list (sce-video verify "
        "finds such files)"
    )
    if not files or not _is_of_file(cause):
        advice = "It may have been killed for lack of memory. Lower num_workers or batch_size"
    if files and not _is_of_file(cause):
        advice = f"The file is probably not the reason. {advice}"
    processes = ", ".join(map(str, pids))
    message = f"a loader worker (process {processes}) crashed {work}: {cause} {advice}"
    return WorkerCrashError(message, tuple(files), cause)


def _is_of_file(cause: str) -> bool:
    """Return whether a worker crashed in its own code, judging by the error's text."""
    return any(str(signal.strsignal(number)).lower() in cause.lower() for number in CRASH_SIGNALS)


#: Signals sent by Ctrl-C, schedulers, and closed terminals or ssh connections.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def outlive_signals(worker_init: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a loader worker so that only its parent can end it with a signal.

    Ctrl-C, a closed terminal and the end of a Slurm job signal all processes of a training run. If
    a worker ended then, the run could not complete its current step. Afterwards, the loader's own
    ``worker_init_fn`` is called.
    """
    for number in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def end_by_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=end_by_parent, daemon=True).start()
    # If the parent process was interrupted, multiprocessing's sending thread would report an error
    # in this worker.
    sys.excepthook = _report_unless_parent_left
    if worker_init is not None:
        worker_init(worker)


def _report_unless_parent_left(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def start_workers(loader: DataLoader) -> Iterator[Any]:
    """Return a loader's iterator, after forking its workers with SIGTERM blocked.

    torch may start threads in a worker before it is initialised (a thread pool, if the parent has
    called ``torch.set_num_threads``). They inherit the mask. Otherwise, SIGTERM would end the
    worker.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def outliving_workers(*dataloaders: DataLoader) -> Iterator[None]:
    """Let workers that :func:`start_workers` starts survive signals to the whole process group.

    Otherwise, torch would raise an error for the ended worker anywhere in the main process.
    """
    own = [loader.worker_init_fn for loader in dataloaders]
    for loader in dataloaders:
        if getattr(loader.worker_init_fn, "func", None) is not outlive_signals:
            loader.worker_init_fn = partial(outlive_signals, loader.worker_init_fn)
    try:
        yield
    finally:
        for loader, worker_init in zip(dataloaders, own, strict=True):
            loader.worker_init_fn = worker_init


def batches_without_crashes(dataloader: DataLoader) -> Iterator[Any]:
    """Yield a loader's batches. If the dataset skips bad files, new workers replace crashed ones.

    With ``on_error="skip"``, the file that a crashed worker was reading becomes a bad file, and new
    workers make the remaining batches. If the worker was ended from outside, the file is first read
    again, because memory may have run out. The sampler must return the same order each time, as
    evaluation samplers do.

    Raises:
        WorkerCrashError: If a worker crashed while it was not reading a file, or if the dataset
            does not skip bad files.
    """
    parts = _parts(dataloader.dataset)
    skip = bool(parts) and all(part.on_error == "skip" for part in parts)
    found: set[str] = set()
    again: set[str] = set()
    delivered = 0
    loader = dataloader
    while True:
        try:
            # Report a crash only when the next batch is requested. Otherwise, torch's signal
            # handler would raise an error in the middle of the main process's computations.
            with report_worker_crashes(loader), outliving_workers(loader):
                for batch in start_workers(loader):
                    delivered += 1
                    with _child_signals_deferred():
                        yield batch
            return
        except WorkerCrashError as error:
            if not skip or found.issuperset(error.files):
                raise  # also raised if no file was being read
            bad = [path for path in error.files if path in again or _is_of_file(error.cause)]
            again.update(error.files)
            found.update(bad)
            reason = f"crashed the process that was reading it ({error.cause.split('.')[0]})"
            for part in parts:
                part.current_files.clear()
                for path in bad:
                    part.mark_bad(path, reason)
        with _child_signals_deferred(deliver=False):  # the other workers are ended, too
            if loader.persistent_workers:
                end_persistent_workers(loader)
            gc.collect()  # a cycle with the crash's traceback may contain the iterator
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
                 "multiprocessing_context", "prefetch_factor", "generator")  # fmt: skip
        settings = {name: getattr(dataloader, name) for name in names}
        if dataloader.batch_sampler is None:
            settings |= {"batch_size": None, "sampler": list(dataloader.sampler)[delivered:]}
        else:
            settings["batch_sampler"] = list(dataloader.batch_sampler)[delivered:]
        loader = DataLoader(dataloader.dataset, **settings)


@contextmanager
def _child_signals_deferred(deliver: bool = True) -> Iterator[None]:
    """Call the handler of SIGCHLD only after the block or, with ``deliver=False``, never."""
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # only the main thread receives signals in Python
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
    """Return the datasets with ``current_files`` in a dataset, a Subset or a ConcatDataset."""
    own = [dataset] if isinstance(getattr(dataset, "current_files", None), CurrentFiles) else []
    inner = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return own + [found for part in inner if part is not None for found in _parts(part)]


class BadFileReport:
    """Counter of bad files, which writes them to a report and raises if there are too many.

    Each line of the report is a JSON object with the number of failures and the first error of a
    file: ``{"path": ..., "count": ..., "error": ...}``. An existing report is continued.

    Args:
        path: Path of the report. None writes no report.
        num_files: Number of files in the dataset.
        max_bad_share: Largest allowed share of bad files.

    Raises:
        ValueError: If an argument is out of range, or if the existing report is invalid.
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
        self.counts: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        if self.path is None or not os.path.exists(self.path):
            return
        damaged = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
        with open(self.path, encoding="utf-8", errors="replace", opener=regular_file) as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                    self.counts[entry["path"]] = int(entry["count"])
                    self.errors[entry["path"]] = entry["error"]
                except damaged as error:
                    raise ValueError(
                        f"{self.path}, line {number} is not an entry of a bad-file report. Move "
                        "the file away or choose another path"
                    ) from error

    def __len__(self) -> int:
        """Return the number of distinct bad files."""
        return len(self.counts)

    def add(self, failures: Iterable[tuple[str, str]]) -> None:
        """Count (path, error) pairs and update the report.

        Raises:
            TooManyBadFilesError: If more than ``max_bad_share`` of the files are bad.
            WriteError: If the report cannot be written. The failures are still counted.
        """
        failures = list(failures)
        for path, error in failures:
            self.counts[path] += 1
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
                f"{len(self)} of {self.num_files} files cannot be decoded, more than the allowed "
                f"share of {self.max_bad_share:g} (max_bad_share). Remove them from the data, or "
                f"raise the share in the config and --resume. Report: {self.path}\n{listed}"
            )
