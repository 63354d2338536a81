"""Logs of a run: where their files cannot be written, one warning, and the run goes on.

What a training produces are its checkpoints; if these cannot be written either, it ends.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mmengine.visualization
from mmengine.config import Config
from mmengine.dist import master_only
from mmengine.fileio import dump
from mmengine.logging import print_log
from mmengine.visualization.vis_backend import BaseVisBackend, force_init_env

from sce_video.registry import VISBACKENDS, VISUALIZERS
from sce_video.utils.atomic_file import append_text, write_error, write_text


def warn_once_if_unwritable(logger: logging.Logger) -> None:
    """Let the handlers of a logger report once that they cannot write, for example to a full disk.

    ``logging`` itself prints a traceback for every message.
    """
    for handler in logger.handlers:
        handler.handleError = _Reporter(handler)  # type: ignore[method-assign]


class _Reporter:
    """``handleError`` of a handler: its first OSError as one line on stderr, no other OSError."""

    def __init__(self, handler: logging.Handler) -> None:
        self._other: Callable[[logging.LogRecord], None] = handler.handleError
        self._name = getattr(handler, "baseFilename", "the log to the terminal")
        self._reported = False

    def __call__(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self._other(record)
        elif not self._reported:
            self._reported = True
            with suppress(OSError):  # stderr may be on the same disk
                print(
                    f"warning: {write_error(self._name, error)}; the run goes on", file=sys.stderr
                )


@VISBACKENDS.register_module()
class LocalVisBackend(mmengine.visualization.LocalVisBackend):
    """mmengine's files of scalars, in which a full disk leaves no half-written line."""

    @force_init_env
    def add_config(self, config: Config) -> None:
        """Write the config."""
        write_text(self._config_save_file, config.pretty_text)

    def _dump(self, value_dict: dict, file_path: str, file_format: str) -> None:
        append_text(file_path, dump(value_dict, file_format=file_format) + "\n")


@VISBACKENDS.register_module()
class TensorboardVisBackend(mmengine.visualization.TensorboardVisBackend):
    """mmengine's event files; a failed write is raised by the next call and not printed before.

    TensorBoard writes in a thread, whose exception Python would print in full.
    """

    def _init_env(self) -> None:
        self._other_hook = threading.excepthook
        threading.excepthook = self._excepthook
        super()._init_env()

    def _excepthook(self, raised: threading.ExceptHookArgs) -> None:
        of_writer = type(raised.thread).__module__.startswith("tensorboard.")
        if not (of_writer and isinstance(raised.exc_value, OSError)):
            self._other_hook(raised)

    def close(self) -> None:
        """Close the event file."""
        try:
            super().close()
        finally:
            if threading.excepthook == self._excepthook:
                threading.excepthook = self._other_hook


@VISUALIZERS.register_module()
class Visualizer(mmengine.visualization.Visualizer):
    """mmengine's; drops a backend that cannot write its files, with a warning.

    An error in the very first write, that of the config, is raised: nothing has been computed then.
    """

    @master_only
    def add_scalar(self, name: str, value: float, step: int = 0) -> None:
        """Record a scalar."""
        self._call_all(lambda backend: backend.add_scalar(name, value, step))

    @master_only
    def add_scalars(
        self, scalar_dict: dict[str, Any], step: int = 0, file_path: str | None = None
    ) -> None:
        """Record several scalars, in a file of the local backend too if ``file_path`` is given."""
        self._call_all(lambda backend: backend.add_scalars(scalar_dict, step, file_path))

    def close(self) -> None:
        """Close all backends."""
        self._call_all(lambda backend: backend.close())

    def _call_all(self, call: Callable[[BaseVisBackend], None]) -> None:
        for name, backend in list(self._vis_backends.items()):
            try:
                call(backend)
            except OSError as error:
                del self._vis_backends[name]
                with suppress(OSError):
                    backend.close()
                print_log(f"{name} writes no more in this run: {error}", "current", logging.WARNING)
