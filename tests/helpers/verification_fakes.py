"""Functions for the processes of a verification; in a module that they can import."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

from sce_video.data_tools.examination import FileFacts, VideoFacts
from sce_video.data_tools.verify import VerifyJob

GOOD = VideoFacts(
    frames=100,
    seconds=4.0,
    packets=100,
    refused=0,
    damaged=0,
    hidden=0,
    restarts=0,
    container="mov,mp4,m4a,3gp,3g2,mj2",
    codec="h264",
    height=64,
    width=80,
    header_frames=100,
    header_seconds=4.0,
    header_of_file=False,
)


def decoded(**changes):
    """Return the facts of a good file of 100 frames, some of which are changed."""
    return FileFacts(outcome="decoded", video=replace(GOOD, **changes))


class ByName(VerifyJob):
    """Crashes, hangs or fails as the file's name says; notes other names in ``calls.log``."""

    def process(self, item):
        path = Path(self.root, item.key)
        fail_by_word(path.stem)
        with open(path.parent / "calls.log", "a", errors="surrogateescape") as log:
            log.write(f"{path.name}\n")
        return asdict(replace(decoded(), max_pixels=self.max_pixels))


def fail_by_word(word):
    """Crash, hang, raise or exit as the word says; return None for other words."""
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "quit":
        os._exit(3)
    if word == "hang":
        time.sleep(60)
    if word == "fail":
        raise KeyError("no such thing")
    return None


def square(number):
    """The square of a number; words as in :func:`fail_by_word`."""
    return fail_by_word(number) if isinstance(number, str) else number * number


def killed_from_outside(argument):
    """End by SIGKILL, as without memory: always, or in the first call that finds no such file."""
    word, marker = argument
    if word == "always" or not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return word


def block_signals_and_hang(folder):
    """Sleep where no Python signal handler runs, as in C code; the pid is noted in the folder."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    if folder:
        (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)


def exit_with_status_3(_):
    """End the process."""
    os._exit(3)


def ignores_interrupts(_):
    """Whether SIGINT, which a terminal sends to all processes, is left to the parent."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN
