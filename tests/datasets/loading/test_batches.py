"""From samples to batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from helpers.disk_faults import file_size_limit
from helpers.videos import numbered_frames, write_video
from torch.utils.data import DataLoader, Dataset, default_collate

from sce_video.datasets import SampleRequest, VideoDataset, collate_views
from sce_video.datasets.loading import batches as batch_memory
from sce_video.datasets.loading.batches import (
    SharedBatchBuffer,
    SharedMemoryError,
    empty_batch,
    part_of,
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
    assert empty["inputs"] == [] and empty["label"].shape == (0,)
    assert empty["label"].dtype == torch.int64 and empty["failures"] == [("x.mp4", "empty")]


def test_unequal_samples_are_explained():
    with pytest.raises(ValueError, match=r"different shapes.*crop"):
        collate_views([sample(0), sample(1, frames=3)])
    with pytest.raises(ValueError, match="numbers of views"):
        collate_views([sample(0), sample(1, views=3)])


def video(index, frames, failures=()):
    return {
        "frames": torch.full((frames, 4, 5 + index, 3), index, dtype=torch.uint8),
        "positions": torch.tensor([[0, frames - 1]]),
        "offsets": torch.tensor([[0, 0], [0, 1]]),
        "crop_size": 4,
        **{"label": index + 1, "index": index, "seed": index, "failures": list(failures)},
    }


def test_videos_of_any_size_stay_one_by_one():
    skipped = {"inputs": None, "failures": [("b", "broken")]}
    batch = collate_views([video(1, 3), skipped, video(2, 7, [("a", "bad")])])
    assert [tuple(v["frames"].shape) for v in batch["videos"]] == [(3, 4, 6, 3), (7, 4, 7, 3)]
    assert set(batch["videos"][0]) == {"frames", "positions", "offsets", "crop_size"}
    assert "inputs" not in batch
    assert batch["label"].tolist() == [2, 3] and batch["index"].tolist() == [1, 2]
    assert batch["failures"] == [("b", "broken"), ("a", "bad")]


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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["replace", "skip"])
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


def test_a_thread_that_timed_out_cannot_change_the_batch(folder):
    """A decoder that returns after its time limit writes to a slot that is not read."""
    collated, written = threading.Event(), threading.Event()

    class Slow:
        def __call__(self, results):
            if results["path"].endswith("2.mp4") and results["targets"] is not None:
                collated.wait(60)
                for target in results["targets"]:
                    target.fill_(77)
                written.set()
            return results

    dataset = VideoDataset(
        str(folder), pipeline=[*PIPELINE[:3], Slow(), *PIPELINE[3:]], timeout=1.0, max_tries=50
    )
    alone = VideoDataset(str(folder), pipeline=PIPELINE)
    wanted = [SampleRequest(i, 5 + i) for i in (0, 1, 2, 4)]
    dataset.__getitems__([SampleRequest(0, 1)])  # now the shapes are known
    batch = collate_views(dataset.__getitems__(wanted))
    assert batch["failures"][0] == (str(folder / "2.mp4"), "timed out after 1 s")
    collated.set()
    assert written.wait(60)
    for slot, index in enumerate(batch["index"].tolist()):
        single = alone[SampleRequest(index, wanted[slot].seed)]
        for v in range(2):
            assert torch.equal(batch["inputs"][v][slot], single["inputs"][v]), slot


def test_a_data_set_that_combines_two_samples_gets_separate_memory(folder):
    class Average(VideoDataset):
        def __getitem__(self, request):
            first, second = (
                super(Average, self).__getitem__(request._replace(index=i)) for i in (0, 5)
            )
            first["inputs"] = [
                x // 2 + y // 2 for x, y in zip(first["inputs"], second["inputs"], strict=True)
            ]
            return first

    dataset = Average(str(folder), pipeline=PIPELINE)
    single = [dataset[SampleRequest(0, seed)]["inputs"][0] for seed in range(3)]
    dataset.__getitems__([SampleRequest(0, 9)])  # now the shapes are known
    batch = collate_views(dataset.__getitems__([SampleRequest(0, seed) for seed in range(3)]))
    assert torch.equal(batch["inputs"][0], torch.stack(single))


def test_stack_slots_equals_torch_stack():
    buffer = SharedBatchBuffer(4, ((2, 3),))
    rows = []
    for _ in range(4):
        rows += buffer.next_slot()
        buffer.fill()
    batch = rows[0].batch.copy_(torch.arange(24).view(4, 2, 3))
    assert stack_slots(rows).data_ptr() == batch.data_ptr()
    assert torch.equal(stack_slots(rows), batch)
    assert stack_slots(rows[1:3]).data_ptr() == batch[1].data_ptr()
    for tensors in (
        [rows[0], rows[2]],  # a gap
        [rows[1], rows[0]],  # the wrong order
        [rows[0], rows[1].clone()],  # other memory
        [rows[0].t(), rows[1].t()],  # not the tensors of the slots
        list(batch),  # tensors of the user, which must not be aliased
    ):
        result = stack_slots(tensors)
        assert torch.equal(result, torch.stack(tensors))
        assert result.data_ptr() != batch.data_ptr()


def test_too_little_shared_memory_is_reported(folder, monkeypatch):
    """As in a container with its default of 64 MiB."""

    def full(storage, size):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    dataset = VideoDataset(str(folder), pipeline=PIPELINE)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", full)
    assert len(list(DataLoader(dataset, 4, sampler=requests(), collate_fn=collate_views))) == 5
    with pytest.raises(SharedMemoryError) as raised:
        list(DataLoader(dataset, 4, sampler=requests(), collate_fn=collate_views, num_workers=1))
    message = explain(raised.value)
    assert message.startswith("no shared memory for a batch of 0.0 MiB (unable to allocate shared")
    assert "(28); /dev/shm has" in message and "--shm-size" in message and "\n" not in message


def test_a_file_size_limit_applies_to_shared_memory(folder):
    with (
        file_size_limit(1000),
        pytest.raises(SharedMemoryError, match="File too large.*limit of file"),
    ):
        VideoDataset(str(folder), pipeline=PIPELINE)


# -- Batches of loader workers: sent without a copy, never changed while they are used


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
