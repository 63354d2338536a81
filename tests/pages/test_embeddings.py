"""The principal plane against numpy, the colours of the plot, the table of neighbours."""

import cv2
import numpy as np
import pytest
import torch

from sce_video.evaluation import Rows
from sce_video.pages.neighbour_rows import draw_embeddings, neighbour_table, principal_plane


def blobs(per_class=15, classes=3):
    centres = 3 * torch.eye(classes, 6)
    labels = torch.arange(classes).repeat_interleave(per_class)
    noise = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0))
    paths = [f"{i}.mp4" for i in range(len(labels))]
    return Rows(centres[labels] + 0.4 * noise, labels, torch.arange(len(labels)), paths)


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


def test_every_class_is_drawn_in_its_colour(tmp_path):
    path = tmp_path / "deep" / "image.png"
    draw_embeddings(blobs(), path, class_names=("walk", "run"))
    image = cv2.imread(str(path))[..., ::-1].astype(int)
    assert image.shape[0] > 400
    for colour in ((31, 119, 180), (255, 127, 14), (44, 160, 44)):  # blue, orange, green
        near = (np.abs(image - np.array(colour)).sum(axis=2) < 120).sum()
        assert near > 300, colour


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
