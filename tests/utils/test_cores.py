"""Cores of a process: affinity, control groups of both versions, and idle cores."""

import os

import pytest

from sce_video.utils import cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch, tmp_path):
    """Simulate a machine with eight cores and no limits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    monkeypatch.setattr(cores, "_groups", lambda: [tmp_path / "own", tmp_path])
    monkeypatch.setattr(cores, "_SAMPLE_SECONDS", 0)
    (tmp_path / "own").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"own/cpu.max": "max 100000"}, 8),
        ({"own/cpu.max": "250000 100000"}, 2),
        ({"own/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ({"own/cpu.max": "50000 100000"}, 1),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}, 4),
        ({"own/cpu.max": "damaged"}, 8),
    ],
)
def test_a_control_group_limits_the_cores(eight_cores, files, expected):
    for name, text in files.items():
        (eight_cores / name).write_text(text)
    assert cores.usable_cores() == expected


def test_the_processes_of_a_launcher_share_the_cores(monkeypatch):
    assert cores.cores_of_process() == 8
    for processes, share in ((2, 4), (3, 2), (16, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert cores.cores_of_process() == share


@pytest.mark.parametrize(
    ("idle_shares", "expected"),
    [([1.0] * 8, 8), ([1, 1, 1, 0, 0, 0, 0, 0], 3), ([0.0] * 8, 2), ([0.5] * 8, 4)],
)
def test_busy_cores_are_not_free(monkeypatch, idle_shares, expected):
    samples = iter(
        [
            dict.fromkeys(range(8), (1000, 5000)),
            {core: (1000 + int(100 * share), 5100) for core, share in enumerate(idle_shares)},
        ]
    )
    monkeypatch.setattr(cores, "_ticks", lambda: next(samples))
    assert cores.free_cores() == expected


def test_without_the_times_of_the_cores_all_usable_ones_are_free(monkeypatch, eight_cores):
    monkeypatch.setattr(cores, "_ticks", dict)
    assert cores.free_cores() == 8
    (eight_cores / "cpu.max").write_text("200000 100000")
    assert cores.free_cores() == 2


def test_the_times_are_those_of_the_cores_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    found = cores._ticks()
    assert list(found) in ([0], [])  # not every system has /proc/stat
    assert all(0 <= idle <= total for idle, total in found.values())
