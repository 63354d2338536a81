"""The data set of videos: bad files, time limits, and samples that depend on their seed alone."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from helpers.videos import numbered_frames, read_number, write_video
from torch.utils.data import DataLoader

from sce_video.datasets import (
    ResumableSampler,
    SampleRequest,
    TooManyBadFilesError,
    VideoDataset,
    VideoDecodeError,
    collate_views,
)
from sce_video.datasets import video_dataset as video_dataset_module
from sce_video.registry import DATASETS, TRANSFORMS

PIPELINE = [
    {"type": "OpenVideo"},
    {"type": "RandomClips", "clip_duration": 0.5, "num_frames": 4, "reverse_prob": 0.3},
    {"type": "DecodeClips"},
    {"type": "RandomResizedCropClips", "size": 16},
    {"type": "PackClips"},
]
WHOLE = [
    {"type": "OpenVideo"},
    {"type": "UniformClips", "clip_duration": 100.0, "num_frames": 12, "num_clips": 1},
    {"type": "DecodeClips"},
    {"type": "PackClips"},
]


@TRANSFORMS.register_module()
class HangOn:
    """Sleeps if the path contains a word; records the paths."""

    def __init__(self, word: str, seconds: float) -> None:
        self.word = word
        self.seconds = seconds
        self.seen: list[str] = []

    def __call__(self, results):
        self.seen.append(results["path"])
        if self.word in results["path"]:
            time.sleep(self.seconds)
        return results


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Six good videos in two classes; those of class b have other sizes and lengths."""
    root = tmp_path_factory.mktemp("good")
    for i in range(3):
        write_video(root / "a" / f"{i}.mp4", numbered_frames(40, 32, 40), fps=25)
        write_video(root / "b" / f"{i}.mp4", numbered_frames(20 + i, 48, 60), fps=10)
    return root


@pytest.fixture
def mixed(tmp_path, good):
    """The six good videos and two files that are no videos."""
    for name in ("a", "b"):
        os.symlink(good / name, tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "empty.mp4").touch()
    (tmp_path / "c" / "text.mp4").write_text("no video " * 500)
    return tmp_path


def equal(first, second):
    assert first.keys() == second.keys()
    for key in first:
        if key == "inputs":
            assert len(first[key]) == len(second[key])
            assert all(torch.equal(x, y) for x, y in zip(first[key], second[key], strict=True))
        elif isinstance(first[key], torch.Tensor):
            assert torch.equal(first[key], second[key])
        else:
            assert first[key] == second[key]
    return True


# -- good files ----------------------------------------------------------------------------


def test_folder_sample(good):
    dataset = DATASETS.build({"type": "VideoDataset", "data_root": str(good), "pipeline": PIPELINE})
    assert len(dataset) == 6 and dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.metainfo == {"classes": ("a", "b")}
    sample = dataset[SampleRequest(4, 123)]
    assert [tuple(view.shape) for view in sample["inputs"]] == [(4, 16, 16, 3)] * 2
    assert (sample["label"], sample["index"], sample["seed"]) == (1, 4, 123)
    assert sample["failures"] == []


def test_list_sample(good, tmp_path):
    (tmp_path / "list.txt").write_text("a/0.mp4 5\nb/2.mp4 7\n")
    for ann_file, root in [(str(tmp_path / "list.txt"), good), ("b/../list.txt", good)]:
        if ann_file.startswith("b"):
            (good / "list.txt").write_text("a/0.mp4 5\nb/2.mp4 7\n")  # found in the root
        dataset = VideoDataset(str(root), ann_file, PIPELINE)
        assert [dataset[i]["label"] for i in range(2)] == [5, 7]
    (good / "list.txt").unlink()


def test_class_file_of_a_list(good, tmp_path):
    (tmp_path / "list.txt").write_text("a/0.mp4 1\nb/2.mp4 0\n")
    (tmp_path / "names.txt").write_text("wave\nbend\n")
    files = {"ann_file": str(tmp_path / "list.txt"), "class_file": str(tmp_path / "names.txt")}
    assert VideoDataset(str(good), **files).metainfo == {"classes": ("wave", "bend")}
    with pytest.raises(ValueError, match=r"names\.txt' names the labels of an ann_file"):
        VideoDataset(str(good), class_file=files["class_file"])


def test_a_wrong_root_is_an_error_at_once(good, tmp_path):
    (tmp_path / "list.txt").write_text("a/0.mp4\n")
    with pytest.raises(ValueError, match=r"none of the first 1 .*data_root"):
        VideoDataset(str(tmp_path), str(tmp_path / "list.txt"))


