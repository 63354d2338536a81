"""The contrastive loss of MoCo v3 (Chen et al. 2021, arXiv 2104.02057): no queue.

The candidates of a query are the keys of the other view of the whole batch; the key of the query's
own sample is the positive, all others are negatives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.losses.embeddings import check_temperature, full_precision


def moco_v3_loss(query: Tensor, keys: Tensor, positives: Tensor, *, tau: float) -> Tensor:
    """2 tau times the cross-entropy of ``query @ keys.T / tau``, mean over samples; a scalar.

    One direction: MoCo v3 adds up that of both views as the query. The factor 2 tau keeps the size
    of the gradient when tau changes (facebookresearch/moco-v3, moco/builder.py).

    Args:
        query: Predictions of the online branch, (N, D), l2-normalised.
        keys: Embeddings of the target branch of all ranks, (M, D), l2-normalised; no gradient flows
            into them.
        positives: Row of each query's own key in ``keys``, (N,), int64.
        tau: Temperature.

    Raises:
        ValueError: shapes that do not match, positives that are not rows of ``keys`` (values are
            checked on the CPU only: elsewhere that would synchronise host and device), or a
            temperature not above 0.
    """
    _check(query, keys, positives)
    check_temperature("tau", tau)
    with torch.autocast(query.device.type, enabled=False):
        logits = full_precision(query) @ full_precision(keys.detach()).T / tau  # (N, M)
        return 2 * tau * F.cross_entropy(logits, positives)


def _check(query: Tensor, keys: Tensor, positives: Tensor) -> None:
    if query.ndim != 2 or keys.ndim != 2 or query.shape[1] != keys.shape[1]:
        raise ValueError(
            "query and keys must be (N, D) and (M, D), "
            f"got {tuple(query.shape)} and {tuple(keys.shape)}"
        )
    if 0 in query.shape or len(keys) == 0:
        raise ValueError(
            f"there must be queries and keys, got {tuple(query.shape)} and {tuple(keys.shape)}"
        )
    if positives.shape != query.shape[:1] or positives.dtype != torch.int64:
        raise ValueError(
            f"positives must be ({len(query)},) of int64, "
            f"got {tuple(positives.shape)} of {positives.dtype}"
        )
    if positives.device.type == "cpu":
        wrong = positives[(positives < 0) | (positives >= len(keys))]
        if len(wrong):
            raise ValueError(
                f"positives must be rows of the {len(keys)} keys, from 0, got {wrong[0].item()}"
            )
