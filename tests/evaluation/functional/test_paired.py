"""Paired tests: scipy's binomial test, all sign flips, level and power, Holm's correction."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from sce_video.evaluation.functional.paired import (
    holm,
    mcnemar_p_value,
    paired_differences,
    paired_p_value,
)


def test_accuracies_are_compared_by_mcnemars_exact_test():
    random = np.random.default_rng(0)
    for videos, shift in ((1, 0), (9, 0.3), (60, 0.1), (3000, 0.02)):
        a, b = random.random(videos) < 0.6, random.random(videos) < 0.6 + shift
        parts = paired_differences(a, b)
        assert parts.sum() == pytest.approx(b.mean() - a.mean())
        worse, better = int((a & ~b).sum()), int((b & ~a).sum())
        expected = binomtest(worse, worse + better).pvalue if worse + better else 1.0
        assert paired_p_value(parts) == pytest.approx(expected, rel=1e-9)
    for first, second in itertools.product(range(6), range(6)):
        expected = binomtest(first, first + second).pvalue if first + second else 1.0
        assert mcnemar_p_value(first, second) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_p_value(9000, 9400) == pytest.approx(binomtest(9000, 18400).pvalue, rel=1e-6)


def test_other_means_are_compared_by_flipping_signs():
    random = np.random.default_rng(1)
    a, b = random.random(10), random.random(10) + 0.2
    parts = paired_differences(a, b)
    flips = np.array(list(itertools.product((-1, 1), repeat=10))) @ parts
    exact = np.mean(np.abs(flips) >= abs(parts.sum()) - 1e-12)
    assert paired_p_value(parts) == pytest.approx(exact, abs=4 * np.sqrt(exact / 10_000))


def test_class_means_and_rows_of_one_video():
    a, b = np.array([1, 0, 0, 1, 1, 0]), np.array([1, 1, 1, 1, 0, 0])
    classes, videos = np.array([0, 0, 0, 0, 1, 1]), np.array(list("ccbbaa"))
    parts = paired_differences(a, b, videos, classes)  # videos a, b, c
    assert parts == pytest.approx([-1 / 4, 1 / 8, 1 / 8])
    class_mean = [np.mean([v[classes == c].mean() for c in (0, 1)]) for v in (a, b)]
    assert parts.sum() == pytest.approx(class_mean[1] - class_mean[0])


@pytest.mark.parametrize("seeds", [1, 3])
def test_level_under_the_null_and_power(seeds):
    random = np.random.default_rng(seeds)
    runs, videos = 400, 100

    def rejected(gain):
        count = 0
        for run in range(runs):
            ease = random.random(videos)  # what both models find easy
            a, b = (
                (random.random((seeds, videos)) < np.clip(ease + shift, 0, 1)).mean(axis=0)
                for shift in (0, gain)
            )
            p_value = paired_p_value(paired_differences(a, b), permutations=200, seed=run)
            count += p_value <= 0.05
        return count

    assert rejected(0.0) <= binom.ppf(1 - 1e-4, runs, 0.05)
    assert rejected(0.3) > 0.9 * runs


def test_holm_equals_its_definition():
    p_values = [0.04, 0.01, 0.03, 0.5]
    assert holm(p_values) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([0.02]) == [0.02] and holm([]) == []


@pytest.mark.parametrize(("a", "b"), [([], []), ([1, 0], [1])])
def test_invalid_input(a, b):
    with pytest.raises(ValueError, match="of one length"):
        paired_differences(a, b)
