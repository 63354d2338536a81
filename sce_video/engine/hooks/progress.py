"""What a user watches: speed, waiting for data, losses of all ranks."""

from __future__ import annotations

import math

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import Hook

from sce_video.registry import HOOKS


@HOOKS.register_module()
class LogReductionHook(Hook):
    """Averages the logged values over all ranks before anybody logs them; stops on NaN.

    Args:
        max_nonfinite: Consecutive iterations whose loss may be infinite or NaN (the fp16 loss
            scaler passes through a few at the start) before the training stops.
    """

    priority = "HIGHEST"

    def __init__(self, max_nonfinite: int = 10) -> None:
        if max_nonfinite < 0:
            raise ValueError(f"max_nonfinite must not be negative, got {max_nonfinite}")
        self.max_nonfinite = max_nonfinite
        self._nonfinite = 0

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Raises FloatingPointError after too many losses that are not finite."""
        if not outputs:
            return
        names = [name for name, value in outputs.items() if isinstance(value, torch.Tensor)]
        values = torch.stack([outputs[name].detach().float() for name in names])
        if get_world_size() > 1:
            all_reduce(values, op="mean")
        numbers = values.tolist()  # the one wait for the device
        outputs.update(zip(names, numbers, strict=True))
        loss = outputs.get("loss", 0.0)
        self._nonfinite = 0 if math.isfinite(loss) else self._nonfinite + 1
        if self._nonfinite > self.max_nonfinite:
            raise FloatingPointError(
                f"the loss was not finite for {self._nonfinite} iterations up to iteration "
                f"{runner.iter + 1}: lower the learning rate or train without float16"
            )


@HOOKS.register_module()
class ProgressHook(Hook):
    """Logs ``videos_per_s`` (all ranks) and ``data_wait``, the share of time spent on waiting.

    Both are entered as amounts over microseconds, the count of a history's entry, so that the mean
    of a window, which the log shows, is the window's videos over its seconds (and its waiting over
    its seconds) and not a mean of rates.
    """

    priority = "NORMAL"  # custom hooks follow IterTimerHook of the same priority

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        hub = runner.message_hub
        # mmengine counts in whole numbers, and checkpoints keep them as such
        spent = max(1, round(hub.get_scalar("train/time").current() * 1e6))
        waited = hub.get_scalar("train/data_time").current() * 1e6
        videos = runner.train_dataloader.batch_size * get_world_size()
        hub.update_scalar("train/videos_per_s", videos * 1e6, count=spent)
        hub.update_scalar("train/data_wait", min(waited, float(spent)), count=spent)
