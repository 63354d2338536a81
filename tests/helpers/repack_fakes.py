"""What the processes of a repacking do in tests; a module, so that they find it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sce_video.data_tools.repack.work import repack_file


def by_name(job):
    """Crash, hang, fail or find the disk full as the source's name says; else do the work.

    The path of every source is noted in ``calls.log`` beside the sources.
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
        return {"status": "storage", "reason": "cannot write: the disk is full"}
    return repack_file(job)
