"""Function calls with a time limit."""

from __future__ import annotations

import math
import queue
import threading

import pytest

from sce_video.datasets.loading.time_limit import (
    AbandonedError,
    LimitExceededError,
    TimeLimitedCaller,
)

QUEUE = "sce_video.datasets.loading.time_limit.queue.SimpleQueue"


def test_calls_share_a_thread_until_one_exceeds_its_limit():
    caller = TimeLimitedCaller()
    names = [caller.call(threading.current_thread, 60) for _ in range(2)]
    assert names[0] is names[1] and names[0].daemon
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 60)
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


def test_each_step_of_a_call_restarts_the_limit(clock, monkeypatch):
    """Time passes only while the caller waits; then the called function makes one step."""
    turn, made, gate = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    class Answer(queue.SimpleQueue):
        def get(self, timeout):
            clock[0] += timeout
            turn.release()
            made.acquire()
            if self.empty():
                raise queue.Empty
            return super().get()

        def put(self, value):
            super().put(value)
            made.release()

    def step(seconds):
        turn.acquire()
        caller.restart(seconds)
        made.release()

    def steps():
        for _ in range(6):  # longer than the limit of the call
            step(5)
        turn.acquire()

    def hang():
        step(math.inf)  # without a limit
        step(0.2)
        made.release()
        gate.wait(60)

    caller = TimeLimitedCaller()
    assert caller.call(lambda: 1, 60) == 1
    thread = caller._helper
    monkeypatch.setattr(QUEUE, Answer)
    assert caller.call(steps, 0.6) is None and clock[0] == pytest.approx(7 * 0.6)
    with pytest.raises(LimitExceededError):
        caller.call(hang, 0.6)
    assert clock[0] == pytest.approx(7 * 0.6 + 2 * 0.6 + 0.2)
    gate.set()
    thread.join(60)


def test_an_abandoned_thread_ends_at_its_next_step():
    caller, gate, steps = TimeLimitedCaller(), threading.Event(), []
    thread = caller.call(threading.current_thread, 60)

    def work():
        gate.wait(60)
        try:
            caller.restart(60)
            steps.append("went on")
        except AbandonedError:
            steps.append("abandoned")

    with pytest.raises(LimitExceededError):
        caller.call(work, 0.1)
    assert caller.call(lambda: caller.restart(60), 60) is None  # of the new thread
    gate.set()
    thread.join(60)
    assert steps == ["abandoned"] and not thread.is_alive()
    with pytest.raises(AbandonedError):
        caller.restart(1)  # of no thread of the caller


def test_an_interrupted_call_is_abandoned(monkeypatch):
    """The thread does not make the rest of a batch after Ctrl-C."""
    caller, gate, steps = TimeLimitedCaller(), threading.Event(), []

    class Answer:
        def get(self, timeout):
            raise KeyboardInterrupt

        def put(self, _):
            steps.append("ended")

    def work():
        gate.wait(60)
        caller.restart(60)
        steps.append("went on")

    assert caller.call(lambda: 1, 60) == 1
    thread = caller._helper
    monkeypatch.setattr(QUEUE, Answer)
    with pytest.raises(KeyboardInterrupt):
        caller.call(work, 60)
    gate.set()
    thread.join(60)
    assert steps == ["ended"] and not thread.is_alive()
