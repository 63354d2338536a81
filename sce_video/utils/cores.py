"""How many cores a process may use, how many are idle, and how many torch leaves to workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Root of the control groups.
_CGROUP = Path("/sys/fs/cgroup")
#: Seconds in which the idle time of the cores is measured. A command waits for that long.
_SAMPLE_SECONDS = 0.25
#: Share of the usable cores that is taken however busy they are.
_LEAST_SHARE = 4


def usable_cores() -> int:
    """Return the cores this process may use, by its affinity and its control group's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return max(1, int(min(cores, _quota())))


def cores_of_process() -> int:
    """Return this process's share of the usable cores, at least 1.

    Processes that a launcher such as torchrun has started on this machine share them.
    """
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def free_cores() -> int:
    """Measure for a quarter of a second how many usable cores other programs leave idle.

    The result is at least a quarter of the usable cores, and 1. This process must not compute
    meanwhile.
    """
    usable = usable_cores()
    before = _ticks()
    time.sleep(_SAMPLE_SECONDS)
    after = _ticks()
    spans = [
        (idle - before[core][0], total - before[core][1])
        for core, (idle, total) in after.items()
        if core in before
    ]
    spans = [(idle, total) for idle, total in spans if total > 0]
    if not spans:
        return usable
    idle = round(sum(idle / total for idle, total in spans))
    return max(1, usable // _LEAST_SHARE, min(usable, idle))


@contextmanager
def cores_for_workers(num_workers: int, threads: int | None = None) -> Iterator[None]:
    """Leave this process's loader workers their cores while torch computes on a CPU.

    torch starts a thread per core, and the threads wait for each other in a busy loop: if a thread
    shares its core with a loader worker, all others wait for it. On two cores with one worker a
    step takes 1.75 times as long with two threads as with one (docs/performance.md). Cores that
    other programs keep busy, or that a control group does not allow, are left out, too. Nothing is
    changed with a GPU, or if ``OMP_NUM_THREADS`` states the number.

    Args:
        num_workers: Number of loader workers.
        threads: Number of threads in an earlier start of a resumed training, which is kept because
            sums in another order are rounded differently. None to choose it.
    """
    import torch  # imported here because a sweep counts cores without it

    if torch.cuda.is_available() or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    wanted = free_cores() - num_workers if threads is None else threads
    torch.set_num_threads(max(1, min(before, wanted)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _quota() -> float:
    """Return the cores that this process's control group may use; infinite without a limit."""
    quotas = []
    for group in _groups():
        try:
            quota, period = (group / "cpu.max").read_text().split()  # version 2
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):
            pass
        try:  # version 1
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):
            continue
    # A fraction of a core counts as one, and -1 stands for no limit.
    return min((max(1.0, quota) for quota in quotas if quota > 0), default=float("inf"))


def _groups() -> list[Path]:
    """Return the folders of this process's control groups, each with its parent groups."""
    found = [_CGROUP, _CGROUP / "cpu"]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            own = (_CGROUP / controllers / name.lstrip("/")) if controllers else _CGROUP / name[1:]
            found += [own, *own.parents]
    return [group for group in dict.fromkeys(found) if group.is_relative_to(_CGROUP)]


def _ticks() -> dict[int, tuple[int, int]]:
    """Return idle and total time of each core since the start; empty if unknown."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        own = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return {}
    found = {}
    for line in lines:
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in own:
            numbers = [int(value) for value in values[:8]]
            # Idle and waiting for a disk.
            found[int(name[3:])] = sum(numbers[3:5]), sum(numbers)
    return found
