"""From samples to a batch, in shared memory; batches go on where a file crashes a worker."""

from __future__ import annotations

import errno
import gc
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets.readers.base import TooManyBadFilesError
from sce_video.registry import FUNCTIONS
from sce_video.utils.errors import CRASH_SIGNALS, UserError, message_from_worker
from sce_video.utils.files import regular_file, write_text
from sce_video.utils.private_parts import end_persistent_workers
from sce_video.utils.tensors import RECEIVER, ReusedMemory, flags, shown


class SharedMemoryError(UserError, RuntimeError):
    """The system has no shared memory left for a batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def shared_tensor(shape: Sequence[int], dtype: torch.dtype, what: str) -> Tensor:
    """An uninitialised tensor in shared memory for ``what``, "a batch", which the error names.

    Raises:
        SharedMemoryError: Too little shared memory, or a limit of file sizes (``ulimit -f``).
    """
    first = torch.empty(0, dtype=dtype)
    size = math.prod(shape) * first.itemsize
    try:
        storage = first.untyped_storage()._new_shared(size)
    except RuntimeError as error:  # torch reserves the pages here, so this is where it fails
        reason = str(error).partition("\n")[0]
        advice = (
            "provide more (docker run --shm-size=16g, or --ipc=host), or lower batch_size, "
            "num_workers or prefetch_factor"
        )
        if os.strerror(errno.EFBIG) in reason:
            advice = "raise the limit of file sizes (ulimit -f), which applies to shared memory"
        there = "the size of /dev/shm is unknown"
        with suppress(OSError):
            fs = os.statvfs("/dev/shm")
            free, total = (n * fs.f_frsize // 2**20 for n in (fs.f_bavail, fs.f_blocks))
            there = f"/dev/shm has {total} MiB, {free} of them free"
        raise SharedMemoryError(
            f"no shared memory for {what} of {size / 2**20:.1f} MiB ({reason}; {there}): {advice}"
        ) from error
    return first.set_(storage).view(tuple(shape))


class BatchTensor(Tensor):
    """A tensor of a loader worker that is sent without a copy.

    Everything computed from it is a plain tensor; such a view of it is copied when it is sent.
    """

    memory: Tensor  # header and batch, (bytes,) uint8 in shared memory
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        flags(self.memory)[RECEIVER] = 1
        offset = self.data_ptr() - self.memory.data_ptr()
        return shown, (self.memory, RECEIVER, offset, tuple(self.shape), self.dtype)

    def is_shared(self) -> bool:
        """True; torch does not know it, since it sees an array."""
        return self.memory.is_shared()


def _new_block(size: int) -> Tensor:
    if get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    return shared_tensor((size,), torch.uint8, "a batch")


_memory = ReusedMemory(_new_block)


def empty_batch(shape: Sequence[int], dtype: torch.dtype = torch.uint8) -> Tensor:
    """An uninitialised tensor for a batch; in a loader worker a :class:`BatchTensor`.

    Its memory is used for another batch once no tensor and no array shows a part of it.
    SharedMemoryError if there is too little, as in a container with its default of 64 MiB.
    """
    batch, block = _memory.empty(shape, dtype)
    if block is None or not block.is_shared():
        return batch
    shared = batch.as_subclass(BatchTensor)
    shared.memory = block
    return shared


def part_of(batch: Tensor, first: int, count: int) -> Tensor:
    """Some consecutive items of a tensor; those of a :class:`BatchTensor` are one, too."""
    part = batch[first : first + count]
    if isinstance(batch, BatchTensor):
        part = part.as_subclass(BatchTensor)
        part.memory = batch.memory
    return part


Shapes = tuple[tuple[int, ...], ...]


class SharedBatchBuffer:
    """One tensor per view for all samples of a batch, of which each sample fills one slot.

    ``PackClips`` writes the views of a sample to the next slot, so that :func:`stack_slots` has
    nothing left to copy. There are ``size`` slots, for views of the ``shapes`` of the batch
    before; none if that is None.
    """

    def __init__(self, size: int = 1, shapes: Shapes | None = None) -> None:
        self._size = size if shapes is not None else 0
        self._batch = [empty_batch((self._size, *shape)) for shape in shapes or ()]
        self._filled = 0

    def next_slot(self) -> list[Tensor] | None:
        """The first free slot, one tensor per view; the same one until :meth:`fill` is called."""
        if self._filled >= self._size:
            return None
        slot = [view[self._filled] for view in self._batch]
        for part, view in zip(slot, self._batch, strict=True):
            part.batch, part.slot = view, self._filled  # type: ignore[attr-defined]
        return slot

    def fill(self) -> None:
        """Mark the current slot as filled."""
        self._filled += 1

    def abandon(self) -> None:
        """Return no more slots: a thread that timed out may still write to the current one."""
        self._size = 0


def shapes_of(sample: dict[str, Any]) -> Shapes | None:
    """Shapes of the views of a sample (``inputs``) if they are uint8 tensors, else None."""
    if any(not isinstance(v, Tensor) or v.dtype != torch.uint8 for v in sample["inputs"]):
        return None
    return tuple(tuple(view.shape) for view in sample["inputs"])


def stack_slots(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack(tensors)``, without a copy if they are consecutive slots of one buffer.

    In a loader worker the result lies in shared memory either way.
    """
    batch: Tensor | None = getattr(tensors[0], "batch", None)
    first: int = getattr(tensors[0], "slot", 0)
    if batch is not None and all(
        getattr(tensor, "batch", None) is batch and getattr(tensor, "slot", None) == first + number
        for number, tensor in enumerate(tensors)
    ):
        return part_of(batch, first, len(tensors))
    shape = (len(tensors), *tensors[0].shape)
    return torch.stack(tuple(tensors), out=empty_batch(shape, tensors[0].dtype))


