"""Function calls with a time limit."""

from __future__ import annotations

import threading

import pytest

from sce_video.datasets.loading.time_limit import TimeLimitedCaller


def test_calls_share_a_thread_until_one_exceeds_its_limit():
    caller = TimeLimitedCaller()
    names = [caller.call(lambda: threading.current_thread(), 5) for _ in range(2)]
    assert names[0] is names[1] and names[0].daemon
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 5)
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        caller.call(gate.wait, 0.1)
    assert caller.call(lambda: 7, 5) == 7
    gate.set()
    names[0].join(5)
    assert not names[0].is_alive(), "a call that returns late ends its thread"
    fresh = caller.call(threading.current_thread, 5)
    assert fresh is not names[0]
    caller.close()
    fresh.join(5)
    assert not fresh.is_alive()
