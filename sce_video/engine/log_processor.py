"""Which statistic of a logged value is shown."""

from __future__ import annotations

from collections.abc import Iterable

from mmengine.runner import LogProcessor

from sce_video.registry import LOG_PROCESSORS


@LOG_PROCESSORS.register_module()
class MeanLogProcessor(LogProcessor):
    """Training logs show the mean of every value over the window, and the current learning rate.

    mmengine averages only values whose names match a pattern; here a method's values need not be
    listed. Values that are *set* instead of measured are shown as they are: the learning rate, and
    what a hook declares with :meth:`show_current`. Validation and test logs are mmengine's.

    Args:
        window_size: Iterations of the window.
        by_epoch: Count in epochs rather than iterations.
        num_digits: Digits shown in the terminal.
        custom_cfg: Statistics of single values, see mmengine's ``LogProcessor``.
    """

    def __init__(
        self,
        window_size: int = 10,
        by_epoch: bool = True,
        num_digits: int = 4,
        custom_cfg: list[dict] | None = None,
    ) -> None:
        if window_size < 1:
            raise ValueError(f"window_size must be at least 1, got {window_size}")
        super().__init__(window_size, by_epoch, custom_cfg, num_digits)
        self._set_values = {"lr", "base_lr", "memory"}

    def show_current(self, names: Iterable[str]) -> None:
        """Declare values as set: their current value is logged."""
        self._set_values |= set(names)

    def _collect_scalars(
        self, custom_cfg: list[dict], runner, mode: str, reserve_prefix: bool = False
    ) -> dict:
        tag = super()._collect_scalars(custom_cfg, runner, mode, reserve_prefix)
        if mode != "train":
            return tag
        customised = {entry.get("log_name", entry["data_src"]) for entry in custom_cfg}
        for key in tag:
            name = key.removeprefix("train/")
            if name in customised:
                continue
            history = runner.message_hub.get_scalar(f"train/{name}")
            is_set = name in self._set_values
            tag[key] = history.current() if is_set else history.mean(self.window_size)
        return tag
