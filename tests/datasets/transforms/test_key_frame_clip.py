"""Clips around AVA's key frames, against tables written by hand."""

import numpy as np
import pytest

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.clip_sampling import key_frame_times, shown_at
from sce_video.datasets.transforms import KeyFrameClip


class Reader:
    def __init__(self, timestamps, duration):
        self.timestamps, self.duration = np.asarray(timestamps), duration


def frames(reader, second, *arguments, **options):
    clip = KeyFrameClip(*arguments, **options)
    results = clip({"reader": reader, "timestamp": second, "path": "film.mp4"})
    return results["clips"][0].frames.tolist()


def test_eight_by_eight_at_thirty_frames_a_second():
    cut = Reader(np.arange(27000) / 30, 900.0)
    # second 902 is frame 60: 60 - 32, then every eighth
    assert frames(cut, 902, 8, 8) == [28, 36, 44, 52, 60, 68, 76, 84]
    assert frames(cut, 902, 16, 4) == [28 + 4 * i for i in range(16)]
    # at the ends the first or last frame is held
    assert frames(cut, 900, 8, 8) == [0, 0, 0, 0, 0, 8, 16, 24]
    assert frames(cut, 1799, 8, 8) == [26938, 26946, 26954, 26962, 26970, 26978, 26986, 26994]


def test_other_frame_rates_give_the_same_times():
    slow = Reader(np.arange(15 * 60 * 25) / 25, 900.0)  # 25 a second; 8/30 s are 6.67 frames
    # second 2 is frame 50; times 2 - 32/30, ... : 23.33, 30, 36.67, 43.33, 50, 56.67, 63.33, 70
    assert frames(slow, 902, 8, 8) == [23, 30, 36, 43, 50, 56, 63, 70]
    uneven = Reader([0.0, 0.5, 1.9, 2.0, 3.0], 4.0)
    assert shown_at(uneven.timestamps, np.array([-1, 0.0, 0.49, 1.99, 2.0, 9])).tolist() == [
        *(0, 0, 0, 2, 3, 4)
    ]
    film = Reader(np.arange(30 * 1000) / 30, 1000.0)
    assert frames(film, 902, 4, 2, begins_at=0.0) == [27056, 27058, 27060, 27062]


def test_times_in_seconds():
    assert key_frame_times(2.0, 4, 2, 10.0) == pytest.approx([1.6, 1.8, 2.0, 2.2])
    assert key_frame_times(2.0, 3, 1, 1.0) == pytest.approx([1.0, 2.0, 3.0])


def test_a_second_that_is_not_in_the_video_is_named():
    short = Reader(np.arange(90) / 30, 3.0)
    with pytest.raises(VideoDecodeError, match=r"film\.mp4: has no second 903: .* lasts 3\.0 s"):
        frames(short, 903, 8, 8)
    with pytest.raises(VideoDecodeError, match="has no second 899"):
        frames(short, 899, 8, 8)
    with pytest.raises(ValueError, match="frame_interval must be at least 1"):
        KeyFrameClip(8, 0)
