"""Logged values: their mean over ranks, training speed and time spent waiting for data."""

from __future__ import annotations

import math

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import Hook

from sce_video.engine.alarms import Alarm, report_alarm
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.registry import HOOKS
from sce_video.utils.errors import UserError

_SHOWN_FILES = 8


class NonFiniteLossError(UserError, FloatingPointError):
    """The loss is infinite or NaN."""


@HOOKS.register_module()
class LogReductionHook(Hook):
    """Averages the logged values over all ranks before they are logged; stops on NaN.

    Args:
        max_nonfinite: Consecutive iterations whose loss may be infinite or NaN (a few are normal
            while the fp16 loss scaler finds its scale) before the training stops.

    Raises:
        ValueError: ``max_nonfinite`` is negative.
    """

    priority = "HIGHEST"

    def __init__(self, max_nonfinite: int = 10) -> None:
        if max_nonfinite < 0:
            raise ValueError(f"max_nonfinite must not be negative, got {max_nonfinite}")
        self.max_nonfinite = max_nonfinite
        self._nonfinite = 0

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Raise NonFiniteLossError after too many losses that are not finite.

        The message names the last checkpoint and the files of the batch.
        """
        if not outputs:
            return
        names = [name for name, value in outputs.items() if isinstance(value, torch.Tensor)]
        values = torch.stack([outputs[name].detach().float() for name in names])
        if get_world_size() > 1:
            all_reduce(values, op="mean")
        numbers = values.tolist()  # the only synchronisation with the device
        outputs.update(zip(names, numbers, strict=True))
        loss = outputs.get("loss", 0.0)
        self._nonfinite = 0 if math.isfinite(loss) else self._nonfinite + 1
        if self._nonfinite > self.max_nonfinite:
            text = (
                f"the loss was not finite for {self._nonfinite} iterations up to iteration "
                f"{runner.iter + 1}: lower the learning rate or train without float16; "
                f"{_last_checkpoint(runner)}{_files_of_batch(runner, data_batch)}"
            )
            alarm = Alarm("loss_not_finite", text, self._nonfinite, self.max_nonfinite, "error")
            report_alarm(runner, alarm, runner.iter + 1, to_log=False)  # the error ends the run
            raise NonFiniteLossError(text)


def _last_checkpoint(runner) -> str:
    found = find_checkpoints(runner.work_dir)
    if not found:
        return "there is no earlier checkpoint"
    return f"the last checkpoint is {found[0]} (its weights may have grown already)"


def _files_of_batch(runner, data_batch: dict | None) -> str:
    """``; this batch: a.mp4, b.mp4``, of this rank; empty if the data set names no files."""
    path_of = getattr(runner.train_dataloader.dataset, "path", None)
    indices = (data_batch or {}).get("index")
    if path_of is None or indices is None:
        return ""
    paths = [path_of(int(index)) for index in indices]
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    return f"; files of this batch: {', '.join(paths[:_SHOWN_FILES])}{more}"


@HOOKS.register_module()
class ProgressHook(Hook):
    """Logs ``videos_per_s`` (all ranks) and ``data_wait``, the share of time spent on waiting.

    Entries of mmengine's histories have a value and a count, and a mean is the sum of values over
    the sum of counts. The count here is the iteration's time in microseconds, so that the logged
    mean of a window is its videos over its seconds and not a mean of rates.
    """

    priority = "NORMAL"  # custom hooks follow IterTimerHook of the same priority

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        hub = runner.message_hub
        # counts are integers, in mmengine and in checkpoints
        spent = max(1, round(hub.get_scalar("train/time").current() * 1e6))
        waited = hub.get_scalar("train/data_time").current() * 1e6
        videos = runner.train_dataloader.batch_size * get_world_size()
        hub.update_scalar("train/videos_per_s", videos * 1e6, count=spent)
        hub.update_scalar("train/data_wait", min(waited, float(spent)), count=spent)