def test_wrong_options(good):
    with pytest.raises(ValueError, match="ignore"):
        VideoDataset(str(good), on_error="ignore")
    with pytest.raises(ValueError, match="timeout"):
        VideoDataset(str(good), timeout=0)
    with pytest.raises(TypeError, match="test_mode"):
        DATASETS.build({"type": "VideoDataset", "data_root": str(good), "test_mode": True})


def test_a_sample_is_a_function_of_its_seed(good):
    first, second = (VideoDataset(str(good), pipeline=PIPELINE) for _ in range(2))
    second[0], second[5]
    np.random.seed(1)
    torch.manual_seed(1)
    assert equal(first[SampleRequest(2, 77)], second[SampleRequest(2, 77)])
    assert equal(first[3], second[3])
    pairs = zip(
        first[SampleRequest(2, 78)]["inputs"], first[SampleRequest(2, 77)]["inputs"], strict=True
    )
    assert any((x != y).any() for x, y in pairs)


def test_frames_belong_to_the_sampled_times(good):
    dataset = VideoDataset(str(good), pipeline=WHOLE)
    shown = [read_number(frame) for frame in dataset[0]["inputs"][0].numpy()]
    assert shown == [i * 39 // 11 for i in range(12)]


def batches(dataset, workers, seed=3, start=0, **options):
    sampler = ResumableSampler(dataset, seed=seed)
    sampler.set_start(start)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=workers,
                        collate_fn=collate_views, **options)  # fmt: skip
    return list(loader)


def test_workers_and_resuming_give_the_same_batches(mixed):
    alone = batches(VideoDataset(str(mixed), pipeline=PIPELINE), 0)
    helped = batches(VideoDataset(str(mixed), pipeline=PIPELINE), 2)
    resumed = batches(VideoDataset(str(mixed), pipeline=PIPELINE), 1, start=4)
    assert len(alone) == 4
    assert all(equal(x, y) for x, y in zip(alone, helped, strict=True))
    assert all(equal(x, y) for x, y in zip(alone[2:], resumed, strict=True))
    assert sum(len(batch["failures"]) for batch in alone) >= 2


def test_resuming_does_not_open_files_of_earlier_batches(good):
    dataset = VideoDataset(str(good), pipeline=[HangOn("never", 0), *PIPELINE], timeout=None)
    expected = [dataset.path(r.index) for r in list(ResumableSampler(dataset, seed=3))[4:]]
    batches(dataset, 0, start=4)
    assert dataset.pipeline[0].seen == expected


# -- bad files -----------------------------------------------------------------------------


def test_bad_files_are_replaced_and_reported(mixed):
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE)
    for bad, word in [(6, "empty"), (7, "opened")]:
        seen = set()
        for seed in range(30):
            sample = dataset[SampleRequest(bad, seed)]
            path, error = sample["failures"][0]
            assert path == dataset.path(bad) and word in error
            assert sample["index"] < 6 and sample["label"] == dataset.labels[sample["index"]]
            assert sample["seed"] == seed
            seen.add(sample["index"])
        assert len(seen) > 2, "the replacement depends on the seed"


def test_bad_files_are_opened_once(mixed, monkeypatch):
    from sce_video.datasets.transforms import decoding

    opened = []
    real = decoding.open_reader
    monkeypatch.setattr(
        decoding, "open_reader", lambda p, *a, **k: opened.append(p) or real(p, *a, **k)
    )
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE)
    first, second = dataset[SampleRequest(6, 1)], dataset[SampleRequest(6, 1)]
    assert equal(first, second)
    assert opened.count(dataset.path(6)) == 1


def test_raise_names_the_file_and_what_to_do(mixed):
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE, on_error="raise")
    with pytest.raises(VideoDecodeError, match=r"empty\.mp4.*0 bytes.*on_error='skip'"):
        dataset[6]
    assert dataset[0]["failures"] == []


def test_skip_leaves_the_sample_out(mixed):
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE, on_error="skip")
    batch = collate_views([dataset[5], dataset[6], dataset[7]])
    assert batch["index"].tolist() == [5]
    assert [path for path, _ in batch["failures"]] == [dataset.path(6), dataset.path(7)]


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_good_file_the_error_lists_the_bad_ones(tmp_path, workers):
    for name in "abc":
        (tmp_path / f"{name}.mp4").touch()
    dataset = VideoDataset(str(tmp_path), pipeline=PIPELINE, max_tries=4)
    loader = DataLoader(dataset, num_workers=workers, collate_fn=collate_views)
    with pytest.raises(TooManyBadFilesError) as raised:
        next(iter(loader))
    lines = str(raised.value).splitlines()
    assert lines[0] == "sample 0 and 4 replacements cannot be decoded:"
    assert len(lines) == 6 and all(line.endswith(".mp4: is empty (0 bytes)") for line in lines[1:])


