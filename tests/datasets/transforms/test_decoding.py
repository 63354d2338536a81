"""One decoding pass for all clips, and RGB differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.readers import FramesReader

from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.transforms import rgb_difference
from sce_video.registry import TRANSFORMS


def build(name, **options):
    return TRANSFORMS.build({"type": name, **options})


@pytest.fixture
def reader():
    frames = np.random.default_rng(0).integers(0, 256, (40, 6, 7, 3), dtype=np.uint8)
    return FramesReader(frames)


def sample_clips(reader, seed=0, **options):
    transform = build("RandomClips", clip_duration=1.0, num_frames=4, **options)
    return transform({"reader": reader, "rng": np.random.default_rng(seed)})["clips"]


def test_all_clips_are_read_in_one_ordered_call(reader):
    clips = sample_clips(reader, num_views=3, diff_prob=0.5, reverse_prob=0.5)
    state = build("DecodeClips")({"reader": reader, "clips": clips})
    assert len(reader.calls) == 1 and "reader" not in state
    needed = {int(i) for c in clips for i in c.frames}
    needed |= {int(i) for c in clips if c.partners is not None for i in c.partners}
    assert reader.calls[0] == sorted(needed)
    for clip, view in zip(clips, state["views"], strict=True):
        assert view.shape == (4, 6, 7, 3) and view.dtype == np.uint8
        if clip.partners is None:
            assert (view == reader.frames[clip.frames]).all()


def slow_difference_clip(frames, num_frames, backwards):
    """Differences of the whole clip at full rate in float64, then T of them: the definition."""
    clip = frames[::-1] if backwards else frames
    grey = clip.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    change = (grey[:-1] - grey[1:] + 255) / 2
    change = np.concatenate([change, change[-1:]])
    picks = [math.floor(i * (len(clip) - 1) / (num_frames - 1) + 1e-9) for i in range(num_frames)]
    return np.repeat(change[picks][..., None], 3, axis=-1)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("num_frames", [2, 5, 12])
def test_difference_equals_the_slow_full_clip(reader, num_frames, backwards):
    transform = build("RandomClips", clip_duration=1.2, num_frames=num_frames, num_views=1,
                      diff_prob=1.0, reverse_prob=float(backwards))  # fmt: skip
    state = transform({"reader": reader, "rng": np.random.default_rng(3)})
    start = state["clips"][0].start
    inside = (reader.timestamps >= start) & (reader.timestamps < start + 1.2)
    view = build("DecodeClips")(state)["views"][0]
    expected = slow_difference_clip(reader.frames[inside], num_frames, backwards)
    assert np.abs(view - expected).max() <= 0.5 + 1e-3


def test_difference_of_equal_frames_is_128():
    frames = np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3), dtype=np.uint8)
    assert (rgb_difference(frames, np.zeros(2, int), np.zeros(2, int)) == 128).all()


def test_difference_reaches_both_ends():
    frames = np.stack([np.zeros((2, 2, 3)), np.full((2, 2, 3), 255)]).astype(np.uint8)
    both = rgb_difference(frames, np.array([0, 1]), np.array([1, 0]))
    assert (both[0] == 0).all() and (both[1] == 255).all()


def test_difference_of_a_video_of_one_frame(reader):
    reader.frames, reader.timestamps, reader.duration = reader.frames[:1], np.zeros(1), 0.1
    clips = sample_clips(reader, num_views=1, diff_prob=1.0)
    assert isinstance(clips[0], ClipIndices)
    assert (build("DecodeClips")({"reader": reader, "clips": clips})["views"][0] == 128).all()
