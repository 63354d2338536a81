"""Checks of files that crash or fail; in a module that other processes can import."""

from __future__ import annotations

import os
import signal


def fail_by_name(path: str) -> str | None:
    """Crash or fail as the name of the file says."""
    path = os.path.basename(path)
    if path.startswith("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.startswith("error"):
        raise KeyError(path)
    return "bad" if path.startswith("bad") else None