def test_errors_of_transforms_are_not_hidden(good):
    def broken(results):
        raise KeyError("a mistake in a transform")

    for timeout in (None, 10.0):
        dataset = VideoDataset(str(good), pipeline=[broken], timeout=timeout)
        with pytest.raises(KeyError, match="a mistake"):
            dataset[0]


def test_a_file_with_missing_frames_is_sampled_from_the_others(shared_videos, tmp_path):
    os.symlink(shared_videos / "formats" / "decord__corrupted.mp4", tmp_path / "v.mp4")
    pipeline = [WHOLE[0], {**WHOLE[1], "num_frames": 5}, *WHOLE[2:]]
    dataset = VideoDataset(str(tmp_path), pipeline=pipeline, on_error="raise")
    sample = dataset[0]
    assert sample["failures"] == [] and sample["inputs"][0].shape == (5, 720, 1280, 3)
    # 30 of its 50 frames are intact (28 before the error occurs, 2 inside the decoder)
    from sce_video.datasets import FrameCountError, open_reader

    with open_reader(dataset.path(0)) as reader, pytest.raises(FrameCountError) as error:
        reader.read(np.array([49]))
    with open_reader(dataset.path(0), correction=error.value.correction) as reader:
        expected = reader.read(np.arange(30)[np.arange(5) * 29 // 4])
    assert (sample["inputs"][0].numpy() == expected).all()


def test_the_second_attempt_draws_the_same_random_numbers(monkeypatch, good):
    """After a FrameCountError the pipeline runs once more, from the same seed, and only once."""
    from sce_video.datasets import FrameCountError

    draws = []

    def transform(results):
        draws.append((results["rng"].random(), results["correction"]))
        if len(draws) % 2:
            raise FrameCountError(results["path"], 9, np.arange(3.0), np.arange(3))
        return {"inputs": [], "label": 0, "index": 0, "seed": 0}

    VideoDataset(str(good), pipeline=[transform])[0]
    assert len(draws) == 2 and draws[0][0] == draws[1][0]
    assert draws[0][1] is None and draws[1][1].tolist() == [0, 1, 2]

    def always(results):
        raise FrameCountError(results["path"], 9, np.arange(3.0), np.arange(3))

    with pytest.raises(VideoDecodeError, match="3 of 9"):
        VideoDataset(str(good), pipeline=[always], on_error="raise")[0]


# -- time limits ---------------------------------------------------------------------------


def test_a_hanging_file_is_abandoned_once(good):
    hang = HangOn("a/1.mp4", 60.0)
    dataset = VideoDataset(str(good), pipeline=[hang, *PIPELINE], timeout=1.5)
    start = time.monotonic()
    sample = dataset[SampleRequest(1, 5)]
    assert time.monotonic() - start < 50  # the hang alone lasts longer
    assert sample["failures"] == [(dataset.path(1), "timed out after 1.5 s")]
    assert sample["index"] != 1
    assert dataset[SampleRequest(1, 5)]["failures"] == sample["failures"]
    assert hang.seen.count(dataset.path(1)) == 1, "a file known to hang is not tried again"


def test_the_samples_before_and_after_a_hanging_file_are_unchanged(good):
    hang = HangOn("a/1.mp4", 60.0)
    dataset = VideoDataset(str(good), pipeline=[hang, *PIPELINE], timeout=1.5, on_error="skip")
    alone = VideoDataset(str(good), pipeline=PIPELINE)
    requests = [SampleRequest(index, 5) for index in (0, 2, 1, 3)]
    samples = dataset.__getitems__(requests)
    assert samples[2] == {
        "inputs": None,
        "failures": [(dataset.path(1), "timed out after 1.5 s")],
    }
    for number in (0, 1, 3):
        assert equal(samples[number], alone[requests[number]])
    assert [hang.seen.count(dataset.path(index)) for index in range(4)] == [1, 1, 1, 1]


def test_a_slow_decoder_raises_at_its_deadline(good, monkeypatch):
    """The reader checks the deadline itself, so that no thread is abandoned."""

    def slow(results):
        time.sleep(0.25)
        return results

    monkeypatch.setattr(video_dataset_module, "_GRACE", 60.0)
    dataset = VideoDataset(str(good), pipeline=[slow, *PIPELINE], timeout=0.2, on_error="raise")
    start = time.monotonic()
    with pytest.raises(VideoDecodeError, match=r"timed out after 0\.2 s"):
        dataset[0]
    assert time.monotonic() - start < 50  # the caller's own limit is 60


def test_a_fifo_is_refused_at_once(good, tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    os.symlink(good / "a", tmp_path / "a")
    dataset = VideoDataset(str(tmp_path), pipeline=PIPELINE)
    sample = dataset[SampleRequest(3, 1)]  # a pipe that is opened times out instead
    assert "not a regular file" in sample["failures"][0][1]
