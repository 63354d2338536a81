"""Training loop that can be stopped and resumed in the middle of an epoch.

:class:`StopSignals` records the signals that stop training, and :func:`copied_ahead` copies each
batch to the GPU during the previous step.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from sce_video.datasets.loading.failures import (
    STOPPING,
    outliving_workers,
    report_worker_crashes,
    start_workers,
)
from sce_video.engine.checkpoint import STOP_CHECKPOINT
from sce_video.engine.restarts import recorded_start
from sce_video.engine.run_json import INTERRUPTED
from sce_video.engine.training_check import check_training, describe_training, training_warnings
from sce_video.registry import LOOPS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.errors import Alarm, UserError
from sce_video.utils.files import WriteError
from sce_video.utils.private_parts import end_persistent_workers
from sce_video.utils.records import at


class StopSignals:
    """Context manager that only records SIGINT, SIGTERM, SIGHUP and SIGUSR1.

    A second SIGINT raises KeyboardInterrupt immediately. Ignored signals stay ignored, for example
    SIGINT in background jobs of a shell script and SIGHUP under ``nohup``. Outside the main thread,
    where Python allows no signal handlers, nothing changes.

    Attributes:
        received: Number of the first signal; 0 before a signal.
    """

    def __init__(self) -> None:
        self.received = 0
        self._pid = os.getpid()
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, previous in self._previous.items():
            # A handler that was not installed from Python appears as None and cannot be restored.
            previous = signal.SIG_DFL if previous is None else previous
            if number == self.received == signal.SIGUSR1:
                # Slurm and torchrun may both send SIGUSR1. The second one must not end the program.
                previous = signal.SIG_IGN
            signal.signal(number, previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child process inherits this handler
            if number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.received = self.received or number
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)  # a second Ctrl-C ends the step
            if is_main_process():
                # Do not use the log, because the interrupted code may hold a log handler's lock.
                os.write(2, b"\nstopping after this step. Press Ctrl-C again to stop immediately\n")


#: Batch from ``collate_views``, by entry name.
Batch = dict[str, Any]
#: Maximum number of steps by which the host may run ahead of the GPU. More steps would only keep
#: more batches in memory.
_STEPS_AHEAD = 2


def copied_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the batches of ``collate_views`` with their views on the GPU, copied one batch ahead.

    The copy of a batch is queued on a separate stream before the previous step, so that both
    overlap. This requires pinned memory, and GPU memory for the uint8 views of four batches.
    Because the host does not wait for the GPU between two log lines, it is kept at most two steps
    ahead. ``seed``, which determines random draws, stays on the CPU, where it is read. On a CPU,
    the batches are yielded unchanged.
    """
    if device.type != "cuda":
        yield from batches
        return
    stream = _copy_stream(device)

    def copies() -> Iterator[Any]:
        for batch in batches:
            with torch.cuda.stream(stream):
                views = [view.to(device, non_blocking=True) for view in batch["inputs"]]
                arrived = stream.record_event()
            yield {**batch, "inputs": views}, arrived

    begun: deque[torch.cuda.Event] = deque()
    # Yield each batch after queueing the copy of the next one.
    for (batch, arrived), _ in pairwise(chain(copies(), [None])):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        for view in batch["inputs"]:
            view.record_stream(current)  # keeps its memory from being reused before the step
        step = torch.cuda.Event(blocking=True)  # lets the host sleep instead of polling
        step.record(current)
        begun.append(step)
        yield batch
        if len(begun) > _STEPS_AHEAD:
            begun.popleft().synchronize()


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    # Use one stream for all epochs, because the allocator caches memory separately per stream.
    return torch.cuda.Stream(device)


#: The ranks agree on whether to stop only once in this many optimiser steps, because all GPUs have
#: to wait meanwhile.
_STEPS_PER_AGREEMENT = 10
#: Value that stands for a failure when ranks exchange signal numbers.
_FAILURE = 128


class TrainingStepError(RuntimeError):
    """Error in a training step, whose ``__cause__`` is a ValueError, OSError or similar.

    Before training, such an error means a wrong setting or file, and its message is sufficient. In
    a step, it may be caused by a bug, so the traceback matters.
    """


@dataclass
class _Stopped(Exception):  # noqa: N818 - a control-flow exception rather than an error
    """Exception that leaves the epoch, so that the checkpoint is written outside it."""

    by: signal.Signals | Exception


