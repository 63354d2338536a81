"""Clip sampling against hand-drawn cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.datasets.clip_sampling import (
    frames_between,
    make_clip,
    segment_positions,
    shared_segment_positions,
    spaced_starts,
    uniform_positions,
)

TEN_FPS = np.arange(20) / 10  # frames 0..19, duration 2.0


def clip(timestamps, start, clip_duration, num_frames, **options):
    return make_clip(
        np.asarray(timestamps, dtype=np.float64),
        start=start,
        clip_duration=clip_duration,
        num_frames=num_frames,
        **options,
    )


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0.0, 0.3, (0, 3)),  # frame 3 begins at the end: outside
        (0.2, 0.5, (2, 5)),  # frame 2 begins at the start: inside
        (0.15, 0.45, (2, 5)),  # frames must begin inside
        (0.21, 0.29, (2, 3)),  # none begins inside: the one displayed
        (0.0, 100.0, (0, 20)),
        (1.95, 2.5, (19, 20)),  # after the last start: the last one
        (0.1 + 0.2, 0.6, (3, 6)),  # 0.30000000000000004 is 0.3
        (0.7, 0.7 + 0.1 + 0.2, (7, 10)),  # an end of 1.0000000000000002 - the frame stays outside
    ],
)
def test_frames_between(start, end, expected):
    assert frames_between(TEN_FPS, start, end) == expected


def test_variable_frame_rate_takes_what_begins_inside():
    # dense, then sparse:   0  .1  .2  .3  .4 | 1.0 | 2.0
    stamps = [0.0, 0.1, 0.2, 0.3, 0.4, 1.0, 2.0]
    assert clip(stamps, 0.2, 1.0, 4).frames.tolist() == [2, 3, 4, 5]
    assert clip(stamps, 0.5, 0.4, 2).frames.tolist() == [4, 4]  # a gap: frame 4 is on screen
    assert clip(stamps, 0.95, 1.05, 2).frames.tolist() == [5, 5]  # 2.0 is the end


def test_positions_equal_an_exact_truncated_linspace():
    for count in range(1, 200, 3):
        for num_frames in (2, 3, 8, 16):
            exact = torch.linspace(0, count - 1, num_frames, dtype=torch.float64)
            expected = (exact + 1e-9).long().tolist()
            assert uniform_positions(count, num_frames).tolist() == expected, (count, num_frames)


def test_reverse_plays_the_same_clip_backwards():
    # frames 10..14: forwards 10 12 14; 4 kept of 5: positions 0 1 2 4
    assert clip(TEN_FPS, 1.0, 0.5, 3).frames.tolist() == [10, 12, 14]
    assert clip(TEN_FPS, 1.0, 0.5, 3, reverse=True).frames.tolist() == [14, 12, 10]
    assert clip(TEN_FPS, 1.0, 0.5, 4, reverse=True).frames.tolist() == [14, 13, 12, 10]


def test_difference_of_one_and_two_frames():
    one = clip([0.0], 0.0, 1.0, 3, difference=True)
    assert one.frames.tolist() == one.partners.tolist() == [0, 0, 0]
    two = clip([0.0, 0.1], 0.0, 1.0, 3, difference=True)
    assert two.frames.tolist() == [0, 0, 0] and two.partners.tolist() == [1, 1, 1]


def test_spaced_starts():
    assert spaced_starts(10.0, 4.0, 3).tolist() == [0.0, 3.0, 6.0]
    assert spaced_starts(10.0, 4.0, 1).tolist() == [3.0]
    assert spaced_starts(3.0, 4.0, 4).tolist() == [0.0] * 4
    assert spaced_starts(3.0, 4.0, 1).tolist() == [0.0]


@pytest.mark.parametrize("num_frames", [1, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 33, 64])
def test_segments_of_something_something_are_those_of_slowfast(count, num_frames):
    """Against ``get_seq_frames`` of facebookresearch/SlowFast, datasets/ssv2.py."""
    size = float(count - 1) / num_frames
    ends = [(int(np.round(size * i)), int(np.round(size * (i + 1)))) for i in range(num_frames)]
    centres = shared_segment_positions(count, num_frames)
    assert centres.tolist() == [(start + end) // 2 for start, end in ends]
    draws = np.random.default_rng(0).random((2000, num_frames))
    picks = np.stack([shared_segment_positions(count, num_frames, u) for u in draws])
    for number, (start, end) in enumerate(ends):  # random.randint(start, end)
        shares = np.bincount(picks[:, number] - start) / 2000
        assert shares == pytest.approx([1 / (end - start + 1)] * (end - start + 1), abs=0.06)


def test_segments():
    assert segment_positions(8, 4).tolist() == [1, 3, 5, 7]
    assert segment_positions(8, 4, 0.0).tolist() == [0, 2, 4, 6]
    assert segment_positions(2, 4).tolist() == [0, 0, 1, 1]
    assert segment_positions(1, 3, np.array([0.99, 0.99, 0.99])).tolist() == [0, 0, 0]
    draws = np.random.default_rng(0).random((5000, 4))
    picks = np.stack([segment_positions(10, 4, u) for u in draws])
    assert (picks.min(0) == [0, 2, 5, 7]).all() and (picks.max(0) == [2, 4, 7, 9]).all()
    assert np.bincount(picks[:, 0]) / 5000 == pytest.approx([0.4, 0.4, 0.2], abs=0.03)
