"""Training loop that can stop and start in the middle of an epoch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import DataLoader

from sce_video.datasets import report_worker_crashes
from sce_video.datasets.labels import check_labels
from sce_video.engine.device_copy import copied_ahead
from sce_video.registry import LOOPS
from sce_video.utils.distributed import unwrap_model

#: Optimiser steps between two agreements of several GPUs on stopping: each makes them wait.
_STEPS_PER_AGREEMENT = 10
_STOP_CHECKPOINT = "stop_checkpoint"


class StopSignals:
    """For the time of a block SIGINT and SIGTERM ask for a stop instead of ending the process.

    A second SIGINT raises KeyboardInterrupt at once. Signals that were ignored stay ignored, as
    SIGINT is in a shell script's background jobs. Outside the main thread, where Python allows no
    handlers, nothing changes.
    """

    def __init__(self) -> None:
        self.asked: int = 0
        """The first signal that came, 0 for none."""
        self._interrupts = 0
        self._pid = os.getpid()
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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
            # None: the handler was none of Python's, which cannot be put back
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # inherited by a fork, whose end is its parent's affair
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.asked = self.asked or number
        if number != signal.SIGINT:
            return
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if is_main_process():
            # A log handler's lock may be held by what was interrupted; a plain write has none.
            os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")


def outlive_signals(worker_init: Callable[[int], None] | None, worker: int) -> None:
    """The start of a loader's worker: only its parent ends it, whatever the others send.

    Ctrl-C and the end of a Slurm job go to all processes of a training. A worker that died of it
    would take the step with it that the training wants to finish.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    """Workers that the loaders start in the block outlive signals to the whole training."""
    own = [loader.worker_init_fn for loader in dataloaders]
    for loader in dataloaders:
        loader.worker_init_fn = partial(outlive_signals, loader.worker_init_fn)
    try:
        yield
    finally:
        for loader, worker_init in zip(dataloaders, own, strict=True):
            loader.worker_init_fn = worker_init


