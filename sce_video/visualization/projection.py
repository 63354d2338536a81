"""Two-dimensional maps of features."""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.visualization.embeddings import principal_plane

#: Features above which only the principal plane is computed: t-SNE and UMAP take minutes.
MAX_NEIGHBOUR_MAP = 3000
#: Dimensions kept before t-SNE and UMAP.
_COMPONENTS = 50
#: Coordinates of unit vectors below this are errors of rounding.
_ROUNDING = 1e-5


def projections(features: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """Coordinates of l2-normalised features in the plane, by the method's name.

    ``PCA`` always; ``UMAP`` where umap-learn is installed, else ``t-SNE`` where scikit-learn is,
    both for 10 to :data:`MAX_NEIGHBOUR_MAP` features that are not all equal.

    Args:
        features: (N, C), N >= 2.
        seed: Of UMAP and t-SNE.

    Returns:
        Arrays (N, 2) float32.

    Raises:
        ValueError: fewer than two features.
    """
    plane, _ = principal_plane(features)
    found = {"PCA": plane.numpy().astype(np.float32)}
    if 10 <= len(features) <= MAX_NEIGHBOUR_MAP:
        leading = _leading_components(features)
        # Of equal features scikit-learn's t-SNE divides by zero and ends the process.
        if np.abs(leading).max() > _ROUNDING:
            found |= _neighbour_map(leading, seed)
    return found


def _leading_components(features: Tensor) -> np.ndarray:
    x = F.normalize(features.double(), dim=1)
    x = x - x.mean(dim=0)
    _, _, directions = torch.linalg.svd(x, full_matrices=False)
    return (x @ directions[:_COMPONENTS].T).float().numpy()


def _neighbour_map(x: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("umap") is not None:
        import umap

        reducer = umap.UMAP(n_neighbors=min(15, len(x) - 1), random_state=seed)
        return {"UMAP": reducer.fit_transform(x).astype(np.float32)}
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(x) - 1) / 3)
        return {"t-SNE": TSNE(perplexity=perplexity, random_state=seed).fit_transform(x)}
    return {}
