"""The queue of keys compared with a plain deque."""

from __future__ import annotations

import re
from collections import deque

import pytest
import torch

from sce_video.models.modules import KeyQueue, queue_warnings


def test_starts_filled_with_random_unit_vectors():
    queue = KeyQueue(50, 8)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(50))
    assert len({tuple(k.tolist()) for k in queue.keys}) == 50


@pytest.mark.parametrize("batch", [3, 4, 10, 25])
def test_first_in_first_out(batch):
    queue = KeyQueue(10, 2)
    expected = deque(queue.keys.tolist(), maxlen=10)
    for step in range(7):
        keys = torch.arange(batch * 2.0).view(batch, 2) + 1000 * step
        queue.stage(keys)
        queue.commit()
        expected.extend(keys.tolist())
        oldest_first = torch.roll(queue.keys, -int(queue.pointer), dims=0)
        assert oldest_first.tolist() == list(expected)


def test_nothing_enters_before_commit_and_discarded_keys_never_do():
    queue = KeyQueue(6, 2)
    before = queue.keys.clone()
    queue.stage(torch.ones(2, 2))
    assert torch.equal(queue.keys, before)
    queue.discard_staged()
    queue.commit()
    assert torch.equal(queue.keys, before) and int(queue.pointer) == 0
    queue.stage(torch.ones(2, 2))
    queue.stage(2 * torch.ones(1, 2))
    queue.commit()
    assert queue.keys[:3, 0].tolist() == [1, 1, 2] and int(queue.pointer) == 3


@pytest.mark.parametrize(
    ("size", "batch", "target_views", "match"),
    [
        (64, 16, 2, None),
        (48, 16, 2, None),  # whole batches of a view
        (16, 16, 1, None),
        (16, 16, None, None),  # the number of target views is not known
        (101, 10, 1, "the queue holds 101 keys and there are 100 training samples"),
        (
            50,
            16,
            2,
            "not a multiple of the 16 keys .* keeps only 2 keys of the oldest batch. 48 keys",
        ),
        (16, 16, 2, "a step makes 32 keys and model.queue_size=16, so only the last 16 keys"),
        (6, 16, None, "a step makes 16 keys and model.queue_size=6"),
        (
            32,
            64,
            2,
            "a step makes 128 keys .*a smaller batch, because the queue can have at most 100 keys$",
        ),
    ],
)
def test_queues_that_do_not_suit_the_data_are_warned_of(size, batch, target_views, match):
    warnings = queue_warnings(size, 100, batch, target_views)
    assert not warnings if match is None else re.search(match, str(warnings[0]))
