"""From samples to batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from helpers.videos import numbered_frames, write_video
from torch.utils.data import DataLoader, Dataset, default_collate

from sce_video.datasets import SampleRequest, VideoDataset, collate_views
from sce_video.datasets.loading import batches as batch_memory
from sce_video.datasets.loading.batches import (
    SharedBatchBuffer,
    SharedMemoryError,
    empty_batch,
    part_of,
    shared_memory_needed,
    stack_slots,
)
from sce_video.utils.command import explain


def sample(index, frames=2, views=2, failures=()):
    inputs = [
        torch.full((frames, 4, 5, 3), 10 * index + v, dtype=torch.uint8) for v in range(views)
    ]
    return {"inputs": inputs, "label": index + 1, "index": index, "seed": 2**62 + index,
            "failures": list(failures)}  # fmt: skip


def test_stacks_view_by_view():
    batch = collate_views([sample(3, failures=[("a", "bad")]), sample(5), sample(1)])
    assert [tuple(view.shape) for view in batch["inputs"]] == [(3, 2, 4, 5, 3)] * 2
    assert all(view.dtype == torch.uint8 for view in batch["inputs"])
    assert batch["inputs"][1][:, 0, 0, 0, 0].tolist() == [31, 51, 11]
    assert batch["label"].tolist() == [4, 6, 2] and batch["index"].tolist() == [3, 5, 1]
    assert batch["seed"].tolist() == [2**62 + 3, 2**62 + 5, 2**62 + 1]
    assert batch["failures"] == [("a", "bad")]


def test_skipped_samples_are_dropped_and_their_failures_kept():
    skipped = {"inputs": None, "failures": [("x.mp4", "empty")]}
    batch = collate_views([skipped, sample(2), skipped])
    assert batch["index"].tolist() == [2] and len(batch["failures"]) == 2
    empty = collate_views([skipped])
    assert empty["inputs"] == [] and empty["label"].dtype == torch.int64
    assert empty["label"].shape == (0,) and empty["failures"] == [("x.mp4", "empty")]
    videos = [dict.fromkeys(("frames", "positions", "offsets", "crop_size"), i) for i in (1, 2)]
    packed = [{**video, "label": 1, "index": 2, "seed": 3} for video in videos]
    batch = collate_views([packed[0], skipped, packed[1]])
    assert batch["videos"] == videos and "inputs" not in batch and len(batch["failures"]) == 1


def test_unequal_samples_are_explained():
    with pytest.raises(ValueError, match=r"different shapes.*crop"):
        collate_views([sample(0), sample(1, frames=3)])
    with pytest.raises(ValueError, match="numbers of views"):
        collate_views([sample(0), sample(1, views=3)])


# -- Samples are written to slots of a shared batch buffer; batches equal those of single sampl

PIPELINE = [
    {"type": "OpenVideo"},
    {"type": "RandomClips", "clip_duration": 0.5, "num_frames": 4},
    {"type": "DecodeClips"},
    {"type": "RandomResizedCropClips", "size": 16},
    {"type": "PackClips"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for i in range(6):
        write_video(root / f"{i}.mp4", numbered_frames(20 + i, 32, 40), fps=10)
    (root / "3_bad.mp4").write_text("no video " * 500)
    return root


class Spy:
    """Collates; adds whether the views of the samples share the memory of the batch."""

    def __call__(self, samples):
        kept = [sample for sample in samples if sample["inputs"] is not None]
        batch = collate_views(samples)
        batch["in_place"] = all(
            sample["inputs"][v].data_ptr() == batch["inputs"][v][i].data_ptr()
            for i, sample in enumerate(kept)
            for v in range(len(batch["inputs"]))
        )
        batch["shared"] = [view.is_shared() for view in batch["inputs"]]
        return batch


def requests(count=20):
    return [SampleRequest(i % 7, 100 + i) for i in range(count)]


@pytest.mark.parametrize(("workers", "on_error"), [(0, "skip"), (2, "replace")])
def test_batches_equal_those_of_single_samples(folder, workers, on_error):
    """With bad files among them: their slot goes to the next sample."""
    dataset = VideoDataset(str(folder), pipeline=PIPELINE, on_error=on_error)
    loader = DataLoader(dataset, 4, sampler=requests(), num_workers=workers, collate_fn=Spy())
    alone = VideoDataset(str(folder), pipeline=PIPELINE, on_error=on_error)
    batches = list(loader)
    assert len(batches) == 5
    for number, batch in enumerate(batches):
        own = [alone[request] for request in requests()[4 * number : 4 * number + 4]]
        kept = [sample for sample in own if sample["inputs"] is not None]
        assert batch["index"].tolist() == [sample["index"] for sample in kept]
        for v in range(2):
            assert torch.equal(batch["inputs"][v], torch.stack([s["inputs"][v] for s in kept]))
        assert batch["shared"] == [workers > 0] * 2
    first = max(1, workers)  # of each worker, which does not know the shapes yet
    assert [batch["in_place"] for batch in batches] == [False] * first + [True] * (5 - first)


def test_a_thread_that_timed_out_cannot_change_the_batch(folder, clock):
    """A decoder that returns after its time limit writes to a slot that is not read."""
    collated, written = threading.Event(), threading.Event()

    def slow(results):
        if results["path"].endswith("2.mp4") and results["targets"] is not None:
            clock[0] += 100
            collated.wait(60)
            for target in results["targets"]:
                target.fill_(77)
            written.set()
        return results

    pipeline = [*PIPELINE[:3], slow, *PIPELINE[3:]]
    dataset = VideoDataset(str(folder), pipeline=pipeline, timeout=0.2)
    dataset.max_tries = 50
    alone = VideoDataset(str(folder), pipeline=PIPELINE)
    wanted = [SampleRequest(i, 5 + i) for i in (0, 1, 2, 4)]
    dataset.__getitems__([SampleRequest(0, 1)])  # now the shapes are known
    batch = collate_views(dataset.__getitems__(wanted))
    assert batch["failures"][0] == (str(folder / "2.mp4"), "timed out after 0.2 s")
    collated.set()
    assert written.wait(60)
    for slot, index in enumerate(batch["index"].tolist()):
        single = alone[SampleRequest(index, wanted[slot].seed)]
        for v in range(2):
            assert torch.equal(batch["inputs"][v][slot], single["inputs"][v]), slot


def test_stack_slots_equals_torch_stack():
    buffer, rows = SharedBatchBuffer(4, ((2, 3),)), []
    for _ in range(4):
        rows += buffer.next_slot()
        buffer.fill()
    batch = rows[0].batch.copy_(torch.arange(24).view(4, 2, 3))
    for tensors, shared in (
        (rows, True),
        (rows[1:3], True),
        ([rows[0], rows[2]], False),  # a gap
        ([rows[1], rows[0]], False),  # the wrong order
        ([rows[0].t(), rows[1].t()], False),  # not the tensors of the slots
        (list(batch), False),  # tensors of the user, which must not be aliased
    ):
        result = stack_slots(tensors)
        assert torch.equal(result, torch.stack(tensors))
        assert (result.data_ptr() == tensors[0].data_ptr()) == shared


def test_too_little_shared_memory_is_reported(folder, monkeypatch):
    """As in a container with its default of 64 MiB."""

    def full(storage, size):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    dataset = VideoDataset(str(folder), pipeline=PIPELINE)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    assert len(list(DataLoader(dataset, 4, sampler=requests(), collate_fn=collate_views))) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(SharedMemoryError) as raised:
        list(DataLoader(dataset, 4, sampler=requests(4), collate_fn=collate_views, num_workers=1))
    message = explain(raised.value)
    assert message.startswith(
        "not enough shared memory for a batch of 0.0 MiB (unable to allocate shared"
    )
    assert "(28); /dev/shm has" in message and "--ipc=host, or --shm-size=1g" in message
    assert "\n" not in message
    assert shared_memory_needed(154_140_672, workers=12) == "28g"  # of all eight processes


# -- Batches of loader workers: sent without a copy, never changed while they are used


def numbered(number):
    """What batch ``number`` must hold."""
    return np.random.default_rng(number).integers(0, 256, (6, 500), dtype=np.uint8)


class Batches(Dataset):
    """Batch k, written to the memory of batches; and how many blocks its process has."""

    def __init__(self, part):
        self.part = part

    def __len__(self):
        return 60

    def __getitem__(self, number):
        batch = empty_batch((6, 500))
        batch.numpy()[...] = numbered(number)
        return number, self.part(batch), len(batch_memory._memory._blocks)


def first_item(samples):
    return samples[0]


def test_batches_from_workers_stay_as_they_were_sent():
    """Some are kept for long; their memory is not written again, the others' memory is."""
    loader = DataLoader(Batches(whole), num_workers=2, collate_fn=first_item)
    kept, blocks = {}, []
    for number, batch, count in loader:
        assert type(batch) is torch.Tensor
        assert torch.equal(batch, torch.from_numpy(numbered(number)))
        if number % 20 < 3:
            kept[number] = batch[1:]  # a view holds it as well
        blocks.append(count)
        del batch
    starts = {batch.untyped_storage().data_ptr() for batch in kept.values()}
    assert len(kept) == len(starts) == 9
    for number, batch in kept.items():
        assert torch.equal(batch, torch.from_numpy(numbered(number)[1:])), number
    # Of the 30 batches of a worker 5 are kept, and a few are under way: two ahead, one being made,
    # those that the other process has not dropped yet.
    assert max(blocks) <= 5 + 12


def whole(batch):
    return batch


def some_items(batch):
    return part_of(batch, 1, 4)


def plain_view(batch):
    return batch[1:5]


@pytest.mark.parametrize(
    ("part", "collate"), [(some_items, first_item), (plain_view, default_collate)]
)
def test_parts_and_views_are_sent_whole(part, collate):
    """Whatever a collate function sends, it is not changed by later batches."""
    loader = DataLoader(Batches(part), batch_size=1, num_workers=1, collate_fn=collate)
    found = {int(number): batch for number, batch, _ in loader}
    assert len(found) == 60
    for number, batch in found.items():
        wanted = torch.from_numpy(numbered(number)[1:5])
        assert torch.equal(batch.view(4, 500), wanted), number
