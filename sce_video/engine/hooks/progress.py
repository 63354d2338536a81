"""What a training measures and logs: losses, speed, rows of numbers, files not decoded."""

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

from sce_video.datasets.loading.bad_files import BadFileReport
from sce_video.datasets.readers.base import TooManyBadFilesError
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.hooks.alarms import report_alarm
from sce_video.engine.restarts import append_or_warn, continue_rows, warned_once
from sce_video.registry import HOOKS
from sce_video.utils.command import printable_utf8
from sce_video.utils.distributed import gather_objects, unwrap_model
from sce_video.utils.errors import NamedWarning, UserError
from sce_video.utils.run_files import METRICS
from sce_video.utils.tensors import DeferredNumber

BAD_FILES = "bad_files.jsonl"


@HOOKS.register_module()
class BadFileHook(Hook):
    """Collects the decoding failures that come with the batches; stops when there are too many.

    Every rank counts its own failures as they come. At the end of an epoch those of all ranks are
    merged, so that the report of rank 0 (JSON lines: path, count, error) is complete. A training
    whose share of unreadable files is above ``max_bad_share`` ends on all ranks, after a
    checkpoint, by a TooManyBadFilesError.

    Raises:
        ValueError: ``max_bad_share`` outside 0 to 1.
    """

    def __init__(self, max_bad_share: float = 0.05) -> None:
        if not 0.0 <= max_bad_share <= 1.0:
            raise ValueError(f"max_bad_share must be from 0 to 1, got {max_bad_share}")
        self.max_bad_share, self._logged = max_bad_share, 0  # files in the log's last count
        self._fresh: list[tuple[str, str]] = []

    def before_train(self, runner) -> None:
        """Start a report, or continue that of a resumed run."""
        path = Path(runner.work_dir, BAD_FILES) if is_main_process() else None
        if path is not None and runner.iter == 0:
            path.unlink(missing_ok=True)  # of an earlier run in the same folder
        files = len(runner.train_dataloader.dataset)
        self.report = BadFileReport(path, num_files=files, max_bad_share=self.max_bad_share)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """End the training when this rank has met too many bad files."""
        failures = [tuple(failure) for failure in data_batch.get("failures", [])]
        for path, error in failures:
            if path not in self.report.counts:
                text = f"cannot decode {path}, another video replaces it: {error}"
                runner.logger.warning(printable_utf8(text))
        self._fresh += failures
        self._add(runner, failures)

    def after_train_epoch(self, runner) -> None:
        """Merge all ranks' failures; end the training when they are too many together."""
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
    """The loss is infinite or NaN."""


class _Values(NamedTuple):
    """The logged values of one iteration, which may not have been computed yet."""

    iteration: int
    tensors: dict[str, torch.Tensor]
    deferred: dict[str, DeferredNumber]
    samples: torch.Tensor | None  # indices of the samples of the batch


