"""Running a pipeline: order of the transforms, and files closed at its end."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.datasets import run_pipeline
from sce_video.datasets.clip_sampling import make_clip
from sce_video.datasets.readers.base import VideoReader
from sce_video.datasets.transforms import DecodeClips, DecodeSharedFrames, PackClips


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


def two_clips(results):
    stamps = results["reader"].timestamps
    results["clips"] = [
        make_clip(stamps, start=start, clip_duration=0.4, num_frames=3) for start in (0.0, 0.5)
    ]
    return results


def sample(**extra):
    return {"label": 1, "index": 2, "seed": 3, **extra}


def opening(reader):
    """Opens a reader as ``OpenVideo`` does."""

    def step(results):
        if "exit_stack" in results:
            results["exit_stack"].enter_context(reader)
        return {**results, "reader": reader}

    return step


def test_transforms_run_in_order_and_the_input_stays_as_it_was():
    given = {"seen": []}
    steps = [lambda r, i=i: {**r, "seen": [*r["seen"], i]} for i in (1, 2)]
    assert run_pipeline(steps, given) == {"seen": [1, 2]} and given == {"seen": []}
    assert run_pipeline([], {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("steps", [[DecodeClips(), PackClips()], [DecodeSharedFrames()]])
def test_the_reader_is_open_until_the_last_transform_has_returned(steps):
    reader, closed = Recording(), []
    last = lambda results: closed.append(reader.closed) or results  # noqa: E731
    out = run_pipeline([opening(reader), two_clips, *steps, last], sample())
    assert closed == [0] and reader.closed == 1
    assert "reader" not in out and "exit_stack" not in out


@pytest.mark.parametrize("position", [1, 3])
def test_an_error_closes_what_was_opened(position):
    reader = Recording()
    steps = [opening(reader), two_clips, DecodeClips()]
    with pytest.raises(KeyError, match="a mistake"):
        run_pipeline([*steps[:position], lambda results: results["a mistake"]], sample())
    assert reader.closed == 1
