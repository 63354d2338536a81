"""What of the log is shown on the screen; the log file in the work folder has all of it."""

from __future__ import annotations

import logging

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


def keep_train_lines_off(logger: logging.Logger) -> None:
    """Let the stream handlers of a logger skip the numbers of the training."""
    for handler in logger.handlers:
        if type(handler) is logging.StreamHandler:
            handler.addFilter(_no_train_line)


def show_train_lines(logger: logging.Logger) -> None:
    """Undo :func:`keep_train_lines_off`."""
    for handler in logger.handlers:
        handler.removeFilter(_no_train_line)


def _no_train_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Epoch(train)")


def _for_the_screen(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_FILE_ONLY)