_VIDEO_KEYS = ("frames", "positions", "offsets", "crop_size")


@FUNCTIONS.register_module()
def collate_views(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack samples view by view; samples of :class:`PackVideo` are returned as a list.

    Args:
        samples: Of a :class:`~sce_video.datasets.VideoDataset`; ``inputs`` None for a skipped one.

    Returns:
        ``inputs``: V uint8 tensors (N, T, H, W, 3), empty when every sample was skipped; or
        ``videos``: N dicts of ``frames, positions, offsets, crop_size``. Also ``label``, ``index``,
        ``seed``, and ``clip`` where samples have it: (N,) int64; ``failures``: one flat list of
        (path, error); ``differences``: sums over the samples, see
        :class:`~sce_video.datasets.transforms.DecodeClips`.

    Raises:
        ValueError: The samples differ in their number of views or in the shape of a view.
    """
    batch: dict[str, Any]
    kept = [sample for sample in samples if "frames" in sample or sample["inputs"] is not None]
    if kept and "frames" in kept[0]:
        batch = {"videos": [{name: sample[name] for name in _VIDEO_KEYS} for sample in kept]}
    else:
        counts = [len(sample["inputs"]) for sample in kept]
        if len({*counts}) > 1:
            raise ValueError(f"the samples of a batch have different numbers of views: {counts}")
        views = list(zip(*(sample["inputs"] for sample in kept), strict=True))
        for number, view in enumerate(views):
            shapes = sorted({tuple(tensor.shape) for tensor in view})
            if len(shapes) > 1:
                raise ValueError(
                    f"view {number} has different shapes in one batch, {shapes}: "
                    "end the pipeline with a crop of fixed size"
                )
        batch = {"inputs": [stack_slots(view) for view in views]}
    for name in ("label", "index", "seed", *(("clip",) if kept and "clip" in kept[0] else ())):
        batch[name] = torch.tensor([sample[name] for sample in kept], dtype=torch.int64)
    batch["failures"] = [failure for sample in samples for failure in sample.get("failures", ())]
    counted = [sample["differences"] for sample in kept if "differences" in sample]
    if counted:
        batch["differences"] = tuple(map(sum, zip(*counted, strict=True)))
    return batch


@FUNCTIONS.register_module()
def collate_boxes(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """As :func:`collate_views`, of :class:`~sce_video.datasets.AVADataset`.

    Also ``boxes``, N tensors (n_i, 4), and ``actions``, N tensors (n_i, 80). Test frames differ in
    shape, so their batch_size must be 1.
    """
    kept = [sample for sample in samples if sample["inputs"] is not None]
    lists = {name: [sample[name] for sample in kept] for name in ("boxes", "actions")}
    return {**collate_views(samples), **lists}


#: Workers of a loader whose files are noted. A machine has fewer cores for a loader.
_ROWS = 256
#: Bytes of a path that are noted: Linux has no longer paths (PATH_MAX).
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
    """Whether a worker has crashed in its own code, as torch or the system says it."""
    return any(str(signal.strsignal(number)).lower() in cause.lower() for number in CRASH_SIGNALS)


#: Signals of Ctrl-C, of schedulers, of a terminal or an ssh connection that is closed.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def outlive_signals(worker_init: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a loader worker so that signals end it only when its parent sends them.

    Ctrl-C, a closed terminal and the end of a Slurm job signal all processes of a training. A
    worker that ended then would interrupt the step that the training still completes. The loader's
    own ``worker_init_fn`` is called afterwards.
    """
    for number in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def end_by_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=end_by_parent, daemon=True).start()
    # A thread of multiprocessing hands batches over: it reports a parent that was interrupted then.
    sys.excepthook = _report_unless_parent_left
    if worker_init is not None:
        worker_init(worker)


def _report_unless_parent_left(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def start_workers(loader: DataLoader) -> Iterator[Any]:
    """Return an iterator of a loader, whose workers are forked with SIGTERM blocked.

    Before a worker is initialised torch starts threads in it (its pool, where the parent has called
    ``torch.set_num_threads``). They inherit the mask, or would let SIGTERM end the worker.
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
    """The batches of a loader; new workers replace crashed ones where the data set skips bad files.

    Under ``on_error="skip"`` the file that a crashed worker was reading becomes a bad file, and new
    workers make the batches that were not yet delivered. A file whose worker was ended from outside
    is read once more before that, since memory may have run out. The sampler must give the same
    order each time it is iterated over, as those of evaluation do.

    Raises:
        WorkerCrashError: A worker crashed while it was reading no file, or bad files are errors.
    """
    parts = _parts(dataloader.dataset)
    skip = bool(parts) and all(part.on_error == "skip" for part in parts)
    found: set[str] = set()
    again: set[str] = set()
    delivered = 0
    loader = dataloader
    while True:
        try:
            # A crash is reported when the next batch is asked for, not before: torch's signal
            # handler would raise in whatever the main process is computing meanwhile.
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
        with open(self.path, encoding="utf-8", errors="replace", opener=regular_file) as file:
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
                f"{len(self)} of {self.num_files} files cannot be decoded, more than the allowed "
                f"share of {self.max_bad_share:g} (max_bad_share): take them out of the data, or "
                f"raise it in the config and --resume; report: {self.path}\n{listed}"
            )
