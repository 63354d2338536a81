"""Hooks that measure and log training: losses, speed, metrics and files that failed to decode."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mmengine.hooks
import torch
from mmengine.dist import all_reduce, broadcast, get_world_size, is_main_process
from mmengine.hooks import Hook
from torch.utils.hooks import RemovableHandle

from sce_video.datasets.loading.failures import BadFileReport
from sce_video.datasets.readers.base import TooManyBadFilesError
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.hooks.alarms import report_alarm
from sce_video.engine.restarts import append_or_warn, continue_rows, warned_once
from sce_video.registry import HOOKS
from sce_video.utils.command import printable_utf8
from sce_video.utils.distributed import gather_objects, unwrap_model
from sce_video.utils.errors import Alarm, UserError
from sce_video.utils.records import at
from sce_video.utils.run_files import BAD_FILES, METRICS
from sce_video.utils.tensors import DeferredNumber


@HOOKS.register_module()
class BadFileHook(Hook):
    """Hook that collects decoding failures from the batches and stops when there are too many.

    Every rank counts its own failures. At the end of each epoch, the failures of all ranks are
    merged, so that the report of rank 0 (JSON lines: path, count, error) is complete. If the share
    of unreadable files exceeds ``max_bad_share``, training ends on all ranks with a checkpoint and
    a TooManyBadFilesError.

    Raises:
        ValueError: If ``max_bad_share`` is not from 0 to 1.
    """

    def __init__(self, max_bad_share: float = 0.05) -> None:
        if not 0.0 <= max_bad_share <= 1.0:
            raise ValueError(f"max_bad_share must be from 0 to 1, got {max_bad_share}")
        self.max_bad_share, self._logged = max_bad_share, 0  # number of files logged so far
        self._fresh: list[tuple[str, str]] = []

    def before_train(self, runner) -> None:
        """Start a report, or continue the report of a resumed run."""
        path = Path(runner.work_dir, BAD_FILES) if is_main_process() else None
        if path is not None and runner.iter == 0:
            path.unlink(missing_ok=True)  # left by an earlier run in the same folder
        files = len(runner.train_dataloader.dataset)
        self.report = BadFileReport(path, num_files=files, max_bad_share=self.max_bad_share)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """End training if this rank has read too many bad files."""
        failures = [tuple(failure) for failure in at(data_batch, "failures", list) or ()]
        for path, error in failures:
            if path not in self.report.counts:
                text = f"cannot decode {path}, another video replaces it: {error}"
                runner.logger.warning(printable_utf8(text))
        self._fresh += failures
        self._add(runner, failures)

    def after_train_epoch(self, runner) -> None:
        """Merge the failures of all ranks, and end training if there are too many in total."""
        of_all_ranks: list[list[tuple[str, str]]] = gather_objects(self._fresh)
        own, self._fresh = set(self._fresh), []
        self._add(runner, [f for failures in of_all_ranks for f in failures if f not in own])
        if is_main_process() and len(self.report) > self._logged:
            self._logged = len(self.report)
            runner.logger.info(
                f"{len(self.report)} of {self.report.num_files} files could not be decoded so "
                f"far, see {self.report.path}"
            )

    def _add(self, runner, failures: list[tuple[str, str]]) -> None:
        try:
            with warned_once(runner, BAD_FILES):
                self.report.add(failures)
            self.report.check()
        except TooManyBadFilesError as error:
            runner.train_loop.failure = error


class NonFiniteLossError(UserError, FloatingPointError):
    """Error raised if the loss is infinite or NaN."""


class _Values(NamedTuple):
    """Logged values of one iteration, which the GPU may still have to compute.

    Attributes:
        iteration: Number of the iteration.
        tensors: Scalar tensors by name.
        deferred: Numbers that are read later, by name.
        samples: Dataset indices of the samples in the batch; None if unknown.
    """

    iteration: int
    tensors: dict[str, torch.Tensor]
    deferred: dict[str, DeferredNumber]
    samples: torch.Tensor | None


@HOOKS.register_module()
class LogReductionHook(Hook):
    """Hook that reads the logged values from the device, averages over ranks, and stops on NaN.

    Reading a value waits for the GPU, which is then idle until the next kernels arrive. On a GPU,
    the values of all iterations since the last log line are therefore read together: for the next
    log line, at the end of an epoch, and before a checkpoint. In between, other hooks get
    ``outputs`` without these values. A :class:`~sce_video.utils.tensors.DeferredNumber` (the
    effective rank on a GPU) is read for the last of these iterations and logged for all of them.

    Args:
        max_nonfinite: Number of consecutive iterations whose loss may be infinite or NaN. A few are
            normal while the fp16 loss scaler finds its scale. Training stops at most ``interval``
            iterations later.
        interval: Number of iterations that are read together. None means 1 on a CPU and the log
            interval on a GPU.

    Raises:
        ValueError: If ``max_nonfinite`` is negative or ``interval`` is below 1.
    """

    priority = "HIGHEST"

    def __init__(self, max_nonfinite: int = 10, interval: int | None = None) -> None:
        if max_nonfinite < 0 or (interval is not None and interval < 1):
            given = f"{max_nonfinite} and {interval}"
            raise ValueError(f"max_nonfinite must be at least 0, interval at least 1, got {given}")
        self.max_nonfinite, self.interval = max_nonfinite, interval
        self._log_interval, self._nonfinite = 1, 0
        self._waiting: list[_Values] = []

    def before_train(self, runner) -> None:
        """Read the log interval from the runner's LoggerHook."""
        self._waiting = []
        on_gpu = next(unwrap_model(runner.model).parameters()).device.type != "cpu"
        if on_gpu or self.interval is not None:
            loggers = (h.interval for h in runner.hooks if isinstance(h, mmengine.hooks.LoggerHook))
            self._log_interval = next(loggers, 1)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Raise NonFiniteLossError after too many losses that are not finite.

        The message names the last checkpoint and the files in the batch.
        """
        if not outputs:
            return
        tensors = {k: v.detach() for k, v in outputs.items() if isinstance(v, torch.Tensor)}
        deferred = {k: v for k, v in outputs.items() if isinstance(v, DeferredNumber)}
        index = at(data_batch, "index")
        self._waiting.append(_Values(runner.iter, tensors, deferred, index))
        for name in (*tensors, *deferred):
            del outputs[name]
        full = len(self._waiting) >= (self.interval or math.inf)
        is_logged = (batch_idx + 1) % self._log_interval == 0
        if full or is_logged or (runner.iter + 1) % runner.train_loop.iters_per_epoch == 0:
            *before, current = self._read(runner)
            _to_history(runner, before)
            outputs.update(current)  # for hooks that use the values in this iteration

    def before_checkpoint(self, runner) -> None:
        """Add the waiting values to the histories in the checkpoint. All ranks call this."""
        _to_history(runner, self._read(runner) if self._waiting else ())

    after_train = before_checkpoint

    def _read(self, runner) -> list[dict[str, float]]:
        """Read and check the values of all iterations since the last call."""
        waiting, self._waiting = self._waiting, []
        names = list(waiting[-1].tensors)
        values = torch.stack([torch.stack([w.tensors[n].float() for n in names]) for w in waiting])
        on_host = {name: number.read() for name, number in waiting[-1].deferred.items()}
        if get_world_size() > 1:
            computed = values.new_tensor(list(on_host.values())).expand(len(waiting), -1)
            values = torch.cat([values, computed], dim=1)
            all_reduce(values, op="mean")
            names += on_host
        rows = [dict(zip(names, numbers, strict=True)) for numbers in values.tolist()]
        for row, entry in zip(rows, waiting, strict=True):
            for name, value in on_host.items():
                row.setdefault(name, value)
            self._check(runner, row, entry)
        return rows

    def _check(self, runner, row: dict[str, float], entry: _Values) -> None:
        finite = "loss" not in row or math.isfinite(row["loss"])
        self._nonfinite = 0 if finite else self._nonfinite + 1
        if self._nonfinite <= self.max_nonfinite:
            return
        last, files = "There is no earlier checkpoint", ""
        if found := find_checkpoints(runner.work_dir):
            last = f"The last checkpoint is {found[0]} (its weights may already be too large)"
        path_of = getattr(runner.train_dataloader.dataset, "path", None)
        if path_of is not None and entry.samples is not None:  # only this rank's files are known
            paths = [path_of(int(index)) for index in entry.samples]
            more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
            files = f". Files of this batch: {', '.join(paths[:8])}{more}"
        text = (
            f"the loss was not finite for {self._nonfinite} iterations up to iteration "
            f"{entry.iteration + 1}. Lower the learning rate or train without float16. "
            f"{last}{files}"
        )
        numbers = self._nonfinite, self.max_nonfinite
        alarm = Alarm(text, "loss_not_finite", *numbers, "error")
        self._waiting = []
        report_alarm(runner, alarm, entry.iteration + 1, to_log=False)  # the error is logged anyway
        raise NonFiniteLossError(text)


def _to_history(runner, rows: Iterable[dict[str, float]]) -> None:
    for row in rows:
        for name, value in row.items():
            runner.message_hub.update_scalar(f"train/{name}", value)


@HOOKS.register_module()
class ProgressHook(Hook):
    """Hook that logs the speed in videos per second, and the share of time spent waiting for data.

    ``videos_per_s`` covers all ranks, and ``data_wait`` is the share. For RGB-difference clips, the
    hook also logs ``diff_repeats``, the share in which frames repeat, and ``diff_as_rgb``, the
    share that keep their colours (both on rank 0). A GPU may work while the host waits for data.
    With a GPU, waiting is therefore the GPU's idle time between two steps, measured by its own
    clock.

    Each entry in mmengine's histories has a value and a count, and a mean is the sum of values
    divided by the sum of counts. Here, the count is the iteration's time in microseconds, so the
    logged mean is the number of videos per second over the window, not a mean of rates.
    """

    priority = "NORMAL"  # runs after IterTimerHook, a default hook with this priority

    def __init__(self) -> None:
        self._ended = self._begun = None  # GPU events: end of the last step, start of this step
        self._waiting: deque[tuple[int, float, Any, Any]] = deque()
        self._on_gpu = False

    def before_train(self, runner) -> None:
        self._on_gpu = next(unwrap_model(runner.model).parameters()).device.type == "cuda"
        self._ended = None
        self._waiting.clear()

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        self._begun = self._event()

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        hub = runner.message_hub
        # mmengine and checkpoints require integer counts.
        spent = max(1, round(hub.get_scalar("train/time").current() * 1e6))
        waited = hub.get_scalar("train/data_time").current() * 1e6
        videos = runner.train_dataloader.batch_size * get_world_size()
        hub.update_scalar("train/videos_per_s", videos * 1e6, count=spent)
        wanted, repeats, as_rgb = at(data_batch, "differences") or (0, 0, 0)
        if wanted:
            hub.update_scalar("train/diff_repeats", repeats, count=wanted)
            hub.update_scalar("train/diff_as_rgb", as_rgb, count=wanted)
        self._waiting.append((spent, waited, self._ended, self._begun))
        self._ended = self._event()
        self._log_waits(hub)

    def before_checkpoint(self, runner) -> None:
        """Add the missing values to the history in the checkpoint."""
        if self._ended is not None:
            self._ended.synchronize()
        self._log_waits(runner.message_hub)

    def _log_waits(self, hub: Any) -> None:
        """Log the waiting times of iterations that the GPU has started, without blocking."""
        while self._waiting:
            spent, waited, ended, begun = self._waiting[0]
            if begun is not None and not begun.query():
                return
            if ended is not None:  # waiting costs nothing while the GPU is busy
                waited = min(waited, 1e3 * ended.elapsed_time(begun))
            hub.update_scalar("train/data_wait", min(waited, float(spent)), count=spent)
            self._waiting.popleft()

    def _event(self) -> Any:
        """Record an event on the GPU's timeline; None on a CPU."""
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


