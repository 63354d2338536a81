"""Copies of batches to the device."""

import pytest
import torch

from sce_video.engine import train_loop as device_copy
from sce_video.engine.train_loop import copied_ahead, one_ahead


def batches():
    for i in range(5):
        yield {
            "inputs": [torch.full((2, 1, 4, 4, 3), 10 * i + v, dtype=torch.uint8) for v in (0, 1)],
            "seed": torch.tensor([i, i + 1]),
            "failures": [("a", "b")],
        }


def test_on_a_cpu_batches_are_unchanged():
    given = list(batches())
    passed = list(copied_ahead(iter(given), torch.device("cpu")))
    assert all(a is b for a, b in zip(given, passed, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_views_are_copied_completely():
    device = torch.device("cuda")
    for i, batch in enumerate(copied_ahead(batches(), device)):
        for v, view in enumerate(batch["inputs"]):
            assert view.device.type == "cuda" and bool((view == 10 * i + v).all())
        assert batch["seed"].device.type == "cpu"


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_next_item_is_fetched_before_an_item_is_yielded(count):
    events = []

    def items():
        for i in range(count):
            events.append(f"take {i}")
            yield i

    for i in one_ahead(items()):
        events.append(f"use {i}")
    uses = [events.index(f"use {i}") for i in range(count)]
    assert uses == sorted(uses) and len(events) == 2 * count
    for i in range(count - 1):
        assert events.index(f"take {i + 1}") < uses[i]
        if i + 2 < count:
            assert uses[i] < events.index(f"take {i + 2}"), "no more than one ahead"


class FakeGpu:
    """Streams and events that note what is called, in place of torch.cuda's."""

    def __init__(self):
        self.calls = []

    def stream(self, name):
        gpu = self

        class Stream:
            def wait_event(self, event):
                gpu.calls.append(("wait", name, event.what))

            def record_event(self):
                return gpu.event(f"copies of {gpu.copied}")

            def __enter__(self):
                gpu.calls.append(("enter", name))

            def __exit__(self, *_):
                gpu.calls.append(("leave", name))

        return Stream()

    def event(self, what=None):
        gpu = self

        class Event:
            def __init__(self):
                self.what = what

            def record(self, stream):
                self.what = f"begin of {gpu.yielded}"

            def synchronize(self):
                gpu.calls.append(("host waits", self.what))

        return Event()


class View:
    """A batch's view: notes its copy and the streams that use it."""

    def __init__(self, gpu, number, on_device=False):
        self.gpu, self.number, self.on_device = gpu, number, on_device

    def to(self, device, non_blocking):
        assert non_blocking
        self.gpu.copied = self.number
        self.gpu.calls.append(("copy", self.number))
        return View(self.gpu, self.number, on_device=True)

    def record_stream(self, stream):
        assert self.on_device
        self.gpu.calls.append(("used on current", self.number))
        self.gpu.yielded = self.number


def test_order_of_copies_waits_and_uses(monkeypatch):
    """On two fake streams: what overlaps, what waits, and how far the host goes ahead."""
    gpu = FakeGpu()
    current = gpu.stream("current")
    monkeypatch.setattr(device_copy, "_copy_stream", lambda device: gpu.stream("copies"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: gpu.event())
    source = ({"inputs": [View(gpu, number)], "seed": number} for number in range(6))
    for batch in copied_ahead(source, torch.device("cuda")):
        assert batch["inputs"][0].on_device and batch["seed"] == batch["inputs"][0].number
        gpu.calls.append(("step", batch["seed"]))
    calls = gpu.calls
    for number in range(6):
        step = calls.index(("step", number))
        arrived = calls.index(("wait", "current", f"copies of {number}"))
        used = calls.index(("used on current", number))
        assert calls.index(("copy", number)) < arrived < used < step
        if number < 5:  # the next copy is queued before the step, which it overlaps with
            assert calls.index(("copy", number + 1)) < step
        if number >= 3:  # two steps ahead at most
            assert calls.index(("host waits", f"begin of {number - 3}")) < step
    for place, call in enumerate(calls):
        if call[0] == "copy":
            assert calls[place - 1] == ("enter", "copies") and calls[place + 1][0] == "leave"
    assert ("host waits", "begin of 4") not in calls, "a host that need not wait does not"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_batch_is_not_used_again_too_early():
    """A slow kernel reads a view while later batches are copied."""
    device, seen = torch.device("cuda"), []
    source = (
        {"inputs": [torch.full((2**22,), i, dtype=torch.uint8).pin_memory()]} for i in range(8)
    )
    for batch in copied_ahead(source, device):
        torch.cuda._sleep(20_000_000)
        seen.append((batch["inputs"][0].min(), batch["inputs"][0].max()))
        del batch
    assert [(int(a), int(b)) for a, b in seen] == [(i, i) for i in range(8)]
