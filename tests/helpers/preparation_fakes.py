"""What a decoder might do to its process; in a module that other processes can import."""

from __future__ import annotations

import os
import signal
import time


def judge(path: str) -> str | None:
    """As the name of the file says."""
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
    """The number of the process, after a while."""
    time.sleep(0.1)
    return str(os.getpid())


def slow_after_a(path: str) -> str | None:
    """Only "a" is done soon."""
    if path != "a":
        time.sleep(60)
    return None
