"""Functions for the processes of a repacking; in a module that they can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sce_video.data_tools.repack.encode import repack_file
from sce_video.jobs import StorageError


def by_name(job):
    """Crash, hang or report a full disk as the source's name says; otherwise repack the file.

    The name of every source is appended to ``calls.log`` beside the sources.
    """
    path = Path(job.source)
    with open(path.parent / "calls.log", "a") as log:
        log.write(f"{path.name}\n")
    if path.stem in ("crash", "hang", "full"):
        Path(job.temporary).write_bytes(b"half")
    if path.stem == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if path.stem == "hang":
        time.sleep(60)
    if path.stem == "full":
        raise StorageError("cannot write: the disk is full")
    return repack_file(job)