class _Stopped(Exception):  # noqa: N818 - no error
    """Leads out of the epoch to where the checkpoint is written."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(by)
        self.by = by


@LOOPS.register_module()
class ResumableTrainLoop(EpochBasedTrainLoop):
    """Epochs of whole optimiser steps, resumable at any of them.

    mmengine's epoch loop begins a resumed epoch anew. This one tells the sampler how many samples
    of the epoch were seen, so that they are neither trained on nor decoded again. With gradient
    accumulation an epoch ends with its last whole optimiser step; the few batches over are left
    out, so that an epoch's end never falls between two micro-batches.
    """

    stopped_by: signal.Signals | None = None

    @property
    def iters_per_epoch(self) -> int:
        """Iterations (micro-batches) of an epoch."""
        wrapper = self.runner.optim_wrapper
        if isinstance(wrapper, dict):  # not built yet
            accumulation = wrapper.get("accumulative_counts", 1)
        else:
            accumulation = wrapper._accumulative_counts
        return len(self.dataloader) // accumulation * accumulation

    @property
    def max_iters(self) -> int:
        """Iterations of the whole training."""
        return self._max_epochs * self.iters_per_epoch

    def run(self):
        """Train; refuses what could not be resumed or would never step.

        SIGINT and SIGTERM end the training after a whole optimiser step, with a checkpoint; then
        ``stopped_by`` names the signal.
        """
        self._check()
        self.stopped_by = None
        try:
            with StopSignals() as self._signals, outliving_workers(*self._loaders()):
                try:
                    super().run()
                except _Stopped as stop:
                    self._save_stopped(stop.by)
                    self.stopped_by = stop.by
                    self.runner.call_hook("after_train")
        finally:
            # Persistent workers end at once when their iterator is dropped here; left to the
            # garbage collector each of them holds up the end of the program by seconds.
            with suppress(RuntimeError):  # torch may tell here again that a worker has died
                self.dataloader._iterator = None
        return self.runner.model

    def _check(self) -> None:
        if self.iters_per_epoch == 0:
            raise ValueError(
                f"{len(self.dataloader.dataset)} training samples do not fill one step of batch "
                f"size {self.dataloader.batch_size} per process: lower "
                "train_dataloader.batch_size or optim_wrapper.accumulative_counts"
            )
        head = getattr(unwrap_model(self.runner.model), "cls_head", None)
        if head is not None:
            check_labels(self.dataloader.dataset, head.num_classes)
        accumulation = self.runner.optim_wrapper._accumulative_counts
        for hook in self.runner.hooks:
            if isinstance(hook, CheckpointHook) and not hook.by_epoch:
                if hook.interval > 0 and hook.interval % accumulation:
                    raise ValueError(
                        f"checkpoint interval {hook.interval} (iterations) must be a multiple of "
                        f"accumulative_counts={accumulation}: half a step cannot be resumed"
                    )

    def run_epoch(self) -> None:
        """Iterate over what is left of the epoch."""
        self._stop_if_asked()  # while the epoch before was judged
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        seen = self._iter - self._epoch * self.iters_per_epoch
        if not 0 <= seen <= self.iters_per_epoch:
            raise ValueError(
                f"iteration {self._iter} is not in epoch {self._epoch} of {self.iters_per_epoch} "
                "iterations: the checkpoint is of another batch size or number of processes; "
                "resume with the same, or load its weights by --cfg-options load_from=PATH"
            )
        left = self.iters_per_epoch - seen
        if left:  # none when the checkpoint was written between an epoch's last step and its end
            if seen:
                self.dataloader.sampler.set_start(seen * self.dataloader.batch_size)
            with report_worker_crashes(self.dataloader):
                batches = copied_ahead(islice(self.dataloader, left), self._device())
                for idx, data_batch in enumerate(batches, start=seen):
                    self.run_iter(idx, data_batch)
                    if self._may_stop():
                        self._stop_if_asked()
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def _loaders(self) -> list[DataLoader]:
        validation = self.runner.val_loop
        return [self.dataloader, *([] if validation is None else [validation.dataloader])]

    def _may_stop(self) -> bool:
        """Whether a step is whole; for several GPUs also whether they are to agree on a stop."""
        steps, half = divmod(self._iter, self.runner.optim_wrapper._accumulative_counts)
        if half or get_world_size() == 1 or self._device().type == "cpu":
            return not half
        return steps % _STEPS_PER_AGREEMENT == 0 or self._iter % self.iters_per_epoch == 0

    def _stop_if_asked(self) -> None:
        """Raises _Stopped on all processes when one of them has got a signal."""
        asked = self._signals.asked
        if get_world_size() > 1:
            common = torch.tensor([asked])
            all_reduce(common, op="max")
            asked = int(common)
        if asked:
            raise _Stopped(signal.Signals(asked))

    def _save_stopped(self, by: signal.Signals) -> None:
        """Write where the training is; only the newest of such checkpoints is kept."""
        hub, folder = self.runner.message_hub, Path(self.runner.work_dir)
        path = folder / f"iter_{self._iter}.pth"
        # A CheckpointHook by iterations has perhaps just written it; then it is that hook's.
        if hub.runtime_info.get("last_ckpt") != str(path):
            before = hub.runtime_info.get(_STOP_CHECKPOINT)
            hub.update_info(_STOP_CHECKPOINT, path.name)
            meta = {"epoch": self._epoch, "iter": self._iter}
            self.runner.save_checkpoint(str(folder), path.name, meta=meta, by_epoch=False)
            if before not in (None, path.name) and is_main_process():
                (folder / before).unlink(missing_ok=True)
        self.runner.logger.info(
            f"stopped by {by.name}: checkpoint {path} written; go on with --resume"
        )

    def _device(self) -> torch.device:
        return next(unwrap_model(self.runner.model).parameters()).device