@HOOKS.register_module()
class LogReductionHook(Hook):
    """Reads the logged values from the device, as means over all ranks; stops on NaN.

    Reading waits for the device, and a GPU that waits for its next kernels idles. So on a GPU the
    values of all iterations since the last line of the log are read together, when the next line is
    due, at the end of an epoch, and before a checkpoint. In between, the ``outputs`` that other
    hooks get are without them. A :class:`~sce_video.utils.tensors.DeferredNumber`
    (the effective rank on a GPU) is read from the last of these iterations and logged for all.

    Args:
        max_nonfinite: Consecutive iterations whose loss may be infinite or NaN (a few are normal
            while the fp16 loss scaler finds its scale) before the training stops: at the latest
            ``interval`` iterations after that.
        interval: Iterations that are read together; None: 1 on a CPU, on a GPU that of the log.

    Raises:
        ValueError: ``max_nonfinite`` is negative, or ``interval`` below 1.
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
        """Find the interval of the log."""
        self._waiting = []
        on_gpu = next(unwrap_model(runner.model).parameters()).device.type != "cpu"
        if on_gpu or self.interval is not None:
            loggers = (h.interval for h in runner.hooks if isinstance(h, mmengine.hooks.LoggerHook))
            self._log_interval = next(loggers, 1)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Raise NonFiniteLossError after too many losses that are not finite.

        The message names the last checkpoint and the files of the batch.
        """
        if not outputs:
            return
        tensors = {k: v.detach() for k, v in outputs.items() if isinstance(v, torch.Tensor)}
        deferred = {k: v for k, v in outputs.items() if isinstance(v, DeferredNumber)}
        index = (data_batch or {}).get("index")
        self._waiting.append(_Values(runner.iter, tensors, deferred, index))
        for name in (*tensors, *deferred):
            del outputs[name]
        full = len(self._waiting) >= (self.interval or math.inf)
        is_logged = (batch_idx + 1) % self._log_interval == 0
        if full or is_logged or (runner.iter + 1) % runner.train_loop.iters_per_epoch == 0:
            *before, current = self._read(runner)
            _to_history(runner, before)
            outputs.update(current)  # for the hooks of this iteration; one of them keeps it

    def before_checkpoint(self, runner) -> None:
        """Complete the histories, which a checkpoint holds; called on all ranks."""
        _to_history(runner, self._read(runner) if self._waiting else ())

    after_train = before_checkpoint

    def _read(self, runner) -> list[dict[str, float]]:
        """Read and check the values of all iterations since the last time."""
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
        finite = math.isfinite(row.get("loss", 0.0))
        self._nonfinite = 0 if finite else self._nonfinite + 1
        if self._nonfinite <= self.max_nonfinite:
            return
        last, files = "there is no earlier checkpoint", ""
        if found := find_checkpoints(runner.work_dir):
            last = f"the last checkpoint is {found[0]} (its weights may have grown already)"
        path_of = getattr(runner.train_dataloader.dataset, "path", None)
        if path_of is not None and entry.samples is not None:  # of this rank
            paths = [path_of(int(index)) for index in entry.samples]
            more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
            files = f"; files of this batch: {', '.join(paths[:8])}{more}"
        text = (
            f"the loss was not finite for {self._nonfinite} iterations up to iteration "
            f"{entry.iteration + 1}: lower the learning rate or train without float16; "
            f"{last}{files}"
        )
        numbers = self._nonfinite, self.max_nonfinite
        alarm = NamedWarning(text, "loss_not_finite", *numbers, "error")
        self._waiting = []
        report_alarm(runner, alarm, entry.iteration + 1, to_log=False)  # the error ends the run
        raise NonFiniteLossError(text)


def _to_history(runner, rows: Iterable[dict[str, float]]) -> None:
    for row in rows:
        for name, value in row.items():
            runner.message_hub.update_scalar(f"train/{name}", value)


@HOOKS.register_module()
class ProgressHook(Hook):
    """Logs ``videos_per_s`` (all ranks) and ``data_wait``, the share of time spent on waiting.

    Of the clips of RGB differences also ``diff_repeats``, the share in which frames repeat, and
    ``diff_as_rgb``, the share that keep their colours (of rank 0). A GPU works while the host waits
    for data: there only the time counts in which it had nothing to do, between the end of a step
    and the beginning of the next one, by its own clock.

    Entries of mmengine's histories have a value and a count, and a mean is the sum of values over
    the sum of counts. The count here is the iteration's time in microseconds, so that the logged
    mean of a window is its videos over its seconds and not a mean of rates.
    """

    priority = "NORMAL"  # custom hooks follow IterTimerHook of the same priority

    def __init__(self) -> None:
        self._ended = self._begun = None  # the GPU's end of the last step, and begin of this one
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
        # counts are integers, in mmengine and in checkpoints
        spent = max(1, round(hub.get_scalar("train/time").current() * 1e6))
        waited = hub.get_scalar("train/data_time").current() * 1e6
        videos = runner.train_dataloader.batch_size * get_world_size()
        hub.update_scalar("train/videos_per_s", videos * 1e6, count=spent)
        wanted, repeats, as_rgb = (data_batch or {}).get("differences", (0, 0, 0))
        if wanted:
            hub.update_scalar("train/diff_repeats", repeats, count=wanted)
            hub.update_scalar("train/diff_as_rgb", as_rgb, count=wanted)
        self._waiting.append((spent, waited, self._ended, self._begun))
        self._ended = self._event()
        self._log_waits(hub)

    def before_checkpoint(self, runner) -> None:
        """Complete the history, which a checkpoint holds."""
        if self._ended is not None:
            self._ended.synchronize()
        self._log_waits(runner.message_hub)

    def _log_waits(self, hub: Any) -> None:
        """Log the waits of iterations that the GPU has begun, without waiting for it."""
        while self._waiting:
            spent, waited, ended, begun = self._waiting[0]
            if begun is not None and not begun.query():
                return
            if ended is not None:  # a wait in which the GPU still worked costs nothing
                waited = min(waited, 1e3 * ended.elapsed_time(begun))
            hub.update_scalar("train/data_wait", min(waited, float(spent)), count=spent)
            self._waiting.popleft()

    def _event(self) -> Any:
        """A point in the GPU's time; None on a CPU."""
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


