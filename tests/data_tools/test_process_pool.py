"""The pool whose items may hang or crash."""

from __future__ import annotations

import os
import signal
import time

import pytest
from helpers import verification_fakes as fakes

from sce_video.data_tools import process_pool
from sce_video.data_tools.process_pool import GuardedPool


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)


def run(items, workers=2, timeout=20.0, function=fakes.square):
    pool = GuardedPool(function, workers=workers, timeout=timeout)
    results = list(pool.run((str(item), item) for item in items))
    assert len(results) == len(items) and not pool._team
    return dict(results)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_item_is_done_once(workers):
    results = run(range(20), workers)
    assert {key: out.value for key, out in results.items()} == {str(i): i * i for i in range(20)}
    assert all(out.fault is None for out in results.values())


def test_no_items():
    assert run([]) == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_crashes_and_exceptions_are_named_and_the_rest_goes_on(workers):
    results = run([1, "crash", 2, "fail", "quit", 3, 4], workers)
    assert (results["crash"].fault, results["quit"].fault) == ("crash", "crash")
    assert "SIGSEGV" in results["crash"].detail and "status 3" in results["quit"].detail
    assert results["fail"].fault == "error" and "KeyError" in results["fail"].detail
    assert [results[str(i)].value for i in (1, 2, 3, 4)] == [1, 4, 9, 16]


def test_a_hanging_item_is_killed(monkeypatch):
    statuses = []
    bury = GuardedPool._bury
    monkeypatch.setattr(GuardedPool, "_bury", lambda *a: statuses.append(bury(*a)) or statuses[-1])
    start = time.monotonic()
    results = run([1, "hang", 2, 3], timeout=0.4)
    assert statuses == [-signal.SIGKILL]
    assert results["hang"].fault == "timeout" and "0.4 s" in results["hang"].detail
    assert [results[str(i)].value for i in (1, 2, 3)] == [1, 4, 9]
    assert time.monotonic() - start < 30  # it sleeps for 60


def test_a_hanging_process_ends_without_its_parent():
    """The parent here never looks at the clock: the process's own timer must do it."""

    class Forgetful(GuardedPool):
        def _give(self, worker, item):
            given = super()._give(worker, item)
            worker.deadline += 50
            return given

    start = time.monotonic()
    pool = Forgetful(fakes.ignore_everything_and_hang, workers=1, timeout=0.4)
    ((key, outcome),) = pool.run([("a", None)])
    assert (key, outcome.fault) == ("a", "timeout")
    assert time.monotonic() - start < 30


def test_an_idle_worker_may_wait_longer_than_an_item_may_take(monkeypatch):
    started = []
    start = GuardedPool._start
    monkeypatch.setattr(GuardedPool, "_start", lambda pool: started.append(1) or start(pool))

    def slowly():
        yield 1, 1
        time.sleep(1.5)  # the time limit with all grace is 0.8 s
        yield 2, 2

    pool = GuardedPool(fakes.square, workers=1, timeout=0.4)
    assert [(key, out.value) for key, out in pool.run(slowly())] == [(1, 1), (2, 4)]
    assert len(started) == 1


def test_an_idle_worker_that_dies_takes_no_item_with_it(monkeypatch):
    pool = GuardedPool(fakes.square, workers=1, timeout=20)
    give, killed = pool._give, []

    def give_to_a_dead_one(worker, item):
        if not killed:
            killed.append(worker.process.pid)
            worker.process.kill()
            worker.process.join()
        return give(worker, item)

    monkeypatch.setattr(pool, "_give", give_to_a_dead_one)
    results = dict(pool.run([(i, i) for i in range(3)]))
    assert killed and {key: out.value for key, out in results.items()} == {0: 0, 1: 1, 2: 4}


def test_processes_are_gone_when_the_caller_stops_early():
    pool = GuardedPool(fakes.square, workers=2, timeout=20)
    results = pool.run((i, i) for i in range(100))
    next(results)
    pids = [worker.process.pid for worker in pool._team]
    results.close()
    assert pids and not pool._team
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("workers", "timeout"), [(0, 1), (1, 0), (1, -1), (1, float("nan"))])
def test_wrong_settings(workers, timeout):
    with pytest.raises(ValueError, match="workers|timeout"):
        GuardedPool(fakes.square, workers=workers, timeout=timeout)


def test_an_interrupt_is_the_parents_business():
    assert run([0], function=fakes.ignores_interrupts)["0"].value is True
