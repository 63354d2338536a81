"""Crashes of loader workers: the file that a worker was reading, and the batches that follow."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets.loading.batches import shared_tensor
from sce_video.utils.errors import CRASH_SIGNALS, UserError
from sce_video.utils.private_parts import end_persistent_workers

#: Largest number of workers whose files are noted. No machine has more cores for a loader.
_ROWS = 256
#: Number of bytes of a path that are noted. Linux does not allow longer paths (PATH_MAX).
_WIDTH = 4096
#: Bytes of a process id.
_PID = 8
#: Seconds to wait until a process is seen to have ended.
_PATIENCE = 2.0
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
        """Return process id and file of each worker that is reading one."""
        rows = {int.from_bytes(row[:_PID].tobytes(), "little"): row for row in self._table.numpy()}
        rows.pop(0, None)
        return {p: os.fsdecode(r[_PID:].tobytes().rstrip(b"\0")) for p, r in rows.items()}

    def clear(self) -> None:
        """Forget all files: the workers that were reading them have ended, or will be ended."""
        self._table.zero_()


@contextmanager
def report_worker_crashes(dataloader: DataLoader) -> Iterator[None]:
    """Report a loader worker's crash in this block together with the file it was reading.

    Raises:
        WorkerCrashError: If a worker crashes. It replaces torch's RuntimeError, which names only
            the process, or the connection error if the worker crashes while it sends a batch.
    """
    try:
        yield
    except RuntimeError as error:
        found = _CRASH.search(str(error))
        if found is None:
            raise
        reading, pids = _reading(dataloader), [int(word) for word in re.findall(r"\d+", found[1])]
        # torch says in its first error how a worker ended, but a second error may have replaced it.
        first = _CRASH.search(str(error.__cause__)) or found
        files = [reading[pid] for pid in pids if pid in reading]
        raise _crash_error(pids, files, first[2].strip()) from error
    except (ConnectionError, EOFError, FileNotFoundError) as error:  # while fetching a batch
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
    """Return process id and file of each worker that is reading one, or ended while reading."""
    reading: dict[int, str] = {}
    for part in _parts(dataloader.dataset):
        reading |= part.current_files.entries()
    return reading


def _crash_error(pids: list[int], files: list[str], cause: str) -> WorkerCrashError:
    work = f"while reading {', '.join(files)}" if files else "while it was reading no file"
    advice = (
        "If this happens again with the same file, remove it from the list (sce-video verify "
        "finds such files)"
    )
    if not files or not _is_of_file(cause):
        advice = "It may have been killed for lack of memory: lower num_workers or batch_size"
    if files and not _is_of_file(cause):
        advice = f"The file is hardly the reason. {advice}"
    processes = ", ".join(map(str, pids))
    message = f"a loader worker (process {processes}) crashed {work}: {cause} {advice}"
    return WorkerCrashError(message, tuple(files), cause)


def _is_of_file(cause: str) -> bool:
    """Return whether a worker has crashed in its own code, judged by the error's text."""
    return any(str(signal.strsignal(number)).lower() in cause.lower() for number in CRASH_SIGNALS)


#: Signals of Ctrl-C, of schedulers, of a terminal or an ssh connection that is closed.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def outlive_signals(worker_init: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a loader worker so that signals end it only when its parent sends them.

    Ctrl-C, a closed terminal and the end of a Slurm job signal all processes of a training
    run. A worker that ended then would interrupt the step that the run still completes. The
    loader's own ``worker_init_fn`` is called afterwards.
    """
    for number in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def end_by_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=end_by_parent, daemon=True).start()
    # A thread of multiprocessing hands batches over. It would report an error if the parent was
    # interrupted.
    sys.excepthook = _report_unless_parent_left
    if worker_init is not None:
        worker_init(worker)


def _report_unless_parent_left(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def start_workers(loader: DataLoader) -> Iterator[Any]:
    """Return the iterator of a loader, whose workers are forked with SIGTERM blocked.

    Before a worker is initialised, torch starts threads in it (its pool, if the parent has called
    ``torch.set_num_threads``). They inherit the mask. Without it, SIGTERM would end the worker.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def outliving_workers(*dataloaders: DataLoader) -> Iterator[None]:
    """Let workers that :func:`start_workers` starts outlive signals to the whole process group.

    Without it torch would report a worker that ends as an error, wherever the main process is then.
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
    workers make the batches that were not yet delivered. A file whose worker was ended from outside
    is read once more before that, because memory may have run out. The sampler must return the same
    order each time it is iterated over, as evaluation samplers do.

    Raises:
        WorkerCrashError: If a worker crashed while it was reading no file, or if bad files are
            errors.
    """
    parts = _parts(dataloader.dataset)
    skip = bool(parts) and all(part.on_error == "skip" for part in parts)
    found: set[str] = set()
    again: set[str] = set()
    delivered = 0
    loader = dataloader
    while True:
        try:
            # A crash is reported when the next batch is requested, not earlier, because torch's
            # signal handler would raise in whatever the main process is computing.
            with report_worker_crashes(loader), outliving_workers(loader):
                for batch in start_workers(loader):
                    delivered += 1
                    with _child_signals_deferred():
                        yield batch
            return
        except WorkerCrashError as error:
            if not skip or found.issuperset(error.files):
                raise  # without a file, too
            bad = [path for path in error.files if path in again or _is_of_file(error.cause)]
            again.update(error.files)
            found.update(bad)
            reason = f"crashed the process that was reading it ({error.cause.split('.')[0]})"
            for part in parts:
                part.current_files.clear()
                for path in bad:
                    part.mark_bad(path, reason)
        with _child_signals_deferred(deliver=False):  # as the other workers end
            if loader.persistent_workers:
                end_persistent_workers(loader)
            gc.collect()  # the iterator may be part of a cycle with the traceback of the crash
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
    """Return the datasets with ``current_files``: this one, or a Subset's or ConcatDataset's."""
    own = [dataset] if isinstance(getattr(dataset, "current_files", None), CurrentFiles) else []
    inner = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return own + [found for part in inner if part is not None for found in _parts(part)]
