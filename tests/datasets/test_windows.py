"""Spans of windows, times in words, and cuts."""

import numpy as np
import pytest

from sce_video.datasets import open_reader
from sce_video.datasets.clip_sampling import (
    Windows,
    clips_of_span,
    window_spans,
)
from sce_video.inference.windows import find_cuts
from sce_video.utils.seconds import parse_seconds


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (12.0, [(0, 5), (2.5, 7.5), (5, 10), (7, 12)]),
        (10.0, [(0, 5), (2.5, 7.5), (5, 10)]),
        (3.0, [(0, 3)]),
        (5.0, [(0, 5)]),
    ],
)
def test_spans(duration, expected):
    np.testing.assert_allclose(window_spans(duration, Windows(5, 2.5)), expected)


def test_no_window_reaches_across_a_cut():
    spans = window_spans(12.0, Windows(5, 2.5), np.array([3.0, 11.9999999]))
    np.testing.assert_allclose(spans, [(0, 3), (3, 8), (5.5, 10.5), (7, 12)])


def test_clips_stay_inside_a_span():
    times = np.arange(100) / 10
    for clip_duration, count in ((None, 1), (2.0, 3), (9.0, 2)):
        clips = clips_of_span(
            times, 4.0, 7.0, clip_duration=clip_duration, num_frames=4, num_clips=count or 1
        )
        assert len(clips) == count
        assert min(c.frames.min() for c in clips) >= 40 and max(c.frames.max() for c in clips) < 70


def test_times():
    for text, seconds in (
        ("5s", 5), ("2.5", 2.5), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1:02:03.5", 3723.5)
    ):  # fmt: skip
        assert parse_seconds(text) == pytest.approx(seconds)
    for text in ("", "s", "-5", "5 parsecs", "1e9", "5;", "nan"):
        with pytest.raises(ValueError, match="not a time"):
            parse_seconds(text)


def test_wrong_windows():
    for values in ({"seconds": 0.0}, {"seconds": 5.0, "stride": float("nan")}, {"seconds": True}):
        with pytest.raises(ValueError, match="of windows must be"):
            Windows(**values)
    with pytest.raises(ValueError, match="more than 1000000"):
        window_spans(1e6, Windows(0.1))
    assert Windows.from_dict(Windows(5, 2.5).to_dict()) == Windows(5, 2.5)
    for values in ({"stride": 5.0}, {"seconds": "5"}, {"seconds": 5.0, "shots": 1}, [5.0]):
        with pytest.raises(ValueError, match="windows|seconds|shots"):
            Windows.from_dict(values)


def test_cuts(tmp_path):
    from helpers.tiny_encoder import moving_frames, write_lossless

    first, second = moving_frames(60, seed=1) // 4, 255 - moving_frames(60, seed=2) // 4
    path = write_lossless(tmp_path / "v.mp4", np.concatenate([first, second]))
    with open_reader(str(path)) as reader:
        assert find_cuts(reader).tolist() == pytest.approx([2.4])
