"""The BYOL loss (Grill et al. 2020, eq. 2): the squared distance of prediction and target."""

from __future__ import annotations

import torch
from torch import Tensor

from sce_video.models.losses.embeddings import check_same_shape, full_precision


def byol_loss(query: Tensor, key: Tensor) -> Tensor:
    """``|q - k|^2 = 2 - 2 q.k`` of unit vectors, the mean over samples: 0 to 4, a scalar tensor.

    One direction: BYOL adds up that of both views as the query.

    Args:
        query: Predictions of the online branch, (N, D), l2-normalised.
        key: Embeddings of the target branch, (N, D), l2-normalised; no gradient flows into it.

    Raises:
        ValueError: shapes that do not match, or no samples.
    """
    check_same_shape("query and key", query, key)
    with torch.autocast(query.device.type, enabled=False):
        return 2 - 2 * (full_precision(query) * full_precision(key.detach())).sum(dim=1).mean()
