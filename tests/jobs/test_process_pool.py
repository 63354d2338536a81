"""process_items: items that crash, hang or raise; workers that end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import pebble
import pytest
from helpers import verification_fakes as fakes
from helpers.processes import is_running, wait_until

from sce_video.jobs import process_pool
from sce_video.jobs.process_pool import process_items


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)


def run(items, workers=2, timeout=20.0, function=fakes.square):
    pairs = ((str(item), item) for item in items)
    results = list(process_items(function, pairs, workers=workers, timeout=timeout))
    assert len(results) == len(items) and not worker_processes()
    return dict(results)


def worker_processes():
    return [p for p in multiprocessing.active_children() if p.name == "pebble_pool_worker"]


def test_every_item_is_processed_once():
    results = run(range(20), workers=3)
    assert {key: out.value for key, out in results.items()} == {str(i): i * i for i in range(20)}
    assert all(out.fault is None for out in results.values())
    assert run([]) == {}
    assert run([0], function=fakes.ignores_interrupts)["0"].value is True
    assert list(map(int, run(range(9), workers=1))) == list(range(9))  # in their order


def test_crashes_and_exceptions_are_named_and_the_other_items_processed():
    results = run([1, "crash", 2, "fail", "quit", 3, 4])
    assert (results["crash"].fault, results["quit"].fault) == ("crash", "crash")
    assert "SIGSEGV" in results["crash"].detail and "status 3" in results["quit"].detail
    assert results["fail"].fault == "error" and "KeyError" in results["fail"].detail
    assert [results[str(i)].value for i in (1, 2, 3, 4)] == [1, 4, 9, 16]


def test_an_item_is_not_blamed_for_a_worker_that_is_killed(tmp_path):
    """Where memory runs out the system kills any process; its item is done once more."""
    words = {"once": tmp_path / "a", "always": tmp_path / "b", "again": tmp_path / "c"}
    pairs = [(word, (word, str(marker))) for word, marker in words.items()]
    options = {"workers": 1, "timeout": 20.0}
    found = dict(process_items(fakes.killed_from_outside, iter(pairs), **options))
    assert not worker_processes()
    assert [found[word].value for word in ("once", "again")] == ["once", "again"]
    assert found["always"].fault == "crash"
    assert "SIGKILL, like the process before it. Memory ran out" in found["always"].detail


@pytest.mark.parametrize("by", ["the pool", "the alarm"])
def test_a_hanging_item_is_killed(monkeypatch, by):
    """By the pool, also if it ignores SIGTERM; or by the worker's own alarm if that never looks."""
    monkeypatch.setattr(pebble.CONSTS, "term_timeout", 0.1)
    schedule = process_pool.ProcessPool.schedule
    if by == "the alarm":
        monkeypatch.setattr(
            process_pool.ProcessPool,
            "schedule",
            lambda pool, function, args, timeout: schedule(pool, function, args),
        )
    (outcome,) = run([0], timeout=0.3, function=fakes.block_signals_and_hang).values()
    assert outcome.fault == "timeout" and "0.3 s" in outcome.detail  # it would sleep for 60


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path, repo):
    script = f"""
import sys
sys.path.insert(0, {str(repo / "tests")!r})
from helpers import verification_fakes as fakes
from sce_video.jobs import process_pool
process_pool._GRACE = 0.5
def items():
    for number in range(1000):
        yield number, {str(tmp_path)!r}
if __name__ == "__main__":
    list(process_pool.process_items(fakes.block_signals_and_hang, items(), workers=2, timeout=1.0))
"""
    (tmp_path / "parent.py").write_text(script)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")])

    def pids():
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]

    wait_until(lambda: len(pids()) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(is_running, pids())))


def test_items_are_taken_from_the_iterator_as_workers_become_free():
    taken = []

    def items():
        for number in range(10**9):
            taken.append(number)
            yield number, number

    results = process_items(fakes.square, items(), workers=2, timeout=20)
    keys = [next(results)[0] for _ in range(5)]
    assert len(set(keys)) == 5 and len(taken) <= 5 + 4
    pids = [process.pid for process in worker_processes()]
    assert len(pids) == 2
    results.close()
    assert not worker_processes() and not any(map(is_running, pids))


def test_an_idle_worker_that_is_killed_costs_no_item():
    """Its death is noticed by the pool alone, as it holds no item."""
    taken, results = [], {}

    def items():
        yield 0, 0
        while 0 not in results:  # None: there is no other item now
            yield None
        (process,) = worker_processes()
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(process.pid))
        taken.append(process.pid)
        yield from ((number, number) for number in range(1, 6))

    for key, outcome in process_items(fakes.square, items(), workers=1, timeout=20):
        results[key] = outcome.value
    assert taken and results == {number: number**2 for number in range(6)}


def test_workers_that_cannot_start_are_an_error(monkeypatch, capfd):
    """Its first function stands for anything that ends a worker before its first item."""
    monkeypatch.setattr(process_pool, "_begin", fakes.exit_with_status_3)
    with pytest.raises(RuntimeError, match="exit before they process an item"):
        run([1])
    assert not worker_processes()


@pytest.mark.parametrize(("workers", "timeout"), [(0, 1), (1, 0), (1, -1), (1, float("nan"))])
def test_wrong_arguments_are_refused_by_the_call_itself(workers, timeout):
    with pytest.raises(ValueError, match="workers|timeout"):
        process_items(fakes.square, [], workers=workers, timeout=timeout)