# mmengine's name of a value: its name in a row, where `time` is the time of day.
_RENAMED = {"time": "step_seconds", "data_time": "data_seconds"}
_NO_METRICS = ("step", "epoch", "iter")


def log_row(runner: Any, kind: str, iteration: int, epoch: int, values: Mapping[str, Any]) -> None:
    """Hand a row of numbers to all hooks that have ``after_row(runner, row)``.

    :class:`LoggerHook` writes it to ``metrics.jsonl``.

    Args:
        runner: The runner.
        kind: ``train``, ``online``, ``val`` or ``random``, a comparison with random weights.
        iteration: Number of iterations done.
        epoch: Epoch, from 1; 0 before the first step.
        values: By name; those that are no numbers are left out.
    """
    row: dict[str, Any] = {"kind": kind, "iter": iteration, "epoch": epoch, "time": time.time()}
    for name, value in values.items():
        if name not in _NO_METRICS and isinstance(value, int | float):
            row[_RENAMED.get(name, name)] = value
    runner.call_hook("after_row", row=row)


@HOOKS.register_module()
class LoggerHook(mmengine.hooks.LoggerHook):
    """mmengine's hook, whose rows also go to ``metrics.jsonl`` and to the other hooks.

    The arguments are mmengine's. A resumed training removes the rows that it computes again; a new
    one begins the file. Where the file cannot be written, one warning says so.
    """

    def before_train(self, runner) -> None:
        """Begin the file, or continue that of a resumed run."""
        continue_rows(runner, METRICS)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Log every ``interval`` iterations of an epoch, and its last one (``ignore_last``)."""
        is_last = self.end_of_epoch(runner.train_dataloader, batch_idx)
        log_last = not self.ignore_last or len(runner.train_dataloader) <= self.interval
        if not self.every_n_inner_iters(batch_idx, self.interval) and not (is_last and log_last):
            return
        values, text = runner.log_processor.get_log_after_iter(runner, batch_idx, "train")
        runner.logger.info(text)
        runner.visualizer.add_scalars(values, step=runner.iter + 1, file_path=self.json_log_path)
        # Of SimCLR it depends on the batch, so a page could not find it from the config.
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)()
        known = {} if chance is None else {"chance_level": chance}
        log_row(runner, "train", runner.iter + 1, runner.epoch + 1, {**values, **known})

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        """Log the metrics of a validation."""
        super().after_val_epoch(runner, metrics)
        if runner._train_loop is not None:  # not a validation alone
            log_row(runner, "val", runner.iter, runner.epoch, metrics or {})

    def after_row(self, runner, row: dict[str, Any]) -> None:
        """Append a row to ``metrics.jsonl``."""
        append_or_warn(runner, METRICS, row)


@HOOKS.register_module()
class OptimizerStepHook(Hook):
    """Calls the model's ``before_`` and ``after_optimizer_step()`` once per real optimiser step.

    The optimiser itself reports a step: hooks of its ``step`` fire neither for the micro-batches of
    an accumulated step nor for a step that the fp16 loss scaler skips; for a skipped step
    ``discard_step()`` is called. Before training the buffers of rank 0 are copied to all ranks, so
    that all start from the same state.
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
