"""Samples are written to slots of a shared batch buffer; batches equal those of single samples."""

from __future__ import annotations

import threading

import pytest
import torch
from helpers.disk_faults import file_size_limit
from helpers.videos import numbered_frames, write_video
from torch.utils.data import DataLoader

from sce_video.datasets import SampleRequest, VideoDataset, collate_views
from sce_video.datasets.loading.batches import SharedBatchBuffer, SharedMemoryError, stack_slots
from sce_video.utils.command import explain

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


def test_batches_do_not_share_memory(folder):
    loader = DataLoader(
        VideoDataset(str(folder), pipeline=PIPELINE), 4, sampler=requests(), collate_fn=Spy()
    )
    storages = [batch["inputs"][0].untyped_storage().data_ptr() for batch in list(loader)]
    assert len(set(storages)) == 5


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


def test_shapes_may_change_between_and_within_batches(folder):
    class Growing:
        sizes = iter([8, 8, 8, 8, 12, 12, 12, 12, 12, 8])

        def __call__(self, results):
            size = next(self.sizes)
            results["views"] = [view[:, :size, :size] for view in results["views"]]
            return results

    dataset = VideoDataset(str(folder), pipeline=[*PIPELINE[:3], Growing(), PIPELINE[4]])
    for size in (8, 8, 12, 12):
        batch = collate_views(dataset.__getitems__([SampleRequest(0, 1), SampleRequest(1, 2)]))
        assert batch["inputs"][0].shape == (2, 4, size, size, 3)
    with pytest.raises(ValueError, match="different shapes"):
        collate_views(dataset.__getitems__([SampleRequest(0, 1), SampleRequest(1, 2)]))


def test_a_slot_is_returned_until_it_is_filled():
    buffer = SharedBatchBuffer(2, ((3, 2), (4,)))
    first = buffer.next_slot()
    assert [tuple(view.shape) for view in first] == [(3, 2), (4,)]
    assert buffer.next_slot()[0].data_ptr() == first[0].data_ptr()
    buffer.fill()
    second = buffer.next_slot()
    assert second[0].data_ptr() == first[0].data_ptr() + 6
    buffer.fill()
    assert buffer.next_slot() is None
    buffer = SharedBatchBuffer(2, ((4,),))
    buffer.abandon()
    assert buffer.next_slot() is None and SharedBatchBuffer(2, None).next_slot() is None


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
