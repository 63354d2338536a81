"""The data set of videos: bad files, time limits, and samples that depend on their seed alone."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from helpers.videos import numbered_frames, write_video
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader

from sce_video.datasets import (
    FrameCountError,
    ResumableSampler,
    SampleRequest,
    TooManyBadFilesError,
    VideoDataset,
    VideoDecodeError,
    collate_views,
    run_pipeline,
)
from sce_video.datasets import video_dataset as video_dataset_module
from sce_video.datasets.transforms import decoding
from sce_video.registry import DATASETS

PIPELINE = [
    {"type": "OpenVideo"},
    {"type": "RandomClips", "clip_duration": 0.5, "num_frames": 4, "reverse_prob": 0.3},
    {"type": "DecodeClips"},
    {"type": "RandomResizedCropClips", "size": 16},
    {"type": "PackClips"},
]


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
    """The six good videos, two files that are no videos, and a pipe, on which opening waits."""
    for name in ("a", "b"):
        os.symlink(good / name, tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "empty.mp4").touch()
    os.mkfifo(tmp_path / "c" / "pipe.mp4")
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


def test_folder_sample(good):
    dataset = DATASETS.build({"type": "VideoDataset", "data_root": str(good), "pipeline": PIPELINE})
    assert len(dataset) == 6 and dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.metainfo == {"classes": ("a", "b")}
    sample = dataset[SampleRequest(4, 123)]
    assert [tuple(view.shape) for view in sample["inputs"]] == [(4, 16, 16, 3)] * 2
    assert (sample["label"], sample["index"], sample["seed"]) == (1, 4, 123)
    assert sample["failures"] == []


def test_lists_and_their_class_files(mixed):
    (mixed / "list.txt").write_text("a/0.mp4 1\nb/2.mp4 0\n")
    (mixed / "names.txt").write_text("wave\nbend\n")
    for ann_file in (str(mixed / "list.txt"), "list.txt"):  # a list is also found in the root
        dataset = VideoDataset(str(mixed), ann_file, PIPELINE, class_file="names.txt")
        assert [dataset[i]["label"] for i in range(2)] == [1, 0]
        assert dataset.metainfo == {"classes": ("wave", "bend")}


def test_wrong_options(good, tmp_path):
    (tmp_path / "list.txt").write_text("a/0.mp4\n")
    for root, options, message in (
        (tmp_path, {"ann_file": str(tmp_path / "list.txt")}, r"none of the first 1 .*data_root"),
        (good, {"class_file": "names.txt"}, r"names\.txt' has no effect without an ann_file"),
        (good, {"on_error": "ignore"}, "ignore"),
        (good, {"timeout": 0}, "timeout"),
    ):
        with pytest.raises(ValueError, match=message):
            VideoDataset(str(root), **options)
    with pytest.raises(TypeError, match="test_mode"):
        DATASETS.build({"type": "VideoDataset", "data_root": str(good), "test_mode": True})


def test_a_sample_is_a_function_of_its_seed(good):
    first, second = (VideoDataset(str(good), pipeline=PIPELINE) for _ in range(2))
    second[0], second[5]
    np.random.seed(1)
    torch.manual_seed(1)
    one = first[SampleRequest(2, 77)]
    assert equal(one, second[SampleRequest(2, 77)]) and equal(first[3], second[3])
    pairs = zip(first[SampleRequest(2, 78)]["inputs"], one["inputs"], strict=True)
    assert any((x != y).any() for x, y in pairs)


def batches(dataset, workers, start=0):
    sampler = ResumableSampler(dataset, seed=3)
    sampler.set_start(start)
    loader = DataLoader(
        dataset, batch_size=2, sampler=sampler, num_workers=workers, collate_fn=collate_views
    )
    return list(loader)


def test_workers_and_resuming_give_the_same_batches(mixed):
    alone = batches(VideoDataset(str(mixed), pipeline=PIPELINE), 0)
    helped = batches(VideoDataset(str(mixed), pipeline=PIPELINE), 2)
    seen = []
    pipeline = [lambda results: seen.append(results["path"]) or results, *PIPELINE]
    dataset = VideoDataset(str(mixed), pipeline=pipeline, timeout=None)
    resumed = batches(dataset, 0, start=4)
    assert len(alone) == 5
    assert all(equal(x, y) for x, y in zip(alone, helped, strict=True))
    assert all(equal(x, y) for x, y in zip(alone[2:], resumed, strict=True))
    assert sum(len(batch["failures"]) for batch in alone) >= 3
    asked = [dataset.path(r.index) for r in list(ResumableSampler(dataset, seed=3))[4:]]
    assert [path for path in seen if path in asked] == asked, "no file of earlier batches is opened"


# -- bad files -----------------------------------------------------------------------------


def test_bad_files_are_replaced_and_reported(mixed, monkeypatch):
    opened = []
    real = decoding.open_video
    monkeypatch.setattr(
        decoding, "open_video", lambda p, *a, **k: opened.append(p) or real(p, *a, **k)
    )
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE)
    for bad, word in [(6, "empty"), (7, "not a regular file"), (8, "opened")]:
        seen = set()
        for seed in range(6):
            sample = dataset[SampleRequest(bad, seed)]
            path, error = sample["failures"][0]
            assert path == dataset.path(bad) and word in error
            assert sample["index"] < 6 and sample["label"] == dataset.labels[sample["index"]]
            assert sample["seed"] == seed
            seen.add(sample["index"])
        assert len(seen) > 2, "the replacement depends on the seed"
        assert opened.count(dataset.path(bad)) == 1


def test_raise_and_skip(mixed):
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE, on_error="raise")
    with pytest.raises(VideoDecodeError, match=r"empty\.mp4.*0 bytes.*on_error='skip'"):
        dataset[6]
    assert dataset[0]["failures"] == []
    dataset = VideoDataset(str(mixed), pipeline=PIPELINE, on_error="skip")
    batch = collate_views([dataset[5], dataset[6], dataset[7]])
    assert batch["index"].tolist() == [5]
    assert [path for path, _ in batch["failures"]] == [dataset.path(6), dataset.path(7)]


def test_without_a_good_file_the_error_lists_the_bad_ones(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.mp4").touch()
    dataset = VideoDataset(str(tmp_path), pipeline=PIPELINE)
    dataset.max_tries = 4
    with pytest.raises(TooManyBadFilesError) as raised:
        dataset[0]
    with pytest.raises(TooManyBadFilesError) as sent:  # as a loader worker sends it
        ExceptionWrapper((raised.type, raised.value, raised.tb), "in a worker").reraise()
    assert str(sent.value) == str(raised.value)
    lines = str(raised.value).splitlines()
    assert lines[0] == "sample 0 and 4 replacements cannot be decoded:"
    assert len(lines) == 6 and all(line.endswith(".mp4: is empty (0 bytes)") for line in lines[1:])


def test_errors_of_transforms_are_not_hidden(good):
    for timeout in (None, 60.0):
        dataset = VideoDataset(str(good), pipeline=[lambda results: results["x"]], timeout=timeout)
        with pytest.raises(KeyError, match="x"):
            dataset[0]


def test_the_second_attempt_draws_the_same_random_numbers(good):
    """After a FrameCountError the pipeline runs once more, from the same seed, and only once."""
    draws = []

    def transform(results):
        draws.append((results["rng"].random(), results.get("correction")))
        if len(draws) != 2:
            raise FrameCountError(results["path"], 9, np.arange(3.0), np.arange(3))
        return {"inputs": [], "label": 0, "index": 0, "seed": 0}

    dataset = VideoDataset(str(good), pipeline=[transform], on_error="raise")
    assert dataset[0]["inputs"] == []
    assert len(draws) == 2 and draws[0][0] == draws[1][0]
    assert draws[0][1] is None and draws[1][1].tolist() == [0, 1, 2]
    with pytest.raises(VideoDecodeError, match="3 of 9"):
        dataset[0]


# -- time limits ---------------------------------------------------------------------------


class HangOn:
    """Exceeds the time limit if the path contains a word; records the paths."""

    def __init__(self, word, clock):
        self.word, self.clock, self.seen = word, clock, []
        self.gate = threading.Event()

    def __call__(self, results):
        self.seen.append(results["path"])
        if self.word in results["path"]:
            self.clock[0] += 1000
            self.gate.wait(60)
        return results


def test_a_hanging_file_is_abandoned_once_and_changes_no_other_sample(good, clock):
    hang = HangOn("a/1.mp4", clock)
    dataset = VideoDataset(str(good), pipeline=[hang, *PIPELINE], timeout=0.2)
    failures = [(dataset.path(1), "timed out after 0.2 s")]
    sample = dataset[SampleRequest(1, 5)]
    assert sample["failures"] == failures and sample["index"] != 1
    assert dataset[SampleRequest(1, 5)]["failures"] == failures
    assert hang.seen.count(dataset.path(1)) == 1, "a file known to hang is not tried again"
    skipping = VideoDataset(str(good), pipeline=dataset.pipeline, timeout=0.2, on_error="skip")
    alone = VideoDataset(str(good), pipeline=PIPELINE)
    requests = [SampleRequest(index, 5) for index in (0, 2, 1, 3)]
    hang.seen.clear()
    samples = skipping.__getitems__(requests)
    assert samples[2] == {"inputs": None, "failures": failures}
    for number in (0, 1, 3):
        assert equal(samples[number], alone[requests[number]])
    assert [hang.seen.count(dataset.path(index)) for index in range(4)] == [1, 1, 1, 1]
    hang.gate.set()


def test_a_slow_decoder_raises_at_its_deadline(good, clock, monkeypatch):
    """The reader checks the deadline itself, so that no thread is abandoned."""

    def slow(results):
        clock[0] += 1
        return results

    monkeypatch.setattr(video_dataset_module, "_GRACE", 60.0)
    dataset = VideoDataset(str(good), pipeline=[slow, *PIPELINE], timeout=0.2, on_error="raise")
    with pytest.raises(VideoDecodeError, match=r"timed out after 0\.2 s"):
        dataset[0]
    assert dataset._caller._helper is not None


def test_files_stay_open_until_the_last_transform_has_returned():
    closed, given = [], {"a": 1}

    def open_file(results):
        results["exit_stack"].callback(closed.append, "file")
        return results

    def last(results):
        return {"a": results["a"] + 1, "closed before": list(closed)}

    assert run_pipeline([open_file, last], given) == {"a": 2, "closed before": []}
    with pytest.raises(KeyError, match="a mistake"):
        run_pipeline([open_file, lambda results: results["a mistake"], last], given)
    assert closed == ["file"] * 2 and run_pipeline([], given) == given == {"a": 1}
