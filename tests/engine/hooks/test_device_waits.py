"""Waits for data by the GPU's clock, with events that are told when they happen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MessageHub

from sce_video.engine import ProgressHook


class Event:
    """Happens at ``time`` in seconds; the host learns of it when ``clock`` has reached that."""

    clock = 0.0

    def __init__(self, time: float) -> None:
        self.time = time

    def query(self) -> bool:
        return Event.clock >= self.time

    def synchronize(self) -> None:
        Event.clock = max(Event.clock, self.time)

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query(), "not both have happened"
        return 1e3 * (other.time - self.time)


def run(monkeypatch, name, steps, final=None):
    """``steps``: for each the GPU's begin and end, the host's time and wait."""
    hub = MessageHub.get_instance(name)
    runner = SimpleNamespace(
        message_hub=hub,
        train_dataloader=SimpleNamespace(batch_size=16),
        model=torch.nn.Linear(1, 1),
    )
    hook = ProgressHook()
    hook.before_train(runner)
    hook._on_gpu = True
    times = iter([t for begin, end, *_ in steps for t in (begin, end)])
    monkeypatch.setattr(ProgressHook, "_event", lambda self: Event(next(times)))
    Event.clock = 0.0
    counts = []
    for _, _, seconds, waited in steps:
        hook.before_train_iter(runner, 0)
        hub.update_scalar("train/time", seconds)
        hub.update_scalar("train/data_time", waited)
        hook.after_train_iter(runner, 0)
        scalars = hub.log_scalars
        counts.append(
            len(scalars["train/data_wait"].data[0]) if "train/data_wait" in scalars else 0
        )
    hook.before_checkpoint(runner)
    values, weights = hub.get_scalar("train/data_wait").data
    return counts, (values / 1e6).tolist(), (weights / 1e6).tolist()


def test_a_wait_in_which_the_gpu_works_does_not_count(monkeypatch):
    # The host waits 0.9 of its second every time; the GPU idles for 0.1 before the third step.
    steps = [(0.0, 1.0, 1.0, 0.9), (1.0, 2.0, 1.0, 0.9), (2.1, 3.1, 1.0, 0.9)]
    counts, waits, weights = run(monkeypatch, "overlap", steps)
    assert counts == [1, 1, 1], "what the GPU has not begun is logged later, in order"
    assert waits == pytest.approx([0.9, 0.0, 0.1]) and weights == [1.0, 1.0, 1.0]


def test_a_pause_without_a_wait_for_data_does_not_count(monkeypatch):
    steps = [(0.0, 1.0, 1.0, 0.0), (4.0, 5.0, 4.0, 0.02)]  # an evaluation between the two
    assert run(monkeypatch, "pause", steps)[1] == pytest.approx([0.0, 0.02])
