"""Two-dimensional maps of features."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from sce_video.pages import feature_map as projection


def blobs(n: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.eye(16)[:2]
    return torch.cat([c + 0.1 * torch.randn(n, 16, generator=generator) for c in centres])


@pytest.mark.parametrize("name", ["PCA", "t-SNE"])
def test_the_maps_separate_two_clusters(name, monkeypatch):
    if name == "t-SNE":
        pytest.importorskip("sklearn")
        if importlib.util.find_spec("umap") is not None:
            pytest.skip("UMAP is installed and takes the place of t-SNE")
    points = projection.projections(blobs())[name]
    assert points.shape == (40, 2) and points.dtype == np.float32
    centres = points.reshape(2, 20, 2).mean(axis=1)
    spread = np.abs(points.reshape(2, 20, 2) - centres[:, None]).max()
    assert np.linalg.norm(centres[0] - centres[1]) > 2 * spread


def test_many_features_have_the_principal_plane_only(monkeypatch):
    monkeypatch.setattr(projection, "MAX_NEIGHBOUR_MAP", 30)
    assert list(projection.projections(blobs())) == ["PCA"]


def test_few_features():
    assert list(projection.projections(blobs(2))) == ["PCA"]
    with pytest.raises(ValueError, match="N >= 2"):
        projection.projections(torch.ones(1, 4))


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_equal_features_have_no_map_of_neighbours(noise):
    """A collapsed network: scikit-learn's t-SNE crashes on features without any spread."""
    features = torch.ones(40, 8) + noise * torch.randn(40, 8)
    assert list(projection.projections(features)) == ["PCA"]
