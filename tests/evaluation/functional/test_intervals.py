"""Bootstrap intervals: scipy's, coverage of the truth, several rows of a video, invalid input."""

import numpy as np
import pytest
from scipy.stats import binom, bootstrap

from sce_video.evaluation.functional.statistics import bootstrap_intervals


def test_ends_are_those_of_scipy():
    random = np.random.default_rng(0)
    values = np.stack([random.random(150) < 0.7, random.normal(0.4, 0.2, 150)], axis=1)
    found = bootstrap_intervals(values, resamples=20_000)
    for column, ends in zip(values.T.astype(float), found, strict=True):
        scipy_ends = bootstrap(
            (column,), np.mean, n_resamples=20_000, method="percentile", rng=1
        ).confidence_interval
        # Ends of two sets of 20,000 draws differ by hundredths of the standard error; means of
        # zeros and ones have steps of 1/150.
        step = 1 / 150 if set(column) == {0, 1} else 0.1 * column.std() / np.sqrt(150)
        assert ends == pytest.approx(list(scipy_ends), abs=1.01 * step)


@pytest.mark.parametrize("clips", [1, 3])
def test_intervals_cover_the_truth_as_often_as_stated(clips):
    random = np.random.default_rng(clips)
    runs, videos, truth = 400, 80, 0.6
    units = np.repeat(np.arange(videos), clips)
    covered = alone = 0
    for run in range(runs):  # the clips of a video have one outcome
        hits = np.repeat(random.random(videos) < truth, clips)[:, None]
        low, high = bootstrap_intervals(hits, units, resamples=300, seed=run)[0]
        covered += low <= truth <= high
        if clips > 1:
            low, high = bootstrap_intervals(hits, resamples=300, seed=run)[0]
            alone += low <= truth <= high
    # 93 to 95 % is what the percentile method reaches with 80 videos.
    assert binom.ppf(1e-4, runs, 0.93) <= covered <= binom.ppf(1 - 1e-4, runs, 0.955)
    assert clips == 1 or alone < 0.8 * runs  # rows alone would claim too much


def test_class_means_equal_a_loop_over_the_same_draws():
    random = np.random.default_rng(3)
    labels, hits = random.integers(4, size=30), random.random((30, 2)) < 0.5
    units = np.arange(30) // 2
    found = bootstrap_intervals(hits, units, labels, resamples=50, seed=5)
    draws, means = np.random.default_rng(5), []
    for _ in range(50):
        rows = [r for unit in draws.integers(15, size=15) for r in (2 * unit, 2 * unit + 1)]
        drawn, right = labels[rows], hits[rows]
        means.append(np.mean([right[drawn == c].mean(axis=0) for c in set(drawn)], axis=0))
    assert found == pytest.approx(np.quantile(means, [0.025, 0.975], axis=0).T)


def test_one_video_has_no_interval_and_the_state_of_numpy_is_left_alone():
    before = np.random.get_state()[1].copy()
    assert bootstrap_intervals(np.ones((3, 1)), np.array(["a", "a", "a"])) is None
    assert bootstrap_intervals(np.ones((2, 1))).tolist() == [[1.0, 1.0]]
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((0, 1)),), "got shape"),
        ((np.ones(3),), "got shape"),
        ((np.array([[1.0], [np.nan]]),), "row 1"),
        ((np.ones((3, 1)), np.arange(2)), "units of shape"),
        ((np.ones((3, 1)), None, np.arange(2)), "classes of shape"),
    ],
)
def test_invalid_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_intervals(*arguments)
    for wrong in ({"confidence": 95}, {"resamples": 0}):
        with pytest.raises(ValueError, match=str(*wrong.values())):
            bootstrap_intervals(np.ones((2, 1)), **wrong)
