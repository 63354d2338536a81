"""Batches of loader workers: sent without a copy, never changed while they are used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from sce_video.datasets.loading import batches as batch_memory
from sce_video.datasets.loading.batches import empty_batch, part_of


def address(tensor):
    return tensor.untyped_storage().data_ptr()


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
    # Of the 100 batches of a worker 8 are kept, and a few are under way: two ahead, one being made,
    # those that the other process has not dropped yet.
    assert max(blocks) <= 8 + 12


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
