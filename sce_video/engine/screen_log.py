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


def _for_the_screen(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_FILE_ONLY)
