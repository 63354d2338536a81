"""Where the features lie: coordinates in the plane, and nearest neighbours, in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from sce_video.evaluation.functional.neighbours import nearest_neighbours
from sce_video.visualization.projection import MAX_NEIGHBOUR_MAP, projections

PCA = "PCA"
_ROWS = 8192  # of a block


def plane(features: np.ndarray) -> tuple[str, np.ndarray]:
    """The name of the map and coordinates (N, 2) float32.

    UMAP or t-SNE where they are installed and the videos are few, see
    :func:`~sce_video.visualization.projection.projections`; else the principal plane, computed in
    blocks, so that memory does not grow with N.
    """
    if len(features) == 1:
        return PCA, np.zeros((1, 2), dtype=np.float32)
    if len(features) > MAX_NEIGHBOUR_MAP:
        return PCA, principal_plane_in_blocks(features)
    found = projections(torch.from_numpy(np.array(features)))
    name = next((name for name in found if name != PCA), PCA)
    return name, found[name]


def principal_plane_in_blocks(features: np.ndarray, rows: int = _ROWS) -> np.ndarray:
    """Coordinates of l2-normalised features on their first two principal components.

    As :func:`~sce_video.visualization.embeddings.principal_plane`, from the covariance.

    Args:
        features: (N, D), N >= 2.
        rows: Rows held in float64 at a time.

    Returns:
        (N, 2) float32.
    """
    size = features.shape[1]
    total, products = np.zeros(size), np.zeros((size, size))
    for block in _blocks(features, rows):
        total += block.sum(axis=0)
        products += block.T @ block
    mean = total / len(features)
    _, directions = np.linalg.eigh(products / len(features) - np.outer(mean, mean))
    axes = directions[:, ::-1][:, :2]
    axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0)
    axes = axes * np.where(largest < 0, -1.0, 1.0)
    parts = [((block - mean) @ axes).astype(np.float32) for block in _blocks(features, rows)]
    return np.concatenate(parts)


def _blocks(features: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yield l2-normalised rows in float64."""
    for start in range(0, len(features), rows):
        block = np.asarray(features[start : start + rows], dtype=np.float64)
        yield block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)


def neighbours(features: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest other videos of every video.

    Args:
        features: (N, D).
        k: Number of neighbours; at most N - 1 are returned.

    Returns:
        Rows (N, k') int64 and distances (N, k') float32, 1 - cosine, ascending.
    """
    k = min(k, len(features) - 1)
    if k < 1:
        return np.zeros((len(features), 0), np.int64), np.zeros((len(features), 0), np.float32)
    matrix, own = torch.from_numpy(features), torch.arange(len(features))
    similar, rows = nearest_neighbours(matrix, matrix, k, query_groups=own, gallery_groups=own)
    return rows.numpy(), (1 - similar.clamp(-1, 1)).numpy()
