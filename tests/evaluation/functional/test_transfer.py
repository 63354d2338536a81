"""Many-shot logistic regression against torch's minimiser of the same objective."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional.linear_probe import fit_logistic
from sce_video.evaluation.functional.transfer import (
    Labelled,
    all_points_ap,
    draw_image_shots,
    eleven_point_ap,
    low_shot_svm,
    many_shot,
    random_holdout,
    svm_features,
    svm_scores,
)


def blobs(count: int, classes: int, seed: int, spread: float = 1.6) -> Labelled:
    """Points around the corners of a simplex, overlapping."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = np.eye(classes, 6)[labels] + rng.normal(0, spread / 2, (count, 6))
    return Labelled(features.astype(np.float32), labels)


def softmax_scores(fit: Labelled, x: np.ndarray, c: float, classes: int) -> np.ndarray:
    """Logits that minimise ``C * sum of cross-entropies + |W|^2 / 2``, by torch."""
    features = torch.from_numpy(fit.features).double()
    weight, bias = fit_logistic(
        features, torch.from_numpy(fit.labels), classes, 1 / (c * len(fit.labels))
    )
    return (torch.from_numpy(x).double() @ weight + bias).numpy()


def accuracy(fit: Labelled, part: Labelled, c: float, classes: int) -> float:
    scores = softmax_scores(fit, part.features, c, classes)
    return float((scores.argmax(axis=1) == part.labels).mean())


@pytest.mark.parametrize("classes", [2, 4])
def test_choice_and_score_equal_those_of_torch(classes):
    """With few iterations needed, both reach the one minimum of the objective."""
    train, val, test = (blobs(n, classes, seed) for seed, n in enumerate((90, 60, 80)))
    grid = (100.0, 1.0, 0.01, 0.0001)
    result = many_shot(train, val, test, "top1", grid, max_iter=1000)
    expected = {c: accuracy(train, val, c, classes) for c in grid}
    assert result.validation == pytest.approx(expected)
    assert len(set(expected.values())) > 1
    assert result.c == max(grid, key=lambda c: expected[c])
    both = Labelled(*(np.concatenate(pair) for pair in zip(train, val, strict=True)))
    assert result.score == pytest.approx(accuracy(both, test, result.c, classes))


def test_the_holdout_is_numpys_shuffle_with_seed_0():
    """The rule of ssl-transfer, with the global generator that it seeds."""
    before = np.random.get_state()
    mask = random_holdout(50)
    assert np.array_equal(before[1], np.random.get_state()[1])
    np.random.seed(0)
    indices = list(range(50))
    np.random.shuffle(indices)
    assert sorted(indices[:10]) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(metric="map"), "metric must be one of top1, mean_class, map11, got 'map'"),
        (dict(grid=()), r"the grid of C must hold positive numbers, got \(\)"),
        (dict(metric="map11"), r"train: map11 needs labels \(N, C\), got \(20,\)"),
        (
            dict(test=Labelled(np.full((3, 6), np.nan), np.zeros(3, int))),
            "test: some features are not finite",
        ),
        (
            dict(val=Labelled(np.zeros((3, 6)), np.zeros(2, int))),
            r"validation: features \(3, 6\) and labels \(2,\)",
        ),
        (
            dict(train=Labelled(np.zeros((3, 6)), np.zeros(3, int))),
            "all training images are of one class",
        ),
    ],
)
def test_bad_input(change, message):
    parts = dict.fromkeys(("train", "val", "test"), blobs(20, 3, 0))
    with pytest.raises(ValueError, match=message):
        many_shot(**{**parts, **change})


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """80 features of 6 dimensions, and 3 classes of which an image may show several."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 6))
    return features, features[:, :3] + rng.normal(0, 0.7, (80, 3)) > 0.4


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


# Ranked: negative, positive, positive, negative, positive, negative.
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
POSITIVES = np.array([0, 1, 1, 0, 1, 0], dtype=bool)


def sort_loop(scores, positives):
    """Precision and recall image by image, all thresholds one after the other."""
    found, points = 0, []
    for rank, index in enumerate(sorted(range(len(scores)), key=lambda i: -scores[i]), start=1):
        found += int(positives[index])
        points.append((found / positives.sum(), found / rank))
    return points


@pytest.mark.parametrize("seed", range(2))
def test_both_equal_loops_over_the_definitions(seed):
    rng = np.random.default_rng(seed)
    scores, positives = rng.normal(size=60), rng.random(60) < 0.3
    points = sort_loop(scores, positives)
    # 17, 18, ... positives: no recall lies on a tenth but 0 and 1, where rounding would decide.
    eleven = [max(p for r, p in points if r >= i / 10) for i in range(1, 11)]
    # At recall 0 scikit-learn's curve, which is ssl-transfer's, has the precision 1.
    assert eleven_point_ap(scores, positives) == pytest.approx(np.mean([1.0, *eleven]))
    area, before = 0.0, 0.0
    for recall in sorted({r for r, _ in points}):
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    assert all_points_ap(scores, positives) == pytest.approx(area)
