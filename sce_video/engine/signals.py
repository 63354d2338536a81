"""Signals to stop during a training: noted by it, ignored by its loader workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType

from mmengine.dist import is_main_process
from torch.utils.data import DataLoader

#: Of Ctrl-C, of schedulers, of a terminal or an ssh connection that is closed.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopSignals:
    """Inside a ``with`` block signals to stop are noted and do not end the process.

    These are SIGINT, SIGTERM, SIGHUP and SIGUSR1.

    A second SIGINT raises KeyboardInterrupt at once. Signals that were ignored stay ignored, as
    SIGINT is in background jobs of a shell script and SIGHUP under ``nohup``. Outside the main
    thread, where Python allows no signal handlers, nothing changes.
    """

    def __init__(self) -> None:
        self.received: int = 0
        """The number of the first signal received, 0 for none."""
        self._interrupts = 0
        self._pid = os.getpid()
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            # None: a handler that was not installed from Python cannot be restored
            previous = signal.SIG_DFL if previous is None else previous
            if number == self.received == signal.SIGUSR1:
                # Slurm and torchrun may both send it; the second must not end what comes after.
                previous = signal.SIG_IGN
            signal.signal(number, previous)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child has inherited this handler
            if number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.received = self.received or number
        if number != signal.SIGINT:
            return
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if is_main_process():
            # The interrupted code may hold the lock of a log handler; os.write needs none.
            os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")


def outlive_signals(worker_init: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a loader worker so that signals end it only when its parent sends them.

    Ctrl-C, a closed terminal and the end of a Slurm job signal all processes of a training. A
    worker that ended then would interrupt the step that the training still completes.

    Args:
        worker_init: The loader's own ``worker_init_fn``, called afterwards.
        worker: Number of the worker.
    """
    for number in set(_STOPPING) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_by_parent, daemon=True).start()
    if worker_init is not None:
        worker_init(worker)


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


@contextmanager
def outliving_workers(*dataloaders: DataLoader) -> Iterator[None]:
    """Workers that the loaders start inside the block outlive signals to the whole training."""
    own = [loader.worker_init_fn for loader in dataloaders]
    for loader in dataloaders:
        loader.worker_init_fn = partial(outlive_signals, loader.worker_init_fn)
    try:
        yield
    finally:
        for loader, worker_init in zip(dataloaders, own, strict=True):
            loader.worker_init_fn = worker_init
