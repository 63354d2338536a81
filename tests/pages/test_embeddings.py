"""The principal plane against numpy, and the table of neighbours."""

import numpy as np
import pytest
import torch

from sce_video.evaluation import Rows
from sce_video.pages.neighbour_rows import neighbour_table, principal_plane


def test_the_plane_is_spanned_by_the_eigenvectors_of_the_covariance():
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    points, fraction = principal_plane(features)
    x = features.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(fraction.numpy(), values[::-1][:2] / values.sum(), rtol=1e-6)
    expected = (x - x.mean(0)) @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(points.numpy()), np.abs(expected), atol=1e-9)
    flipped, _ = principal_plane(features[torch.randperm(30)])
    np.testing.assert_allclose(flipped.abs().sum(0).numpy(), points.abs().sum(0).numpy())
    with pytest.raises(ValueError, match="N >= 2"):
        principal_plane(torch.ones(1, 4))
    assert torch.isfinite(principal_plane(torch.ones(4, 1))[0]).all()


def test_neighbours_by_hand():
    features = Rows(
        torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]]),
        torch.tensor([0, 0, 1]),
        torch.arange(3),
        ["a", "b", "c"],
    )
    rows = neighbour_table(features, k=1)
    assert [(r["query"], r["path"], r["label"]) for r in rows] == [
        ("a", "b", 0),
        ("b", "a", 0),
        ("c", "b", 0),
    ]
    assert rows[0]["similarity"] == pytest.approx(2 / np.hypot(2, 0.2))
    against = neighbour_table(features, features.subset(torch.tensor([2, 0])), k=2)
    assert [(r["query"], r["rank"], r["path"]) for r in against[:2]] == [
        ("a", 1, "a"),
        ("a", 2, "c"),
    ]
    assert len(neighbour_table(features, k=10)) == 6  # the video itself is never listed
