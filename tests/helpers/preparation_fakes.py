"""Checks of files that crash, hang or fail; in a module that other processes can import."""

from __future__ import annotations

import os
import signal
import time


def fail_by_name(path: str) -> str | None:
    """Crash, exit, hang or fail as the name of the file says."""
    path = os.path.basename(path)
    if path.startswith("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.startswith("exit"):
        os._exit(3)
    if path.startswith("hang"):
        time.sleep(60)
    if path.startswith("error"):
        raise KeyError(path)
    return "bad" if path.startswith("bad") else None


def own_process(path: str) -> str | None:
    """The number of the process."""
    return str(os.getpid())
