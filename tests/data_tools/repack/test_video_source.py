"""Reading of sources; schedules of constant rate, against loops and by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sce_video.data_tools.repack import video_source
from sce_video.data_tools.repack.video_source import make_schedule


@pytest.mark.parametrize("run", [1, 8, 100_000])
def test_the_sample_of_a_long_video_stays_small(run):
    frame_bytes = 1920 * 1080 * 3 // 2
    keep = video_source._choose(20_000, frame_bytes, run)
    kept = [number for number in range(20_000) if keep(number)]
    assert 0 < len(kept) * frame_bytes <= video_source.SAMPLE_BYTES
    if run > 1:  # whole runs, as far as they fit
        assert kept[: min(run, len(kept))] == list(range(min(run, len(kept))))


def schedule(times, duration, stated=(), tick=0.001):
    return make_schedule(np.asarray(times, float), duration, list(stated), tick)


def test_rounded_time_stamps_are_a_constant_rate():
    times = np.round(np.arange(500) / (30000 / 1001), 3)  # as Matroska has them
    made = schedule(times, times[-1] + 0.033)
    assert made.constant and made.rate == Fraction(30000, 1001)
    assert made.shown.tolist() == list(range(500))


def test_a_missing_frame_is_not_rounding_even_with_long_ticks():
    """In an AVI a tick is as long as a frame."""
    times = np.delete(np.arange(20) / 25, 7)
    made = schedule(times, 20 / 25, [Fraction(25)], tick=1 / 25)
    assert not made.constant and made.rate == 25
    assert made.shown.tolist() == [*range(7), 6, *range(7, 19)]


def test_a_long_last_frame_is_held():
    made = schedule(np.arange(10) / 10, 1.5, [Fraction(10)])
    assert made.rate == 10 and made.shown.tolist() == [*range(10)] + [9] * 5


def test_the_rate_makes_at_most_eight_times_the_frames():
    times = np.concatenate([np.arange(60) / 1000, 0.05 + np.arange(1, 40)])
    made = schedule(times, times[-1] + 1)
    assert 7.9 * len(times) <= len(made.shown) <= 8 * len(times)
    assert abs(len(made.shown) / made.rate - (times[-1] + 1)) <= 1 / made.rate
    assert len(set(range(99)) - set(made.shown.tolist())) > 50
    slow = schedule([0, 0.04, 40_000], 80_000)  # less than a frame in a thousand seconds
    assert 20 <= len(slow.shown) <= 24
    assert abs(len(slow.shown) / slow.rate - 80_000) <= 1 / slow.rate


def test_random_schedules_agree_with_a_loop():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = int(rng.integers(1, 30))
        gaps = rng.integers(5, 200, count)
        times = np.concatenate([[0], np.cumsum(gaps)[:-1]]) / 1000
        duration = float(times[-1] + gaps[-1] / 1000)
        made = schedule(times, duration, [Fraction(25)])
        frame = float(1 / made.rate)
        assert abs(len(made.shown) / made.rate - duration) <= frame + 1e-9
        slack = 0 if made.constant else min(0.001, 0.1 * frame)
        for number, shown in enumerate(made.shown):
            time = number * frame
            if made.constant:  # time stamps deviate by less than a tenth of a frame
                assert shown == number and abs(times[shown] - time) <= 0.1 * frame + 1e-3
            else:
                assert shown == max(i for i in range(count) if times[i] <= time + slack + 1e-9)
