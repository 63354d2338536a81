"""Memory of batches is used again, but never while anything shows a part of it."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from sce_video.datasets.loading import batch_memory
from sce_video.datasets.loading.batch_memory import BatchMemory, empty_batch, part_of

U8 = torch.uint8


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_the_batch_is_gone():
    memory = BatchMemory()
    first = memory.empty((4, 10), U8)
    second = memory.empty((4, 10), U8)
    places = {address(first), address(second)}
    assert len(places) == 2 and first.shape == (4, 10) and first.is_contiguous()
    del first
    third = memory.empty((5, 7), U8)  # another shape that fits
    assert address(third) in places and address(third) != address(second)


@pytest.mark.parametrize(
    "show",
    [
        lambda batch: batch[2],
        lambda batch: batch.view(-1)[3:].numpy(),
        lambda batch: batch.numpy().reshape(-1)[1::2],
        lambda batch: batch.detach().t(),
        lambda batch: torch.from_numpy(batch.numpy()),
        lambda batch: iter(batch),
    ],
)
def test_memory_that_anything_shows_is_not_used(show):
    memory = BatchMemory()
    batch = memory.empty((4, 10), U8)
    place = address(batch)
    shown = show(batch)
    del batch
    other = memory.empty((4, 10), U8)
    assert address(other) != place
    del shown
    again = memory.empty((4, 10), U8)
    assert address(again) == place


def test_a_thread_that_still_writes_keeps_the_memory():
    memory, leave, inside = BatchMemory(), threading.Event(), threading.Event()

    def write(target):
        inside.set()
        leave.wait(60)
        target.fill_(9)

    batch = memory.empty((4, 10), U8)
    place = address(batch)
    thread = threading.Thread(target=write, args=(batch[1],))
    thread.start()
    del batch
    assert inside.wait(60)
    other = memory.empty((4, 10), U8)
    assert address(other) != place
    leave.set()
    thread.join()


def test_dtypes_and_sizes():
    memory = BatchMemory()
    floats = memory.empty((3, 5), torch.float32)
    floats.copy_(torch.arange(15.0).view(3, 5))
    assert floats.dtype == torch.float32 and floats.sum() == 105
    assert memory.empty((0, 5), U8).shape == (0, 5)
    place = address(floats)
    del floats
    assert address(memory.empty((61,), U8)) != place  # larger than its 60 bytes
    assert len(memory._blocks) == 2


def test_memory_of_other_sizes_is_given_back():
    """Free memory beside the batch takes no more than the batch."""
    memory = BatchMemory()
    for size in (1000, 3000, 9000, 27000, 300):
        memory.empty((size,), U8)
        assert sum(len(block) for block in memory._blocks) <= 2 * (size + batch_memory._HEADER)


def test_a_forked_process_has_memory_of_its_own():
    memory = BatchMemory()
    batch = memory.empty((64,), U8).fill_(1)
    kept = [batch[:3]]
    pid = os.fork()
    if pid == 0:
        kept.clear()
        del batch  # must not free it for the parent
        mine = memory.empty((64,), U8).fill_(2)
        os._exit(0 if int(mine.sum()) == 128 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(batch.sum()) == 64
    assert address(memory.empty((64,), U8)) != address(batch)


def numbered(number):
    """What batch ``number`` must hold."""
    return np.random.default_rng(number).integers(0, 256, (6, 500), dtype=np.uint8)


class Batches(Dataset):
    """Batch k, written to the memory of batches; and how many blocks its process has."""

    def __init__(self, part, collate):
        self.part, self.collate = part, collate

    def __len__(self):
        return 200

    def __getitem__(self, number):
        batch = empty_batch((6, 500))
        batch.numpy()[...] = numbered(number)
        batch = self.part(batch)
        return number, batch, len(batch_memory._memory._blocks)


def first_item(samples):
    return samples[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_from_workers_stay_as_they_were_sent(method):
    """Some are kept for long; their memory is not written again, the others' memory is."""
    dataset = Batches(whole, first_item)
    loader = DataLoader(
        dataset, batch_size=1, num_workers=2, collate_fn=first_item, multiprocessing_context=method
    )
    kept, blocks = {}, []
    for number, batch, count in loader:
        assert type(batch) is torch.Tensor
        assert torch.equal(batch, torch.from_numpy(numbered(number)))
        if number % 40 < 3:
            kept[number] = batch[1:]  # a view holds it as well
        blocks.append(count)
        del batch
    assert len(kept) == 15 and len({address(batch) for batch in kept.values()}) == 15
    for number, batch in kept.items():
        assert torch.equal(batch, torch.from_numpy(numbered(number)[1:])), number
    # In use by a worker: what it makes, two batches ahead, one on the way; and half of the kept.
    assert max(blocks) <= 8 + 5


def whole(batch):
    return batch


def some_items(batch):
    return part_of(batch, 1, 4)


def plain_view(batch):
    return batch[1:5]


@pytest.mark.parametrize("part", [some_items, plain_view])
@pytest.mark.parametrize("collate", [first_item, default_collate])
def test_parts_and_views_are_sent_whole(part, collate):
    """Whatever a collate function sends, it is not changed by later batches."""
    loader = DataLoader(Batches(part, collate), batch_size=1, num_workers=1, collate_fn=collate)
    found = {int(number): batch for number, batch, _ in loader}
    assert len(found) == 200
    for number, batch in found.items():
        wanted = torch.from_numpy(numbered(number)[1:5])
        assert torch.equal(batch.view(4, 500), wanted), number


def test_a_received_batch_can_be_pinned_saved_and_changed(tmp_path):
    loader = DataLoader(Batches(whole, first_item), num_workers=1, collate_fn=first_item)
    number, batch, _ = next(iter(loader))
    torch.save(batch, tmp_path / "batch.pt")
    assert torch.equal(torch.load(tmp_path / "batch.pt", weights_only=True), batch)
    batch += 1
    wanted = numbered(number) + np.uint8(1)
    assert torch.equal(batch, torch.from_numpy(wanted))
