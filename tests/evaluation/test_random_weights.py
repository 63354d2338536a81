"""The comparison with random weights against loops, and how often its alarm is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from sce_video.evaluation.random_weights import (
    BETTER,
    NO_BETTER,
    UNDECIDED,
    compare_features,
    decision,
    is_comparison,
    sentences,
)
from sce_video.models.losses import effective_rank


def features(videos, *, classes=0, signal=0.0, scene=0.0, seed=0, size=24):
    """Two clips of each video: its class, its scene, and noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(videos) * classes // videos if classes else np.full(videos, -1)
    centres = np.random.default_rng(99).normal(size=(max(1, classes), size))
    found = rng.normal(size=(videos, 2, size)) + scene * rng.normal(size=(videos, 1, size))
    found += signal * centres[labels * (classes > 0)][:, None]
    return torch.from_numpy(found), torch.from_numpy(labels)


def knn_by_loop(matrix, labels):
    """Each clip is classified by the 20 nearest clips of other videos."""
    unit = normalize(matrix.float().flatten(0, 1), dim=1).double()
    hits = []
    for i, query in enumerate(unit):
        others = [j for j in range(len(unit)) if j // 2 != i // 2]
        nearest = sorted(others, key=lambda j: -float(query @ unit[j]))[:20]
        votes = dict.fromkeys(labels.tolist(), 0.0)
        for j in nearest:
            votes[int(labels[j // 2])] += float(torch.exp(query @ unit[j] / 0.07))
        hits.append(max(votes, key=votes.get) == int(labels[i // 2]))
    return np.mean(hits)


def test_scores_against_loops():
    trained, labels = features(24, classes=3, signal=0.5, scene=0.3)
    random, _ = features(24, classes=3, signal=0.1, seed=1)
    row = compare_features({"trained": trained, "random": random, "start": random}, labels)
    assert row["knn"] == pytest.approx(knn_by_loop(trained, labels))
    assert row["knn_random"] == row["knn_start"] == pytest.approx(knn_by_loop(random, labels))
    assert row["gain_random"] == pytest.approx(row["knn"] - row["knn_random"])
    assert row["low_random"] < row["gain_random"] < row["high_random"]
    assert row["rank"] == pytest.approx(float(effective_rank(trained.flatten(0, 1).float())))
    assert row["videos"] == 24 and "retrieval" not in row and is_comparison(row)
    assert row == compare_features({"trained": trained, "random": random, "start": random}, labels)

    row = compare_features({"trained": trained, "random": random}, torch.full((24,), -1))
    flat = trained.flatten(0, 1).float()
    unit = normalize(flat - flat.mean(dim=0), dim=1)
    near = (unit @ unit.T).fill_diagonal_(-2).argmax(dim=1)
    assert row["retrieval"] == pytest.approx(
        float((near // 2 == torch.arange(48) // 2).double().mean())
    )
    assert "knn" not in row


@pytest.mark.parametrize(
    ("videos", "classes", "trained", "expected"),
    [
        (256, 2, dict(signal=0.6), BETTER),
        (40, 4, dict(signal=0.8), BETTER),
        (256, 2, {}, NO_BETTER),
        (256, 0, dict(scene=1.0), BETTER),
        (256, 0, {}, NO_BETTER),
    ],
)
def test_the_decision_on_four_draws(videos, classes, trained, expected):
    """A network that learnt gives no alarm in any draw; one that did not, in most."""
    found = []
    for seed in range(4):
        own, labels = features(videos, classes=classes, seed=seed, **trained)
        other, _ = features(videos, classes=classes, seed=1000 + seed)
        found.append(decision(compare_features({"trained": own, "random": other}, labels)))
    assert found.count(expected) >= (4 if expected == BETTER else 3)
    assert expected == NO_BETTER or NO_BETTER not in found


def test_what_is_not_decided():
    """Few videos; classes that random weights tell apart; a higher rank; one clip of each video."""
    own, labels = features(12, classes=2)
    assert decision(compare_features({"trained": own, "random": own}, labels)) == UNDECIDED
    own, labels = features(64, classes=2, signal=5.0)
    row = compare_features({"trained": own, "random": own}, labels)
    assert row["knn_random"] == 1 and decision(row) == UNDECIDED
    own, labels = features(64, scene=3.0)
    row = compare_features({"trained": own, "random": own[..., :12]}, labels)
    equal = {**row, "low_random": -0.1, "gain_random": 0.0, "retrieval_random": 0.5}
    assert row["rank"] > 1.5 * row["rank_random"] and decision(equal) == UNDECIDED
    equal["rank_random"] = row["rank"]
    assert decision(equal) == NO_BETTER
    assert decision({**equal, "retrieval_random": 0.97}) == UNDECIDED
    gain = {**row, "gain_random": 0.04, "low_random": 0.01, "p_random": 0.125}
    gain |= {"retrieval_random": 0.5, "rank_random": row["rank"]}
    assert decision(gain) == UNDECIDED and decision({**gain, "p_random": 0.03}) == BETTER
    row = compare_features({"trained": own[:, :1], "random": own[:, :1]}, labels)
    assert decision(row) == UNDECIDED and "effective rank" in next(iter(sentences(row)))
