"""Low-shot SVMs: the draws, the features, and the classifier against a minimiser of its loss."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional.transfer import (
    all_points_ap,
    draw_image_shots,
    low_shot_svm,
    svm_features,
    svm_scores,
)


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """80 features of 6 dimensions, and 3 classes of which an image may show several."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 6))
    return features, features[:, :3] + rng.normal(0, 0.7, (80, 3)) > 0.4


def test_draws_are_shuffles_of_the_images_of_each_class(data):
    _, positives = data
    expected, generator = [], random.Random(0)
    for column in range(3):
        images = [i for i in range(80) if positives[i, column]]
        generator.shuffle(images)
        expected += images[:4]
    drawn = draw_image_shots(positives, 4, random.Random(0))
    assert drawn.tolist() == expected
    assert all(positives[drawn[4 * c : 4 * c + 4], c].all() for c in range(3))


def test_an_image_of_two_classes_is_drawn_twice_and_small_classes_whole():
    positives = np.array([[1, 1], [1, 0], [0, 0]], dtype=bool)
    assert sorted(draw_image_shots(positives, 5, random.Random(0)).tolist()) == [0, 0, 1]


def test_scores_minimise_the_weighted_squared_hinge(data):
    """``|w, b|^2 / 2 + C * sum of weight * max(0, 1 - y f)^2``, the bias penalised too."""
    features, positives = data
    x = torch.from_numpy(svm_features(features))
    x = torch.cat([x, torch.ones(80, 1)], dim=1)
    y = torch.from_numpy(np.where(positives[:, 0], 1.0, -1.0))
    cost = 0.5 * torch.where(y > 0, 2.0, 1.0)
    w = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        margins = torch.relu(1 - y * (x @ w))
        loss = w.square().sum() / 2 + (cost * margins.square()).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    scores = svm_scores(svm_features(features), positives, svm_features(features))
    np.testing.assert_allclose(scores[:, 0], (x @ w).detach().numpy(), atol=5e-3)


def test_full_is_one_training_set_and_k_several(data):
    features, positives = data
    results = low_shot_svm(features, positives, features, positives, (3, 9, None), draws=3)
    assert {k: len(v) for k, v in results.items()} == {3: 3, 9: 3, None: 1}
    assert len(set(results[9])) == 3  # every draw is another one
    scores = svm_scores(svm_features(features), positives, svm_features(features))
    expected = np.mean([all_points_ap(scores[:, c], positives[:, c]) for c in range(3)])
    assert results[None] == [pytest.approx(expected)]
    assert np.mean(results[3]) < np.mean(results[9]) < results[None][0]
    alone = low_shot_svm(features, positives, features, positives, (9,), draws=3)
    assert alone[9] == results[9]


def test_a_class_without_images_is_named(data):
    features, positives = data
    positives = positives.copy()
    positives[:, 1] = False
    with pytest.raises(ValueError, match="class 1 has no positive training image"):
        svm_scores(features, positives, features)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        draw_image_shots(positives, 0, random.Random(0))
