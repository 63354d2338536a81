"""Recall against a numpy sort of all pairs, and the two ways of centring by hand."""

import numpy as np
import pytest
import torch

from sce_video.evaluation import centre, retrieval_hits, retrieval_recall


def brute_force(queries, bank, query_labels, bank_labels, k, centred):
    q, b = queries.double().numpy(), bank.double().numpy()
    if centred:
        q, b = q - q.mean(0), b - b.mean(0)
    hits = 0
    for row, label in zip(q, query_labels.numpy(), strict=True):
        similar = b @ row / np.linalg.norm(b, axis=1) / np.linalg.norm(row)
        order = np.argsort(-similar, kind="stable")[:k]
        hits += int(np.any(bank_labels.numpy()[order] == label))
    return hits / len(q)


@pytest.mark.parametrize("centred", [True, False])
def test_equals_brute_force(centred):
    generator = torch.Generator().manual_seed(0)
    # Far from the origin, the queries elsewhere than the bank: centring matters.
    queries = torch.randn(40, 8, generator=generator) + 2.0
    bank = torch.randn(90, 8, generator=generator) - 1.0
    query_labels = torch.randint(0, 12, (40,), generator=generator)
    bank_labels = torch.randint(0, 12, (90,), generator=generator)
    recall = retrieval_recall(
        queries, bank, query_labels, bank_labels, ks=(10, 1, 5), centred=centred, block=7
    )
    expected = {
        k: brute_force(queries, bank, query_labels, bank_labels, k, centred) for k in (10, 1, 5)
    }
    assert recall == pytest.approx(expected)
    assert 0 < recall[1] < recall[5] < recall[10] <= 1


def test_centred_and_plain_differ_as_drawn():
    # Bank around (10, 0): class 0 above, class 1 below. Queries around (0, 10): class 0 above.
    bank = torch.tensor([[10.0, 1.0], [10.0, -1.0]])
    queries = torch.tensor([[0.0, 11.0], [0.0, 9.0]])
    labels = torch.tensor([0, 1])
    assert retrieval_recall(queries, bank, labels, labels, ks=(1,), centred=True) == {1: 1.0}
    # Plain, both queries point up: the upper row of the bank is nearest to both.
    plain = retrieval_hits(queries, bank, labels, labels, ks=(1,), centred=False)
    assert plain[:, 0].tolist() == [True, False]


def test_a_rank_beyond_the_bank_looks_at_all_of_it():
    hits = retrieval_hits(
        torch.eye(2), torch.eye(2), torch.tensor([0, 5]), torch.tensor([0, 0]), ks=(1, 50)
    )
    assert hits.tolist() == [[True, True], [False, False]]


def test_the_mean_is_exact_far_from_zero():
    features = torch.full((1000, 2), 1000.0) + torch.randn(1000, 2) * 0.01
    assert centre(features).double().mean(dim=0).abs().max() < 1e-4


def test_bad_input_is_named():
    x, y = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match=r"ranks of 1 or more, got \(0, 1\)"):
        retrieval_hits(x, x, y, y, ks=(0, 1))
    with pytest.raises(ValueError, match="query_labels"):
        retrieval_hits(x, x, y - 1, y)
    with pytest.raises(ValueError, match="bank_labels must be 3 integers"):
        retrieval_hits(x, x, y, y[:2])
