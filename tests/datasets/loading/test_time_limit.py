"""Function calls with a time limit."""

from __future__ import annotations

import math
import threading
import time

import pytest

from sce_video.datasets.readers.limits import AbandonedError, LimitExceededError, TimeLimitedCaller


def test_calls_share_a_thread_until_one_exceeds_its_limit():
    caller = TimeLimitedCaller()
    names = [caller.call(lambda: threading.current_thread(), 60) for _ in range(2)]
    assert names[0] is names[1] and names[0].daemon
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 5)
    gate = threading.Event()
    with pytest.raises(LimitExceededError, match=r"no answer after 0\.1 s"):
        caller.call(gate.wait, 0.1)
    assert caller.call(lambda: 7, 60) == 7
    gate.set()
    names[0].join(60)
    assert not names[0].is_alive(), "a call that returns late ends its thread"
    fresh = caller.call(threading.current_thread, 60)
    assert fresh is not names[0]
    caller.close()
    fresh.join(60)
    assert not fresh.is_alive()


def test_each_step_of_a_call_restarts_the_limit():
    caller, gate = TimeLimitedCaller(), threading.Event()

    def steps():
        for _ in range(6):  # longer than the limit of the call
            caller.restart(5)
            time.sleep(0.15)
        return caller.is_running()

    assert caller.call(steps, 0.6) is True
    assert not caller.is_running()

    def hang():
        caller.restart(math.inf)
        time.sleep(0.8)  # without a limit
        caller.restart(0.2)
        gate.wait(30)

    start = time.monotonic()
    with pytest.raises(LimitExceededError):
        caller.call(hang, 0.6)
    assert 0.95 < time.monotonic() - start < 25
    gate.set()


def test_an_abandoned_thread_ends_at_its_next_step():
    caller, gate, steps, threads = TimeLimitedCaller(), threading.Event(), [], []

    def work():
        threads.append(threading.current_thread())
        gate.wait(30)
        try:
            caller.restart(60)
            steps.append("went on")
        except AbandonedError:
            steps.append("abandoned")

    with pytest.raises(LimitExceededError):
        caller.call(work, 0.1)
    assert caller.call(lambda: caller.restart(60), 5) is None  # of the new thread
    gate.set()
    threads[0].join(60)
    assert steps == ["abandoned"] and not threads[0].is_alive()
    with pytest.raises(AbandonedError):
        caller.restart(1)  # of no thread of the caller


def test_an_interrupted_call_is_abandoned():
    """The thread does not make the rest of a batch after Ctrl-C."""
    caller, gate, steps = TimeLimitedCaller(), threading.Event(), []

    class Answer:
        def get(self, timeout):
            raise KeyboardInterrupt

        def put(self, _):
            steps.append("ended")

    def work():
        gate.wait(30)
        caller.restart(60)
        steps.append("went on")

    assert caller.call(lambda: 1, 5) == 1
    thread = caller._helper
    with pytest.MonkeyPatch.context() as patch:
        module = "sce_video.datasets.readers.limits.queue.SimpleQueue"
        patch.setattr(module, Answer)
        with pytest.raises(KeyboardInterrupt):
            caller.call(work, 5)
    gate.set()
    thread.join(60)
    assert steps == ["ended"] and not thread.is_alive()
