"""Accuracies against known values."""

import pytest
import torch

from sce_video.evaluation import mean_class_accuracy, top_k_accuracy
from sce_video.evaluation.functional.accuracy import top_k_hits

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
