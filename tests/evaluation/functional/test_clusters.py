"""Clusters, approximate neighbours against all pairs, and rows that are far from each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional import clusters
from sce_video.evaluation.functional.clusters import (
    as_bytes,
    assign,
    k_means,
    nearest_in_cells,
    neighbour_graph,
    unit_rows,
)


@pytest.fixture(scope="module")
def blobs() -> tuple[torch.Tensor, np.ndarray]:
    """2000 unit vectors around 40 centres, and the number of the centre of each."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 40, 2000)
    x = rng.normal(size=(40, 24))[label] + 0.2 * rng.normal(size=(2000, 24))
    return unit_rows(torch.from_numpy(x)), label


def test_k_means_finds_blobs_largest_first(blobs):
    x, label = blobs
    chosen = torch.from_numpy(np.flatnonzero(np.isin(label, [0, 1, 2])))[:250]
    own = label[chosen.numpy()]
    cluster = assign(x[chosen], k_means(x[chosen], 3, seed=1))[0].numpy()
    assert len({(int(c), int(b)) for c, b in zip(cluster, own, strict=True)}) == 3
    assert sorted(np.bincount(cluster), reverse=True) == np.bincount(cluster).tolist()
    with pytest.raises(ValueError, match="must be 1 to 2000"):
        k_means(x, 2001)


def test_neighbours_in_cells_against_all_pairs(blobs, monkeypatch):
    x, _ = blobs
    similar = (x @ x.T).numpy()
    np.fill_diagonal(similar, -np.inf)
    want = np.argsort(-similar, axis=1)[:, :5]
    monkeypatch.setattr(clusters, "EXACT_ROWS", 300)
    monkeypatch.setattr(clusters, "_ROWS_PER_CELL", 100)  # 20 cells, of which 8 are searched
    cosines, rows = neighbour_graph(x, 5)
    same = [len(set(a) & set(b)) for a, b in zip(rows.tolist(), want.tolist(), strict=True)]
    assert np.mean(same) > 0.95 * 5
    at = rows.numpy()
    np.testing.assert_allclose(cosines, np.take_along_axis(similar, at, axis=1), atol=1e-5)
    exact = neighbour_graph(x[:300], 5)[1].numpy()
    assert (exact == np.argsort(-similar[:300, :300], axis=1)[:, :5]).mean() > 0.999


def test_rows_of_the_own_owner_are_left_out(blobs):
    x = blobs[0][:60]
    owners = torch.arange(60) // 20
    similar, rows = nearest_in_cells(x, x, 50, owners, owners, probes=99)
    answered = similar > -torch.inf
    assert answered.sum(dim=1).tolist() == [40] * 60
    assert not (owners[rows] == owners[:, None])[answered].any()


def test_bytes_are_compared_exactly_with_and_without_onednn(blobs, monkeypatch):
    x, _ = blobs
    some = as_bytes(x)
    units = some.numpy().astype(np.int64)
    similar = units @ units.T
    owners = torch.from_numpy(np.random.default_rng(1).integers(0, 300, 2000))
    similar[owners.numpy()[:, None] == owners.numpy()] = -(2**40)
    want = -np.sort(-similar, axis=1)[:, :9] / 127**2
    for fast in (True, False):
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda fast=fast: fast)
        cosines, rows = nearest_in_cells(some, some, 9, owners, owners, cells=7, probes=7)
        np.testing.assert_allclose(cosines, want, rtol=1e-6)
        assert (owners[rows] != owners[:, None]).all()
