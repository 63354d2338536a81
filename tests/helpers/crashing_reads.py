"""A module whose import in a worker makes files of certain names end the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

from sce_video.datasets.readers import AvReader
from sce_video.registry import READERS
from sce_video.utils import own_parts


class CrashingReader(AvReader):
    """Ends its process at files of two names, as a crash inside a decoder does."""

    def __init__(self, path, **options):
        name = os.path.basename(path)
        if name == "segfault.mp4":
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(10)  # the signal may go to another thread
        elif name == "exit.mp4":
            os._exit(7)
        super().__init__(path, **options)


if multiprocessing.parent_process() is not None:
    READERS.module_dict["av"] = CrashingReader


def crash_in_workers(monkeypatch) -> None:
    """Let the processes of jobs import this module, as a module of ``--import``."""
    monkeypatch.setitem(own_parts._of_configs, __name__, None)
