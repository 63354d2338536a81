"""Accuracies against known values."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from sce_video.evaluation import mean_class_accuracy, top_k_accuracy
from sce_video.evaluation.functional.accuracy import pair_accuracy, top_k_hits
from sce_video.evaluation.multi_view import check_alterations, frame_order

SCORES = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.1, 0.2, 0.7], [0.6, 0.1, 0.3]])


def test_top_k_against_known_values():
    labels = torch.tensor([1, 2, 0, 0])
    assert top_k_hits(SCORES, labels, 1).tolist() == [True, False, False, True]
    assert top_k_hits(SCORES, labels, 2).tolist() == [True, True, False, True]
    assert top_k_accuracy(SCORES, labels, (1, 2, 3, 5)) == {1: 0.5, 2: 0.75, 3: 1.0, 5: 1.0}


def test_ties_go_to_the_lower_class_and_minus_infinity_never_hits():
    scores = torch.zeros(3, 3)
    assert top_k_hits(scores, torch.tensor([0, 1, 2]), 2).tolist() == [True, True, False]
    scores[:, 0] = float("-inf")
    assert top_k_hits(scores, torch.tensor([0, 1, 2]), 3).tolist() == [False, True, True]


def test_mean_class_accuracy_weights_classes_equally():
    labels = torch.tensor([1, 1, 1, 0])  # class 1: one of three right, class 0: one of one
    assert mean_class_accuracy(SCORES, labels) == pytest.approx((1 / 3 + 1) / 2)
    assert mean_class_accuracy(SCORES, labels) != top_k_accuracy(SCORES, labels, (1,))[1]


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
    with pytest.raises(ValueError, match="alterations must be different ones of shuffled"):
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


def test_one_class_always_is_chance_however_many_samples():
    labels = torch.tensor([0] * 90 + [1] * 3)
    scores = torch.tensor([[1.0, 0.0]]).expand(93, 2)
    assert pair_accuracy(scores, labels, [(0, 1)]).item() == 0.5
    with pytest.raises(ValueError, match="class 2 of the pair"):
        pair_accuracy(torch.zeros(93, 3), labels, [(1, 2)])
