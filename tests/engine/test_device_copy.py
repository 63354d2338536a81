"""Copies of batches to the device."""

import pytest
import torch

from sce_video.engine.device_copy import copied_ahead, one_ahead


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
