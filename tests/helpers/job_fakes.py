"""Jobs for the tests of the runner; in a module that their processes can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sce_video.jobs import BatchJob, Item, ItemError, RunError, StorageError


class Squares(BatchJob):
    """Squares the number in the key; a word in the argument makes it fail.

    Every call is noted in a file of ``log`` (key, process); with an output the square is written.
    """

    name = "squares"

    def __init__(self, log=None, folder="", settings=None, seconds=0.0):
        self.log = None if log is None else str(log)
        self.folder = str(folder)
        self.settings = settings or {}
        self.seconds = seconds

    def process(self, item):
        if self.log is not None:
            with open(self.log, "a") as log:
                log.write(f"{item.key} {os.getpid()}\n")
        if item.temporary:
            Path(item.temporary).write_bytes(b"half")
        time.sleep(self.seconds)
        fail_by_word(item.argument)
        number = int(item.key)
        if item.temporary:
            Path(item.temporary).write_text(f"{number * number}\n" * 50)
        return {"square": number * number}


def fail_by_word(word):
    """Fail as the word says; None does nothing."""
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "hang":
        time.sleep(60)
    if word == "error":
        raise KeyError("no such thing")
    if word == "bad":
        raise ItemError("bad", "cannot be read")
    if word == "all":
        raise RunError("the network fails")
    if word == "full":
        raise StorageError("cannot write: the disk is full")


class WithSetup(Squares):
    """Its records tell in which process the setup ran."""

    name = "with setup"

    def setup(self):
        if self.settings.get("broken"):
            raise OSError("no weights")
        self.loaded = os.getpid()

    def process(self, item):
        return {**super().process(item), "same_process": self.loaded == os.getpid()}


class WithOwnParts(Squares):
    """Its records name the transforms of the user's own that its process knows."""

    name = "own parts"

    def process(self, item):
        from sce_video.registry import own_parts

        return {"parts": [part.name for part in own_parts() if part.kind == "transform"]}


def items(count, words=None, output=False):
    """Items ``0`` to ``count - 1`` of one unchanging source."""
    for number in range(count):
        key = str(number)
        path = f"{number % 3}/{number}.txt" if output else None
        yield Item(key, {"size": number}, (words or {}).get(key), path)


def calls(log):
    """Keys of the calls that a job noted; the file is removed."""
    path = Path(log)
    keys = [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(keys, key=int)


def contents(folder):
    """Text of all files of a folder by their relative path."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }
