"""Processes of this machine, from /proc, and a thread that kills some."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def command_lines() -> dict[int, tuple[int, str]]:
    """(parent, command line) by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = int(parent), words.decode(errors="replace")
    return found


def workers_below(pid: int, kind: str) -> list[int]:
    """Processes below one: workers that a ``forkserver`` forked, or those of ``ray``."""
    found = command_lines()
    below = {pid}
    while more := {child for child, (parent, _) in found.items() if parent in below} - below:
        below |= more
    if kind == "ray":  # not the agents of a node, without which it ends, and the driver with it
        names = ("ray::_Host", "ray::IDLE")
        return [child for child in below if found.get(child, (0, ""))[1].startswith(names)]
    return [child for child in below - {pid} if kind in found.get(found[child][0], (0, ""))[1]]


def cpu(pid: int) -> float:
    """Seconds of a core that a process has used; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int) -> bool:
    """Whether a process exists; one that ended and is not reaped by its parent does not count."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, and fail after so many seconds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@contextlib.contextmanager
def killing(
    pid: int, kind: str, between: tuple[float, float], least_cpu: float = 0.0
) -> Iterator[list[int]]:
    """Kill a random one of :func:`workers_below`, with random seconds between two.

    Args:
        pid: Of the process above the workers.
        kind: Of the workers.
        between: Seconds between two kills, at least and at most.
        least_cpu: Seconds of a core that a worker has used before it is killed, so that it has done
            something on a machine of any speed.

    Yields:
        The processes killed so far.
    """
    stop, killed, generator = threading.Event(), [], random.Random(0)

    def kill() -> None:
        while not stop.wait(generator.uniform(*between)):
            found = [worker for worker in workers_below(pid, kind) if cpu(worker) >= least_cpu]
            if found:
                killed.append(generator.choice(found))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def kill_one(pid: int, kind: str, generator: random.Random) -> int:
    """Kill a random one of :func:`workers_below`; the number killed, 0 or 1."""
    found = sorted(workers_below(pid, kind))
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(generator.choice(found), signal.SIGKILL)
    return len(found[:1])
