"""Memory of tensors is reused, but never while anything still refers to a part of it."""

from __future__ import annotations

import os

import pytest
import torch

from sce_video.utils.tensors import ReusedMemory


def allocate(size):
    return torch.empty(size, dtype=torch.uint8)


U8 = torch.uint8


def tensor(memory, shape, dtype):
    return memory.empty(shape, dtype)[0]


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_the_batch_is_gone():
    memory = ReusedMemory(allocate)
    first = tensor(memory, (4, 10), U8)
    second = tensor(memory, (4, 10), U8)
    places = {address(first), address(second)}
    assert len(places) == 2 and first.shape == (4, 10) and first.is_contiguous()
    del first
    third = tensor(memory, (5, 7), U8)  # another shape that fits
    assert address(third) in places and address(third) != address(second)


@pytest.mark.parametrize(
    "show",
    [
        lambda batch: batch.view(-1)[3:].numpy(),
        lambda batch: batch.numpy().reshape(-1)[1::2],
        lambda batch: torch.from_numpy(batch.numpy()),
        lambda batch: iter(batch),
    ],
)
def test_memory_that_anything_shows_is_not_used(show):
    memory = ReusedMemory(allocate)
    batch = tensor(memory, (4, 10), U8)
    place = address(batch)
    shown = show(batch)
    del batch
    other = tensor(memory, (4, 10), U8)
    assert address(other) != place
    del shown
    again = tensor(memory, (4, 10), U8)
    assert address(again) == place


def test_a_forked_process_has_memory_of_its_own():
    memory = ReusedMemory(allocate)
    batch = tensor(memory, (64,), U8).fill_(1)
    kept = [batch[:3]]
    pid = os.fork()
    if pid == 0:
        kept.clear()
        del batch  # must not free it for the parent
        mine = tensor(memory, (64,), U8).fill_(2)
        os._exit(0 if int(mine.sum()) == 128 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(batch.sum()) == 64
    assert address(tensor(memory, (64,), U8)) != address(batch)
