"""Weighted kNN against a loop over queries in plain Python."""

import math

import pytest
import torch

from sce_video.evaluation import knn_scores, top_k_accuracy


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def votes(query, gallery, labels, classes, k, temperature):
    """exp(sim/t) of the k nearest, summed per class, divided by the sum of all."""
    near = sorted(((cosine(query, row), -i) for i, row in enumerate(gallery)), reverse=True)[:k]
    scores = [0.0] * classes
    for similarity, minus_i in near:
        scores[labels[-minus_i]] += math.exp(similarity / temperature)
    return [s / sum(scores) if s else -math.inf for s in scores]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (20, 0.5), (100, 0.1)])
def test_equals_a_loop(k, temperature):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(7, 4, generator=generator)
    gallery = torch.randn(30, 4, generator=generator)
    labels = torch.randint(0, 4, (30,), generator=generator)
    scores = knn_scores(
        queries, gallery, labels, num_classes=6, k=k, temperature=temperature, block=3
    )
    expected = torch.tensor(
        [
            votes(q, gallery.tolist(), labels.tolist(), 6, k, temperature)
            for q in queries.double().tolist()
        ]
    )
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)


def test_the_querys_group_does_not_vote():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    groups = torch.tensor([0, 0, 1, 1])
    scores = knn_scores(features, features, labels, k=1, query_groups=groups, gallery_groups=groups)
    assert scores.argmax(dim=1).tolist() == [1, 1, 0, 0]


def test_a_class_without_votes_is_never_a_hit():
    scores = knn_scores(torch.eye(2), torch.eye(2), torch.tensor([3, 4]), k=1)
    assert top_k_accuracy(scores, torch.tensor([0, 0]), (5,))[5] == 0.0


def test_invalid_input_raises():
    x, y = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        knn_scores(x, x, y, temperature=0)
    with pytest.raises(ValueError, match="-1 at row 1"):
        knn_scores(x, x, torch.tensor([0, -1, 2]))
    with pytest.raises(ValueError, match="below 2"):
        knn_scores(x, x, y, num_classes=2)
    same = torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="3 queries have no neighbour"):
        knn_scores(x, x, y, query_groups=same, gallery_groups=same)
