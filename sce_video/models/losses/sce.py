"""The SCE loss of the paper: soft contrastive learning with a queue (eq. 3, 7, 8, 9, 10).

For a query ``z1_i``, its key ``z2_i`` (the positive) and the keys ``q_k`` of the queue (the
negatives; with a queue the other keys of the batch are not negatives, appendix A)::

    s2_ik = softmax_k(z2_i . q_k / tau_m)                      relations, negatives only  (eq. 3)
    w2_ik = lambda * 1[k is the positive] + (1-lambda) * s2_ik target                     (eq. 7)
    p1_ik = softmax over positive and negatives of z1_i . z2_k / tau                      (eq. 8)
    loss  = - mean_i sum_k w2_ik log p1_ik                                                (eq. 9)

Positive and negative logits are never concatenated: with ``log p1 = logit - logsumexp`` every
term needs only one (N, K) matrix of logits per branch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.models.losses.embeddings import check_shapes, full_precision


class SCETerms(NamedTuple):
    """The loss and its components, all scalar tensors; only ``loss`` has a gradient."""

    loss: Tensor
    infonce: Tensor
    """L_InfoNCE with the queue as negatives (eq. 1)."""
    ressl: Tensor
    """L_ReSSL (eq. 4): cross-entropy of the relations, over the negatives only."""
    ceil: Tensor
    """L_Ceil (Proposition 1): minus log of the probability that p1 gives to the negatives."""
    target_entropy: Tensor
    """Entropy of w2 in nats: 0 for a one-hot target, log(K+1) for a uniform one."""
    positive_similarity: Tensor
    """Mean cosine similarity of query and key."""


def sce_loss(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    *,
    lambda_: float = 0.5,
    tau: float = 0.1,
    tau_m: float = 0.05,
    mask_positive: bool = True,
) -> Tensor:
    """The SCE loss (eq. 9), a scalar tensor.

    Args:
        query: z1, the online embeddings, (N, D), l2-normalised.
        key: z2, the target embeddings, (N, D), l2-normalised; no gradient flows into it.
        queue: Keys of earlier batches, (K, D), l2-normalised; no gradient flows into it.
        lambda_: Weight of the positive in the target, 0 to 1. 1 is InfoNCE.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations, smaller than ``tau`` in the paper.
        mask_positive: True is eq. 3: the relations are a softmax over the negatives only. False is
            the pseudo-code of appendix A: the positive is in the softmax with logit 0.

    Raises:
        ValueError: shapes that do not match, a lambda_ outside 0..1 or a temperature not above 0.
    """
    return sce_terms(
        query, key, queue, lambda_=lambda_, tau=tau, tau_m=tau_m, mask_positive=mask_positive
    ).loss


def sce_terms(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    *,
    lambda_: float = 0.5,
    tau: float = 0.1,
    tau_m: float = 0.05,
    mask_positive: bool = True,
) -> SCETerms:
    """:func:`sce_loss` with its components, for logging; same arguments and errors.

    With ``mask_positive=True`` the components satisfy Proposition 1 exactly:
    ``loss = lambda_*infonce + (1-lambda_)*(ressl + ceil)``. With ``False`` they are still those of
    eq. 10, and the sum differs from the loss by the share of the positive in the relations.
    """
    check_shapes(query, key, queue)
    check_weights(lambda_, tau, tau_m)
    # fp32 under autocast too: exp(1/0.05) and sums over 65,536 keys need more than 16 bits.
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (
            full_precision(query),
            full_precision(key.detach()),
            full_precision(queue.detach()),
        )
        positive = (query * key).sum(dim=1) / tau  # (N,)
        # Not the product is divided, but a factor: (N, K) is large, and a quotient another copy.
        negatives = (query / tau) @ queue.T  # (N, K)
        with torch.no_grad():
            relations = (key / tau_m) @ queue.T  # (N, K), logits of s2
            log_normaliser = relations.logsumexp(dim=1)
            s2_positive = torch.zeros_like(positive)
            if not mask_positive:
                unmasked = torch.logaddexp(log_normaliser, torch.zeros_like(log_normaliser))
                s2_positive = torch.exp(-unmasked)
            s2 = torch.softmax(relations, dim=1)  # over the negatives only
            w2_positive = lambda_ + (1 - lambda_) * s2_positive
            w2_negatives = (1 - lambda_) * (1 - s2_positive)  # their sum; each is this times s2
        # From here on all tensors are (N,): float64 is cheap and keeps Proposition 1 to 1e-6.
        log_mass_negatives = negatives.logsumexp(dim=1).double()
        expected = (s2 * negatives).sum(dim=1).double()
        positive = positive.double()
        log_mass = torch.logaddexp(positive, log_mass_negatives)
        loss = log_mass - w2_positive * positive - w2_negatives * expected

        with torch.no_grad():
            entropy_s2 = log_normaliser - (s2 * relations).sum(dim=1)
            entropy = (
                -torch.xlogy(w2_positive, w2_positive)
                - torch.xlogy(w2_negatives, w2_negatives)
                + w2_negatives * entropy_s2
            )
            parts = SCETerms(
                loss=loss,
                infonce=log_mass - positive,
                ressl=log_mass_negatives - expected,
                ceil=log_mass - log_mass_negatives,
                target_entropy=entropy,
                positive_similarity=positive * tau,
            )
            parts = SCETerms(*(part.mean().to(query.dtype) for part in parts))
        return parts._replace(loss=loss.mean().to(query.dtype))


def check_weights(lambda_: float, tau: float, tau_m: float) -> None:
    """Raise ValueError for a lambda_ outside 0..1 or a temperature not above 0."""
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_ must be from 0 to 1, got {lambda_}")
    if not (tau > 0 and tau_m > 0):
        raise ValueError(f"temperatures must be above 0, got tau={tau}, tau_m={tau_m}")