#: New names for mmengine's values in a row, where `time` already means the time of day.
_RENAMED = {"time": "step_seconds", "data_time": "data_seconds"}
#: Values logged by mmengine that are not metrics.
_NO_METRICS = ("step", "epoch", "iter")


def log_row(runner: Any, kind: str, iteration: int, epoch: int, values: Mapping[str, Any]) -> None:
    """Pass a row of numbers to all hooks that define ``after_row(runner, row)``.

    :class:`LoggerHook` writes it to ``metrics.jsonl``.

    Args:
        runner: The runner.
        kind: ``train``, ``online``, ``val``, or ``random`` for a comparison with random weights.
        iteration: Number of completed iterations.
        epoch: Epoch, counted from 1; 0 before the first step.
        values: Values by name. Entries that are not numbers are left out.
    """
    row: dict[str, object] = {"kind": kind, "iter": iteration, "epoch": epoch, "time": time.time()}
    for name, value in values.items():
        if name not in _NO_METRICS and isinstance(value, int | float):
            row[_RENAMED.get(name, name)] = value
    runner.call_hook("after_row", row=row)


@HOOKS.register_module()
class LoggerHook(mmengine.hooks.LoggerHook):
    """mmengine's hook, which also writes rows to ``metrics.jsonl`` and passes them to other hooks.

    The arguments are mmengine's. A resumed run removes the rows that it computes again, and a new
    run starts a new file. If the file cannot be written, one warning is logged.
    """

    def before_train(self, runner) -> None:
        """Begin a new file, or continue the file of a resumed run."""
        continue_rows(runner, METRICS)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Log every ``interval`` iterations and, unless ``ignore_last``, an epoch's last one."""
        is_last = self.end_of_epoch(runner.train_dataloader, batch_idx)
        log_last = not self.ignore_last or len(runner.train_dataloader) <= self.interval
        if not self.every_n_inner_iters(batch_idx, self.interval) and not (is_last and log_last):
            return
        values, text = runner.log_processor.get_log_after_iter(runner, batch_idx, "train")
        runner.logger.info(text)
        runner.visualizer.add_scalars(values, step=runner.iter + 1, file_path=self.json_log_path)
        # SimCLR's chance level depends on the batch, so pages cannot compute it from the config.
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)()
        known = {} if chance is None else {"chance_level": chance}
        log_row(runner, "train", runner.iter + 1, runner.epoch + 1, {**values, **known})

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        """Log the metrics of a validation run."""
        super().after_val_epoch(runner, metrics)
        if runner._train_loop is not None:  # a run may also validate without training
            log_row(runner, "val", runner.iter, runner.epoch, metrics or {})

    def after_row(self, runner, row: Mapping[str, object]) -> None:
        """Append a row to ``metrics.jsonl``."""
        append_or_warn(runner, METRICS, row)


@HOOKS.register_module()
class OptimizerStepHook(Hook):
    """Hook that calls the model's ``before_optimizer_step()`` and ``after_optimizer_step()``.

    The calls follow the optimiser's own step hooks. These do not run for the micro-batches of an
    accumulated step, or for a step that the fp16 loss scaler skips. ``discard_step()`` is called
    for a skipped step. Before training, the buffers of rank 0 are copied to all ranks, so that all
    ranks start from the same state.
    """

    priority = "HIGH"

    _stepped = False
    _handles: Sequence[RemovableHandle] = ()

    def before_train(self, runner) -> None:
        self._model = unwrap_model(runner.model)
        for buffer in self._model.buffers():
            broadcast(buffer, src=0)
        optimizer = runner.optim_wrapper.optimizer
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._model.before_optimizer_step()),
            optimizer.register_step_post_hook(lambda *_: setattr(self, "_stepped", True)),
        ]

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._stepped:
            self._model.after_optimizer_step()
        elif runner.optim_wrapper.should_update():
            self._model.discard_step()
        self._stepped = False

    def after_train(self, runner) -> None:
        for handle in self._handles:
            handle.remove()
