"""Progress of a training on a terminal; a log file or a pipe gets plain lines instead."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from sce_video.registry import HOOKS

#: Beginnings of mmengine's messages that tell a user nothing: for the log file only.
_FILE_ONLY = (
    "Exp name:",
    "Distributed training is not used",
    "Checkpoints will be saved to",
    "Hooks will be executed",
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    "Config:",
    "\n------------------------------------------------------------\nSystem environment:",
)


def keep_details_off_the_screen(logger: logging.Logger) -> None:
    """Let the stream handlers of a logger skip environment, config, hook table and the like."""
    for handler in logger.handlers:
        if type(handler) is logging.StreamHandler and _for_the_screen not in handler.filters:
            handler.addFilter(_for_the_screen)


def _for_the_screen(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_FILE_ONLY)


def _no_train_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Epoch(train)")


# Seconds between two drawings: a drawing takes two milliseconds of the training's own thread.
_EVERY = 0.5


@HOOKS.register_module()
class ScreenProgressHook(Hook):
    """Two lines at the bottom of a terminal: epoch, time left; loss, kNN, speed, wait for data.

    All other messages appear above them, and the lines of the training's log are in the log file
    only. Where stdout is no terminal nothing changes. Nothing is read from the device: the numbers
    are those that are logged.
    """

    priority = "LOWEST"

    def __init__(self) -> None:
        self._screen: _Screen | None = None

    def before_train(self, runner) -> None:
        plain = os.environ.get("TERM") in (None, "dumb", "unknown")
        if is_main_process() and sys.stdout.isatty() and not plain:
            self._screen = _Screen(runner.logger)
            self._draw(runner, runner.iter)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if self._screen is not None and self._screen.is_due():
            self._draw(runner, runner.iter + 1)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        if self._screen is not None:
            self._screen.numbers |= dict(row)

    def after_stop(self, runner) -> None:
        """Leave the terminal as it was; called however the training ends."""
        if self._screen is not None:
            self._draw(runner, runner.iter)
            self._screen.close()
            self._screen = None

    def _draw(self, runner, done: int) -> None:
        assert self._screen is not None
        epoch = f"epoch {min(runner.epoch + 1, runner.max_epochs)}/{runner.max_epochs}"
        eta = runner.message_hub.runtime_info.get("eta")
        self._screen.draw(epoch, done, runner.train_loop.max_iters, eta)


class _Screen:
    """The lines at the bottom, with all handlers of a logger writing above them."""

    def __init__(self, logger: logging.Logger) -> None:
        from rich.console import Console, Group  # here: a log file need not pay for the import
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        handlers = (h for h in logger.handlers if type(h) is logging.StreamHandler)
        self._streams = {handler: handler.stream for handler in handlers}
        self._output = sys.stdout, sys.stderr
        columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns)
        self._task = self._bar.add_task("", left="")
        self._text = Text(no_wrap=True, overflow="ellipsis")
        # Without automatic refresh: no thread, whose locks a forked worker would inherit.
        shown, console = Group(self._bar, self._text), Console(file=sys.stdout)
        self._live = Live(shown, console=console, auto_refresh=False)
        self.numbers: dict[str, Any] = {}
        self._drawn = -_EVERY
        self._owner = os.getpid()
        self._live.start()
        for handler in self._streams:
            handler.addFilter(_no_train_line)
            handler.setStream(sys.stdout)  # rich's, which writes above the lines
        _open_screens.add(self)
        atexit.register(self.close)  # shows the cursor again

    def is_due(self) -> bool:
        return time.monotonic() - self._drawn >= _EVERY

    def draw(self, epoch: str, done: int, total: int, eta: float | None) -> None:
        self._drawn = time.monotonic()
        left = "" if eta is None else f", {timedelta(seconds=int(eta))} left"
        left = f"{done}/{total}{left}"
        self._bar.update(self._task, completed=done, total=total, description=epoch, left=left)
        self._text.plain = describe_numbers(self.numbers)
        self._live.refresh()

    def close(self) -> None:
        if self._live.is_started and os.getpid() == self._owner:
            self._live.stop()
            self.restore()

    def restore(self) -> None:
        """Let the logger and Python write to the terminal itself."""
        _open_screens.discard(self)
        atexit.unregister(self.close)
        sys.stdout, sys.stderr = self._output
        for handler, stream in self._streams.items():
            handler.stream = stream
            handler.removeFilter(_no_train_line)


_open_screens: set[_Screen] = set()


def _leave_in_child() -> None:
    for screen in list(_open_screens):  # a loader worker must not draw
        screen.restore()


os.register_at_fork(after_in_child=_leave_in_child)


def describe_numbers(numbers: Mapping[str, Any]) -> str:
    """``loss 3.46, kNN 45.2 %, 24 videos/s, data wait 10 %`` of what is there."""
    shown = (
        ("loss", "loss {:.3f}", 1),
        ("knn_top1", "kNN {:.1f} %", 100),
        ("videos_per_s", "{:.0f} videos/s", 1),
        ("data_wait", "data wait {:.0f} %", 100),
        ("h_rank", "rank of h {:.1f}", 1),
    )
    return ", ".join(
        text.format(factor * numbers[name]) for name, text, factor in shown if name in numbers
    )
