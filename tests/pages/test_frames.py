from __future__ import annotations

import numpy as np
import pytest
from helpers.pages import open_uri, strip_frames

from sce_video.pages.frames import Quality, fitting, make_strip

BEST = Quality(200, 95, 99)


def grey(*values: int, height: int = 20, width: int = 30) -> list[np.ndarray]:
    return [np.full((height, width, 3), value, np.uint8) for value in values]


def noise(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 64, 64, 3), np.uint8))


def test_a_strip_holds_the_frames_in_order():
    strip = make_strip(grey(0, 100, 200), 0.6, BEST)
    assert (strip.count, strip.height, strip.width, strip.seconds) == (3, 20, 30, 0.6)
    means = [frame.mean() for frame in strip_frames(strip.uri, 3)]
    assert means == pytest.approx([0, 100, 200], abs=4)
    assert strip.positions == ["0%", "50%", "100%"] and strip.middle == "50%"


def test_frames_are_left_out_and_reduced_but_never_enlarged():
    strip = make_strip(grey(*range(0, 200, 20)), 2.0, Quality(10, 90, 4))
    assert (strip.count, strip.height, strip.width) == (4, 10, 15)
    means = [frame.mean() for frame in strip_frames(strip.uri, 4)]
    assert means == pytest.approx([0, 60, 120, 180], abs=4)  # first, two between, last
    assert make_strip(grey(1), 0.0, BEST).height == 20


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, 60), (1.0, 250), (60.0, 400)])
def test_frames_are_played_in_time_but_never_too_fast_or_slow(seconds, shown):
    assert make_strip(grey(1, 2, 3, 4), seconds, BEST).seconds == pytest.approx(shown * 4 / 1000)
    image = open_uri(make_strip(grey(0, 80, 160, 240), seconds, BEST, animated=True).uri)
    durations, means = [], []
    for number in range(image.n_frames):
        image.seek(number)
        image.load()
        durations.append(image.info["duration"])
        means.append(np.asarray(image.convert("RGB")).mean())
    assert durations == [shown] * 4
    assert means == pytest.approx([0, 80, 160, 240], abs=4)


def test_the_best_quality_within_the_budget_is_taken():
    clips = [noise(4, seed) for seed in range(3)]
    levels = (Quality(64, 90, 4), Quality(32, 60, 4), Quality(16, 30, 2))
    sizes = [sum(len(make_strip(c, 1.0, q).uri) for c in clips) for q in levels]
    for budget, level in ((sizes[0], 0), (sizes[0] - 1, 1), (sizes[1] - 1, 2)):
        strips = fitting(clips, lambda c, q: make_strip(c, 1.0, q), levels, budget)
        assert sum(len(strip.uri) for strip in strips) == sizes[level]
    # Beyond the last quality the last clips are left out.
    strips = fitting(clips, lambda c, q: make_strip(c, 1.0, q), levels[:1], sizes[0] - 1)
    assert [bool(strip.uri) for strip in strips] == [True, True, False]
