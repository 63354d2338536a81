"""Nearest neighbours against a sort of all pairs."""

import numpy as np
import pytest
import torch

from sce_video.evaluation import nearest_neighbours
from sce_video.evaluation.neighbours import check_features


def brute_force(queries, bank, k, query_groups=None, bank_groups=None):
    q = queries.double().numpy()
    b = bank.double().numpy()
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    similar = q @ b.T
    if query_groups is not None:
        similar[query_groups.numpy()[:, None] == bank_groups.numpy()[None]] = -np.inf
    order = np.argsort(-similar, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similar, order, axis=1), order


@pytest.mark.parametrize(("block", "bank_block"), [(1024, 65536), (4, 7), (1, 1), (3, 50)])
def test_blocks_change_nothing(block, bank_block):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(11, 6, generator=generator)
    bank = torch.randn(50, 6, generator=generator)
    values, places = nearest_neighbours(queries, bank, 9, block=block, bank_block=bank_block)
    expected, order = brute_force(queries, bank, 9)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("bank_block", [65536, 5, 2])
def test_ties_go_to_the_lower_index(bank_block):
    # The bank holds each of three orthogonal directions many times: ties everywhere, exact in fp.
    bank = torch.eye(4)[torch.tensor([2, 0, 1, 0, 0, 2, 0, 1, 0, 0])]
    _, places = nearest_neighbours(torch.eye(4)[:3], bank, 4, bank_block=bank_block)
    assert places.tolist() == [[1, 3, 4, 6], [2, 7, 0, 1], [0, 5, 1, 2]]


def test_ties_within_the_neighbours_are_in_order_too():
    generator = torch.Generator().manual_seed(4)
    # A row of the bank picks one entry of the query: similarities are exact, with many ties.
    picked = torch.randint(0, 16, (4000,), generator=generator)
    for query in torch.randn(4, 16, generator=generator):
        best = query.topk(2).indices
        k = int(torch.isin(picked, best).sum())  # exactly the two best entries: no tie at the end
        for wanted in (3, k, k + 1, 3999):
            _, places = nearest_neighbours(query[None], torch.eye(16)[picked], wanted)
            _, order = brute_force(query[None], torch.eye(16)[picked], wanted)
            np.testing.assert_array_equal(places.numpy(), order)


def test_groups_leave_out_the_querys_own():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(20, 5, generator=generator)
    groups = torch.arange(20) // 4
    values, places = nearest_neighbours(
        features, features, 6, query_groups=groups, bank_groups=groups, block=3, bank_block=8
    )
    assert not (groups[places] == groups[:, None]).any()
    expected, order = brute_force(features, features, 6, groups, groups)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-6)


def test_ids_leave_out_the_item_itself_but_not_its_twin():
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    features[5] = features[0]
    ids = torch.arange(6)
    _, places = nearest_neighbours(features, features, 1, query_groups=ids, bank_groups=ids)
    assert places[0] == 5
    assert places[5] == 0


def test_too_few_allowed_rows_are_marked():
    groups = torch.tensor([0, 0, 1])
    values, _ = nearest_neighbours(
        torch.eye(3), torch.eye(3), 3, query_groups=groups, bank_groups=groups
    )
    assert torch.isneginf(values).sum(dim=1).tolist() == [2, 2, 1]


def test_bad_input_is_named():
    good = torch.ones(3, 4)
    with pytest.raises(ValueError, match="queries have 4 dimensions, the bank 5"):
        nearest_neighbours(good, torch.ones(3, 5), 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest_neighbours(good, good, 0)
    with pytest.raises(ValueError, match="go together"):
        nearest_neighbours(good, good, 1, query_groups=torch.zeros(3))
    with pytest.raises(ValueError, match=r"bank_groups must be \(3,\), got \(2,\)"):
        nearest_neighbours(good, good, 1, query_groups=torch.zeros(3), bank_groups=torch.zeros(2))
    bad = good.clone()
    bad[2, 1] = float("nan")
    with pytest.raises(ValueError, match=r"1 of 3 rows hold NaN.*row 2"):
        check_features(bad, "bank")
    with pytest.raises(ValueError, match="N, C >= 1"):
        check_features(torch.ones(0, 4), "bank")
