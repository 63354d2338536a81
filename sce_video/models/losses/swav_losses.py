"""The loss of SwAV (Caron et al. 2020): swapped prediction of balanced cluster assignments.

Scores ``s`` (B, K) are the similarities of embeddings and prototypes. The codes of a view assign
its samples to the prototypes, under the constraint that all prototypes get equal shares of the
batch. The loss predicts the codes of a view from the scores of the other views::

    codes = argmax over {Q >= 0: rows sum to 1, columns to B/K} of <Q, s> + epsilon * H(Q)  (eq. 3)
    loss  = - mean over assigned views i, other views v, samples of
              sum_c codes_ic log softmax_c(s_v / tau)                                    (eq. 1, 2)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.dist import all_reduce
from torch import Tensor

from sce_video.models.losses.siamese import check_temperature, full_precision


@torch.no_grad()
def sinkhorn(scores: Tensor, *, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Compute the codes (B, K) of a batch, soft assignments that use all prototypes equally.

    The iterations follow facebookresearch/swav, ``main_swav.py: distributed_sinkhorn``.
    ``exp(scores / epsilon)`` is divided by the sum for each prototype over the samples of **all
    ranks**, then by the sum for each sample over the prototypes, ``iterations`` times. The factors
    in the authors' code (the total, 1/K, 1/B and B) cancel, because each iteration ends with the
    sums over prototypes. All computations use logarithms, so finite scores do not overflow, and no
    sum is 0.

    Args:
        scores: (B, K) on this rank. B may differ between ranks.
        epsilon: Weight of the entropy. With smaller values, codes are closer to one-hot.
        iterations: Number of iterations.

    Returns:
        Codes in at least fp32 without gradient. Rows sum to 1.

    Raises:
        ValueError: If the shape or a number is not valid.
    """
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores must be (B, K) with B, K >= 1, got {tuple(scores.shape)}")
    check_sinkhorn(epsilon, iterations)
    scores = full_precision(scores)
    # Subtract the maximum over all ranks, so that exp() does not overflow. The same shift on all
    # ranks has no effect on the result.
    greatest = scores.max()
    all_reduce(greatest, op="max")
    log_codes = (scores - greatest) / epsilon
    for _ in range(iterations):
        # Normalise each prototype over the samples of all ranks, using a log-sum-exp (1, K).
        greatest = log_codes.max(dim=0, keepdim=True).values
        all_reduce(greatest, op="max")
        total = (log_codes - greatest).exp().sum(dim=0, keepdim=True)
        all_reduce(total, op="sum")
        log_codes = log_codes - (greatest + total.log())
        log_codes = log_codes - log_codes.logsumexp(dim=1, keepdim=True)
    return log_codes.exp()


def swav_loss(scores: Sequence[Tensor], codes: Sequence[Tensor | None], *, tau: float) -> Tensor:
    """Compute the cross-entropy of the assigned views' codes and the other views' predictions.

    Args:
        scores: Similarities (B, K) of embeddings and prototypes for V views, both l2-normalised.
        codes: For each view, the codes (B, K) that :func:`sinkhorn` has computed, or None if the
            view only predicts. Codes receive no gradient.
        tau: Temperature of the predictions, ``softmax(scores / tau)``.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: If shapes do not match, no view is assigned, or the temperature is not above 0.
    """
    if len(scores) < 2 or len(codes) != len(scores):
        needed = "scores and codes need an entry for each of two or more views"
        raise ValueError(f"{needed}, got {len(scores)} and {len(codes)}")
    if all(code is None for code in codes):
        raise ValueError("all codes are None, but at least one view must be assigned")
    shapes = [tuple(x.shape) for x in [*scores, *codes] if x is not None]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2 or 0 in shapes[0]:
        raise ValueError(f"scores and codes must be (B, K) of the same shape, got {shapes}")
    check_temperature("tau", tau)
    # Computing this in fp32 costs little, because no matrix product follows.
    with torch.autocast(scores[0].device.type, enabled=False):
        log_p = [torch.log_softmax(full_precision(score) / tau, dim=1) for score in scores]
        costs = [
            -(full_precision(code.detach()) * log_p[view]).sum(dim=1).mean()
            for assigned, code in enumerate(codes)
            if code is not None
            for view in range(len(scores))
            if view != assigned
        ]
        return torch.stack(costs).mean()


def check_sinkhorn(epsilon: float, iterations: int = 3) -> None:
    """Check the settings of :func:`sinkhorn`.

    Raises:
        ValueError: If epsilon is not above 0, or iterations is below 1.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon must be above 0, got {epsilon}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
