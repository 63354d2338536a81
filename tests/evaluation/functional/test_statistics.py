"""Accuracies, bootstrap intervals, paired tests (scipy's, all sign flips), Holm's correction."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, bootstrap, t, ttest_ind, ttest_rel

from sce_video.evaluation.alterations import check_alterations, frame_order
from sce_video.evaluation.functional.statistics import (
    PairedChange,
    bootstrap_intervals,
    holm,
    mcnemar_p_value,
    pair_accuracy,
    paired_change,
    paired_differences,
    paired_p_value,
    seeds_test,
    top_k_hits,
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


def test_seeds_that_shift_all_videos_alike_are_compared_by_welchs_test():
    random = np.random.default_rng(0)
    ease, runs = random.random(50), random.random(7)[:, None]
    a, b = ease + runs[:3], ease + runs[3:] + 0.2
    expected = ttest_ind(b[:, 0], a[:, 0], equal_var=False)
    found = seeds_test(a, b)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    change, error = b.mean() - a[:1].mean(), np.sqrt(runs[3:].var(ddof=1) * (1 + 1 / 4))
    for first, second, sign in ((a[:1], b, 1), (b, a[:1], -1)):  # one run: it spreads as the other
        found = seeds_test(first, second)
        assert found.p_value == pytest.approx(2 * t.sf(abs(change) / error, 3))
        ends = sign * change - t.ppf(0.975, 3) * error, sign * change + t.ppf(0.975, 3) * error
        assert found.interval == pytest.approx(ends)


def test_seeds_that_change_nothing_are_compared_by_students_paired_test():
    random = np.random.default_rng(0)
    once = random.random(40) < 0.5, random.random(40) < 0.7
    a, b = (np.tile(part.astype(float), (3, 1)) for part in once)
    expected = ttest_rel(b[0], a[0])
    found = seeds_test(a, b)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    # rows of one video, and classes of equal size that are right equally often
    rows = np.repeat(np.arange(40), 2)
    assert seeds_test(a[:, rows], b[:, rows], rows).p_value == pytest.approx(expected.pvalue)
    both = [np.concatenate([part, part], axis=1) for part in (a, b)]
    assert seeds_test(
        *both, np.tile(np.arange(40), 2), np.repeat([0, 1], 40)
    ).p_value == pytest.approx(expected.pvalue)
    assert seeds_test(a, a) == PairedChange(0.0, (0.0, 0.0), 1.0)
    nothing = np.zeros((3, 40))
    assert seeds_test(nothing, nothing + 1) == PairedChange(1.0, (1.0, 1.0), mcnemar_p_value(0, 40))


def test_holm_equals_its_definition():
    p_values = [0.04, 0.01, 0.03, 0.5]
    assert holm(p_values) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([0.02]) == [0.02] and holm([]) == []


def test_ends_are_those_of_scipy():
    random = np.random.default_rng(0)
    values = np.stack([random.random(150) < 0.7, random.normal(0.4, 0.2, 150)], axis=1)
    found = bootstrap_intervals(values, resamples=10_000)
    for column, ends in zip(values.T.astype(float), found, strict=True):
        scipy_ends = bootstrap(
            (column,), np.mean, n_resamples=10_000, method="percentile", rng=1
        ).confidence_interval
        # Ends of two sets of 10,000 draws differ by hundredths of the standard error; means of
        # zeros and ones have steps of 1/150.
        step = 1 / 150 if set(column) == {0, 1} else 0.1 * column.std() / np.sqrt(150)
        assert ends == pytest.approx(list(scipy_ends), abs=1.01 * step)


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


SCORES = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.1, 0.2, 0.7], [0.6, 0.1, 0.3]])


def test_ties_go_to_the_lower_class_and_minus_infinity_never_hits():
    scores = torch.zeros(3, 3)
    assert top_k_hits(scores, torch.tensor([0, 1, 2]), 2).tolist() == [True, True, False]
    scores[:, 0] = float("-inf")
    assert top_k_hits(scores, torch.tensor([0, 1, 2]), 3).tolist() == [False, True, True]


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="3 at row 2"):
        top_k_hits(SCORES, torch.tensor([0, 1, 3, 0]), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        top_k_hits(SCORES, torch.tensor([0, 1, 2, 0]), 0)
    with pytest.raises(ValueError, match="4 integers"):
        top_k_hits(SCORES, torch.tensor([0, 1, 2]), 1)


def test_reversed_and_still():
    assert frame_order("reversed", 4, seed=1).tolist() == [3, 2, 1, 0]
    assert frame_order("still", 5, seed=1).tolist() == [2] * 5
    assert frame_order("shuffled", 2, seed=9).tolist() == [1, 0]


def test_shuffled_orders_are_uniform_without_the_original():
    drawn = Counter(tuple(frame_order("shuffled", 3, seed).tolist()) for seed in range(2000))
    assert set(drawn) == set(permutations(range(3))) - {(0, 1, 2)}
    assert all(abs(count / 2000 - 0.2) < 0.04 for count in drawn.values())


def test_a_shuffled_order_is_of_seed_and_clip_alone():
    state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = [frame_order("shuffled", 8, 5, clip).tolist() for clip in range(4)]
    assert first == [frame_order("shuffled", 8, 5, clip).tolist() for clip in range(4)]
    assert len({tuple(order) for order in first}) == 4
    assert frame_order("shuffled", 8, 6).tolist() != first[0]
    assert np.array_equal(np.random.get_state()[1], state[0])
    assert torch.equal(torch.get_rng_state(), state[1])


@pytest.mark.parametrize("given", [(), ("mirrored",), ("still", "still")])
def test_bad_alterations(given):
    with pytest.raises(ValueError, match="clips of 1 frame have no order"):
        frame_order("still", 1, seed=0)
    with pytest.raises(ValueError, match="alterations must be distinct and among shuffled"):
        check_alterations(given)


def test_accuracy_within_pairs_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 90)
    scores = rng.normal(size=(90, 6)) + np.eye(6)[labels]
    scores[:5] = 0.0  # ties
    pairs = [(0, 3), (5, 1)]
    expected = []
    for pair in pairs:
        rights: dict[int, list[float]] = {label: [] for label in pair}
        for row, label in zip(scores, labels, strict=True):
            if label in pair:
                other = pair[1 - pair.index(label)]
                tie = row[label] == row[other]
                rights[label].append(0.5 if tie else float(row[label] > row[other]))
        expected.append(np.mean([np.mean(hits) for hits in rights.values()]))
    found = pair_accuracy(torch.from_numpy(scores), torch.from_numpy(labels), pairs)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_a_change_is_shown_only_if_the_interval_and_the_test_agree():
    """Resampling 20 videos hardly ever draws none of the four, but their test has p = 1/8."""
    random = np.random.default_rng(0)
    first = (random.random(20) < 0.5).astype(float)
    second, units = first.copy(), np.arange(20)
    second[np.flatnonzero(first == 0)[:4]] = 1.0
    found = paired_change(first, second, units)
    assert found.change == pytest.approx(0.2) and found.interval[0] > 0
    assert found.p_value == pytest.approx(0.125) and not found.shown
    second[np.flatnonzero(first == 0)[:7]] = 1.0
    back = paired_change(second, first, units)
    assert paired_change(first, second, units).shown and back.shown and back.change < 0
    assert paired_change(first, second, np.zeros(20)).interval is None
    assert not paired_change(first, second, np.zeros(20)).shown
