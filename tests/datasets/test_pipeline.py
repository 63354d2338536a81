"""Running a pipeline: order of the transforms, and files closed at its end."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.datasets import run_pipeline
from sce_video.datasets.clip_sampling import make_clip
from sce_video.datasets.readers.base import VideoReader
from sce_video.datasets.transforms import DecodeClips, DecodeSharedFrames, PackClips
from sce_video.datasets.transforms import decoding as frame_folder_module
from sce_video.datasets.transforms.decoding import OpenVideo


class Recording(VideoReader):
    """Ten random frames; records whether it was closed."""

    def __init__(self):
        self.path = "recording"
        self.timestamps = np.arange(10) / 10
        self.duration = 1.0
        self.frames = np.random.default_rng(0).integers(0, 256, (10, 6, 7, 3), dtype=np.uint8)
        self.closed = 0

    def read(self, indices):
        assert not self.closed
        return self.frames[indices]

    def close(self):
        self.closed += 1


class Open:
    """Opens a reader as ``OpenVideo`` does."""

    def __init__(self, reader):
        self.reader = reader

    def __call__(self, results):
        results["reader"] = self.reader
        if "exit_stack" in results:
            results["exit_stack"].enter_context(self.reader)
        return results


def two_clips(results):
    stamps = results["reader"].timestamps
    results["clips"] = [
        make_clip(stamps, start=start, clip_duration=0.4, num_frames=3) for start in (0.0, 0.5)
    ]
    return results


def sample(**extra):
    return {"label": 1, "index": 2, "seed": 3, **extra}


def test_transforms_run_in_order_and_the_input_stays_as_it_was():
    given = {"seen": []}
    out = run_pipeline(
        [lambda r: {**r, "seen": [*r["seen"], 1]}, lambda r: {**r, "seen": [*r["seen"], 2]}], given
    )
    assert out == {"seen": [1, 2]} and given == {"seen": []}
    assert run_pipeline([], {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("steps", [[DecodeClips(), PackClips()], [DecodeSharedFrames()]])
def test_the_reader_is_open_until_the_last_transform_has_returned(steps):
    reader = Recording()
    closed = []

    def last(results):
        closed.append(reader.closed)
        return results

    out = run_pipeline([Open(reader), two_clips, *steps, last], sample())
    assert closed == [0] and reader.closed == 1
    assert "reader" not in out and "exit_stack" not in out


def test_the_sample_is_that_of_the_single_transforms():
    reader, other = Recording(), Recording()
    packed = run_pipeline([Open(reader), two_clips, DecodeClips(), PackClips()], sample())
    state = PackClips()(DecodeClips()(two_clips(sample(reader=other))))
    assert [v.tolist() for v in packed["inputs"]] == [v.tolist() for v in state["inputs"]]
    assert other.closed == 0, "whoever calls transforms one by one closes the reader"


@pytest.mark.parametrize("position", [1, 2, 3])
def test_an_error_closes_what_was_opened(position):
    def broken(results):
        raise KeyError("a mistake in a transform")

    reader = Recording()
    steps = [Open(reader), two_clips, DecodeClips()]
    with pytest.raises(KeyError, match="a mistake"):
        run_pipeline([*steps[:position], broken], sample())
    assert reader.closed == 1


def test_the_opening_transforms_hand_their_reader_over(monkeypatch):
    opened = []

    def open_recording(*_, **__):
        opened.append(Recording())
        return opened[-1]

    monkeypatch.setattr("sce_video.datasets.transforms.decoding.open_reader", open_recording)
    monkeypatch.setattr(frame_folder_module, "FrameFolderReader", open_recording)
    for transform in (OpenVideo(), frame_folder_module.OpenFrameFolder()):
        run_pipeline([transform, two_clips, DecodeClips(), PackClips()], sample(path="x"))
        assert opened[-1].closed == 1
    assert len(opened) == 2
