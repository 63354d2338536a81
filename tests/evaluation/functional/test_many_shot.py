"""Many-shot logistic regression against torch's minimiser of the same objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional import transfer as module
from sce_video.evaluation.functional.linear_probe import fit_logistic
from sce_video.evaluation.functional.transfer import (
    Labelled,
    eleven_point_ap,
    many_shot,
    random_holdout,
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


def test_two_classes_are_penalised_as_in_a_multinomial_model():
    """A weight vector for each of two classes, both penalised: scikit-learn's binary one at 2 C."""
    train, test = blobs(60, 2, 0), blobs(30, 2, 1)
    classifier = module.logistic_regression(1000)
    fitted = module._fit(classifier, 0.05, train.features.astype(float), train.labels)
    scores = softmax_scores(train, test.features, 0.05, 2)
    ours = fitted.decision_function(test.features)
    np.testing.assert_allclose(ours, scores[:, 1] - scores[:, 0], atol=2e-3)
    other = classifier.set_params(C=0.05).fit(train.features.astype(float), train.labels)
    assert np.abs(other.decision_function(test.features) - ours).max() > 0.02


def test_a_class_that_is_not_in_validation_does_not_count():
    train = blobs(60, 3, 0, spread=0.2)
    keep = train.labels != 2
    val = Labelled(train.features[keep], train.labels[keep])
    result = many_shot(train, val, train, "mean_class", (10.0, 1.0))
    assert result.validation == {10.0: 1.0, 1.0: 1.0}
    assert result.c == 10.0  # of equal scores the first counts


def test_a_class_that_is_in_validation_only_is_fitted_in_the_end():
    everything = blobs(90, 3, 0, spread=0.2)
    keep = everything.labels != 2
    train = Labelled(everything.features[keep], everything.labels[keep])
    result = many_shot(train, everything, everything, "top1", (10.0, 1.0))
    assert result.score == 1.0 and max(result.validation.values()) < 1.0


def test_map_is_a_binary_classifier_for_each_class():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 5)).astype(np.float32)
    labels = features[:, :3] + rng.normal(0, 0.8, (80, 3)) > 0.3
    train, test = (Labelled(features[part], labels[part]) for part in (slice(40), slice(40, 80)))
    result = many_shot(train, train, test, "map11", (0.1,), max_iter=1000)
    both = Labelled(np.concatenate([train.features] * 2), np.concatenate([train.labels] * 2))
    values = []
    for column in range(3):
        fit = Labelled(both.features, both.labels[:, column].astype(int))
        scores = softmax_scores(fit, test.features, 0.1, 2)
        values.append(eleven_point_ap(scores[:, 1] - scores[:, 0], test.labels[:, column]))
    assert result.score == pytest.approx(np.mean(values), abs=1e-6)
    assert result.validation == {} and result.c == 0.1


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
        (dict(grid=(1.0, 0.0)), "must hold positive numbers"),
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
