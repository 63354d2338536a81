"""Cores that a process may use, cores that are idle, and cores that torch leaves to workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Root folder of the control groups
_CGROUP = Path("/sys/fs/cgroup")
#: Number of seconds for which the cores' idle time is measured. The command waits that long.
_SAMPLE_SECONDS = 0.25
#: At least one in this many usable cores counts as free, even if all cores are busy.
_LEAST_SHARE = 4


def usable_cores() -> int:
    """Return the number of cores that the process's affinity and control group allow."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return max(1, int(min(cores, _quota())))


def cores_of_process() -> int:
    """Return this process's share of the usable cores, at least 1.

    The processes that a launcher such as torchrun has started on this machine share the cores.
    """
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def free_cores() -> int:
    """Measure for a quarter of a second how many usable cores other programs leave idle.

    This process must not compute anything meanwhile. The result is at least 1, and at least a
    quarter of the usable cores.
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
    """Leave cores to the loader workers of this process while torch computes on a CPU.

    torch starts a thread per core, and the threads wait for each other in a busy loop. If a thread
    shares its core with a loader worker, all other threads wait for it. On two cores with one
    worker, a step takes 1.75 times as long with two threads as with one (docs/performance.md).
    Cores that other programs keep busy, or that a control group does not allow, are left out as
    well. Nothing changes with a GPU, or if ``OMP_NUM_THREADS`` states the number of threads.

    Args:
        num_workers: Number of loader workers.
        threads: Number of threads when a resumed run was started. It is kept because sums in a
            different order are rounded differently. None chooses the number.
    """
    import torch  # imported here because a sweep counts cores without torch

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
    """Return the number of cores that the control group allows, or infinity without a limit."""
    quotas = []
    for group in _groups():
        try:
            quota, period = (group / "cpu.max").read_text().split()  # control groups v2
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):
            pass
        try:  # control groups v1
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
            quotas.append(float(quota) / float(period))
        except (OSError, ValueError):
            continue
    # Round a fraction of a core up to one. A quota of -1 means that there is no limit.
    return min((max(1.0, quota) for quota in quotas if quota > 0), default=float("inf"))


def _groups() -> list[Path]:
    """Return the folders of this process's control groups and of their parent groups."""
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
    """Return idle and total time of each core since the system start, or nothing if unknown."""
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
            # A core also counts as idle while it waits for a disk.
            found[int(name[3:])] = sum(numbers[3:5]), sum(numbers)
    return found
