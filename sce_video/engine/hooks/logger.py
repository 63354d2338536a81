"""Logged rows: a line of the log, TensorBoard and the like, and ``metrics.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mmengine.hooks
from mmengine.dist import is_main_process

from sce_video.engine.history import accumulated_before_and_now
from sce_video.registry import HOOKS
from sce_video.utils.atomic_file import WriteError
from sce_video.utils.run_files import METRICS, append_row, keep_rows_until

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
        self._warned = False
        if is_main_process():
            path = Path(runner.work_dir, METRICS)
            if runner.iter == 0:
                path.unlink(missing_ok=True)
            try:
                keep_rows_until(path, runner.iter, accumulated_before_and_now(runner))
            except WriteError as error:
                self._warn(runner, error)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Log every ``interval`` iterations of an epoch, and its last one (``ignore_last``)."""
        is_last = self.end_of_epoch(runner.train_dataloader, batch_idx)
        log_last = not self.ignore_last or len(runner.train_dataloader) <= self.interval
        if not self.every_n_inner_iters(batch_idx, self.interval) and not (is_last and log_last):
            return
        values, text = runner.log_processor.get_log_after_iter(runner, batch_idx, "train")
        runner.logger.info(text)
        runner.visualizer.add_scalars(values, step=runner.iter + 1, file_path=self.json_log_path)
        log_row(runner, "train", runner.iter + 1, runner.epoch + 1, values)

    def after_val_epoch(self, runner, metrics: dict[str, float] | None = None) -> None:
        """Log the metrics of a validation."""
        super().after_val_epoch(runner, metrics)
        if runner._train_loop is not None:  # not a validation alone
            log_row(runner, "val", runner.iter, runner.epoch, metrics or {})

    def after_row(self, runner, row: dict[str, Any]) -> None:
        """Append a row to ``metrics.jsonl``."""
        if is_main_process():
            try:
                append_row(Path(runner.work_dir, METRICS), row)
            except WriteError as error:
                self._warn(runner, error)

    def _warn(self, runner, error: WriteError) -> None:
        if not self._warned:  # the next row is tried again
            runner.logger.warning(f"{error}; the training goes on")
        self._warned = True