@LOOPS.register_module()
class ResumableTrainLoop(EpochBasedTrainLoop):
    """Training loop over whole optimiser steps, which can be resumed after any step.

    mmengine restarts a resumed epoch from its first sample. Here, the sampler skips the samples
    that the epoch has already used, so they are neither trained on nor decoded again. With gradient
    accumulation, an epoch ends with its last whole optimiser step, and the remaining batches are
    left out.

    Attributes:
        stopped_by: Signal that ended the last :meth:`run`; None if it ran to its end.
        failure: Exception set by a hook. Training writes a checkpoint and then raises it.
        warnings: Warnings logged before the last :meth:`run`.
        replans: Pairs (optimiser step, new total), one for each change of the training length.
        learns_by_steps: Whether few optimiser steps mean that little is learned.
    """

    learns_by_steps = True
    stopped_by: signal.Signals | None = None
    failure: Exception | None = None
    warnings: Sequence[str | Alarm] = ()
    replans: Sequence[tuple[int, int]] = ()

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
    ) -> None:
        for name, value in (("max_epochs", max_epochs), ("val_interval", val_interval)):
            if value < 1 or int(value) != value:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
        super().__init__(runner, dataloader, max_epochs, val_begin, val_interval)
        self.planned_epochs = int(max_epochs)

    @property
    def _accumulation(self) -> int:
        wrapper = self.runner.optim_wrapper
        if isinstance(wrapper, dict):  # it has not been built yet
            return at(wrapper, "accumulative_counts", int) or 1
        return wrapper._accumulative_counts

    @property
    def iters_per_epoch(self) -> int:
        """Number of iterations (micro-batches) per epoch."""
        return len(self.dataloader) // self._accumulation * self._accumulation

    @property
    def max_iters(self) -> int:
        """Number of iterations in the whole training run."""
        if self.replans:
            return self.replans[-1][1] * self._accumulation
        return self._max_epochs * self.iters_per_epoch

    @property
    def max_steps(self) -> int:
        """Number of optimiser steps in the whole training run."""
        return self.max_iters // self._accumulation

    @property
    def planned_steps(self) -> int:
        """Number of optimiser steps planned at the start, over which the schedules are defined."""
        return self.iters_per_epoch // self._accumulation * self.planned_epochs

    def replan(self, step: int, total: int) -> None:
        """Change the length of the run to ``total`` optimiser steps, possibly within an epoch.

        The schedules continue from their values at ``step``, the number of completed steps.

        Raises:
            ValueError: If ``total`` is below ``step``.
        """
        if total < step:
            raise ValueError(f"{step} steps are already done, so the run cannot end after {total}")
        self.replans = [*self.replans, (step, total)]
        self._max_epochs = -(-self.max_iters // self.iters_per_epoch)

    def run(self):
        """Train until the end or until a signal.

        SIGINT, SIGTERM, SIGHUP and SIGUSR1 end training after a whole optimiser step, with a
        checkpoint. ``stopped_by`` then contains the signal.

        Raises:
            ValueError: If a run with these settings could not be resumed, or would never complete a
                step.
            Exception: If a hook has set ``failure``. All ranks raise it after the checkpoint.
            TrainingStepError: If a step raises a ValueError or OSError.
        """
        check_training(self)
        self._max_epochs = -(-self.max_iters // self.iters_per_epoch)  # a resumed run may be longer
        for line in describe_training(self):
            self.runner.logger.info(line)
        self.warnings = training_warnings(self)
        for warning in self.warnings:
            self.runner.logger.warning(str(warning))
        self.stopped_by = self.failure = None
        if self._epoch >= self._max_epochs or self._iter >= self.max_iters:
            self.runner.logger.warning(
                f"the run is finished: all {self.max_iters} iterations of its {self._max_epochs} "
                "epochs are done, so there is nothing to resume. To train longer, use "
                "--cfg-options train_cfg.max_epochs=N"
            )
        if self._epoch >= self._max_epochs:
            return self.runner.model
        self.runner.call_hook("before_config_dump")
        self.runner.dump_config()
        validation = [loop.dataloader for loop in [self.runner.val_loop] if loop is not None]
        try:
            with (
                StopSignals() as self._signals,
                outliving_workers(self.dataloader, *validation),
                recorded_start(self.runner) as end,
            ):
                try:
                    super().run()
                except _Stopped as stop:
                    name = getattr(stop.by, "name", type(stop.by).__name__)
                    self._save_stopped(name)
                    if isinstance(stop.by, Exception):
                        raise stop.by from None
                    self.stopped_by = stop.by
                    end.status, end.message = INTERRUPTED, name
                    self.runner.call_hook("after_train")
                if self.failure is not None:  # a hook may set this at the end of the last epoch
                    raise self.failure
        finally:
            self.runner.call_hook("after_stop")
            with suppress(RuntimeError):  # torch may report a crashed worker a second time
                end_persistent_workers(self.dataloader)
        return self.runner.model

    def run_epoch(self) -> None:
        """Train on the rest of the epoch."""
        self._stop_if_asked()  # a signal may have arrived during the last epoch's evaluation
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        seen = self._iter - self._epoch * self.iters_per_epoch
        if not 0 <= seen <= self.iters_per_epoch:
            raise ValueError(
                f"iteration {self._iter} is not in epoch {self._epoch} of {self.iters_per_epoch} "
                "iterations. The checkpoint was written with a different batch size or number of "
                "processes. Resume with the same values, or load only the weights with "
                "--cfg-options load_from=PATH"
            )
        # Checkpoints contain only whole steps, because none is written between micro-batches.
        left = self.iters_per_epoch - seen
        # Nothing is left if the checkpoint was written after the last step, before the epoch ended.
        if left and self._iter < self.max_iters:
            if seen:
                self.dataloader.sampler.set_start(seen * self.dataloader.batch_size)
            with report_worker_crashes(self.dataloader):
                device = next(unwrap_model(self.runner.model).parameters()).device
                alone = get_world_size() == 1 or device.type == "cpu"
                batches = copied_ahead(islice(start_workers(self.dataloader), left), device)
                for idx, data_batch in enumerate(batches, start=seen):
                    self.run_iter(idx, data_batch)
                    steps, micro_batches = divmod(self._iter, self._accumulation)
                    agree = alone or steps % _STEPS_PER_AGREEMENT == 0
                    if not micro_batches and (agree or self._iter % self.iters_per_epoch == 0):
                        self._stop_if_asked()
                    if self._iter >= self.max_iters:  # a hook may change the total during an epoch
                        break
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: dict) -> None:
        """Run one iteration.

        Raises:
            WriteError: If a checkpoint cannot be written.
            TrainingStepError: If it raises a ValueError, OSError, AssertionError or KeyError.
        """
        if self.runner.cfg.get("compile"):  # CUDA graphs reuse the memory of earlier outputs
            torch.compiler.cudagraph_mark_step_begin()
        try:
            super().run_iter(idx, data_batch)
        except WriteError:  # its message is sufficient without a traceback
            raise
        except (ValueError, OSError, AssertionError, KeyError) as error:
            raise TrainingStepError(
                f"iteration {self._iter} failed: {type(error).__name__}: {error}"
            ) from error

    def _stop_if_asked(self) -> None:
        """Raise _Stopped on all ranks if any rank has received a signal or failed."""
        received = self._signals.received if self.failure is None else _FAILURE
        if get_world_size() > 1:
            common = torch.tensor([received])
            all_reduce(common, op="max")
            received = int(common)
        if received == _FAILURE:
            elsewhere = UserError("another process of this run has failed. See its message")
            raise _Stopped(self.failure or elsewhere)
        if received:
            raise _Stopped(signal.Signals(received))

    def _save_stopped(self, by: str) -> None:
        """Write a checkpoint of the current step, and remove the previous one of this kind."""
        hub, folder = self.runner.message_hub, Path(self.runner.work_dir)
        path = folder / f"iter_{self._iter}.pth"
        # If an iteration-based CheckpointHook has just written this file, the hook also removes it.
        if hub.runtime_info.get("last_ckpt") != str(path):
            # Store the name in the message hub before writing. The checkpoint contains the hub, in
            # which a resumed run looks up the name.
            before = hub.runtime_info.get(STOP_CHECKPOINT)
            hub.update_info(STOP_CHECKPOINT, path.name)
            meta = {"epoch": self._epoch, "iter": self._iter}
            self.runner.save_checkpoint(str(folder), path.name, meta=meta, by_epoch=False)
            if before not in (None, path.name) and is_main_process():
                (folder / before).unlink(missing_ok=True)
                self.runner.call_hook("after_removal", names=[before])
        self.runner.logger.info(
            f"stopped by {by}. The checkpoint {path} is written. Continue with --resume"
        )
