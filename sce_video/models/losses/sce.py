"""The SCE loss of the paper and its parts: soft contrastive learning with a queue.

For a query ``z1_i``, its key ``z2_i`` (the positive) and the keys ``q_k`` of the queue (the
negatives; with a queue the other keys of the batch are not negatives, appendix A)::

    s2_ik = softmax_k(z2_i . q_k / tau_m)                      relations, negatives only  (eq. 3)
    w2_ik = lambda * 1[k is the positive] + (1-lambda) * s2_ik target                     (eq. 7)
    p1_ik = softmax over positive and negatives of z1_i . z2_k / tau                      (eq. 8)
    loss  = - mean_i sum_k w2_ik log p1_ik                                                (eq. 9)

Its parts, with ``pos`` and ``neg_k`` the logits of p1::

    InfoNCE = logsumexp([pos, neg]) - pos                                                 (eq. 1)
    ReSSL   = - sum_k s2_k log softmax_k(neg): the positive is in neither softmax         (eq. 4)
    Ceil    = logsumexp([pos, neg]) - logsumexp(neg)                             (Proposition 1)

Proposition 1: SCE is ``lambda InfoNCE + (1-lambda) (ReSSL + Ceil)``. So ``lambda_=0`` of SCE is not
ReSSL, it is ReSSL plus Ceil. Eq. 10 gives the three parts free coefficients, ``lambda_, mu, eta``;
``mu`` and ``eta`` are None where there is one lambda.

Losses are means over the samples, scalar tensors in fp32 at least, also under autocast; key and
queue get no gradient.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sce_video.models.losses.siamese import check_shapes, check_temperature, full_precision


class SCETerms(NamedTuple):
    """The loss and its components, all scalar tensors; only ``loss`` has a gradient."""

    loss: Tensor
    infonce: Tensor  # eq. 1, with the queue as negatives
    ressl: Tensor  # eq. 4: cross-entropy of the relations, over the negatives only
    ceil: Tensor  # Proposition 1: minus log of the probability that p1 gives to the negatives
    target_entropy: Tensor  # of w2 in nats: 0 for a one-hot target, log(K+1) for a uniform one
    positive_similarity: Tensor  # mean cosine of query and key


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
    """The SCE loss (eq. 9), a scalar tensor; no gradient flows into key and queue.

    Args:
        query: z1, the online embeddings, (N, D), l2-normalised.
        key: z2, the target embeddings, (N, D), l2-normalised.
        queue: Keys of earlier batches, (K, D), l2-normalised.
        lambda_: Weight of the positive in the target, 0 to 1. 1 is InfoNCE.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations, smaller than ``tau`` in the paper.
        mask_positive: True is eq. 3: the relations are a softmax over the negatives only. False is
            the pseudo-code of appendix A: the positive is in the softmax with logit 0.
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
    mu: float | None = None,
    eta: float | None = None,
    tau: float = 0.1,
    tau_m: float = 0.05,
    mask_positive: bool = True,
) -> SCETerms:
    """:func:`sce_loss` with its components, for logging; same arguments and errors.

    With ``mask_positive=False`` the components are still those of eq. 10, and their sum differs
    from the loss by the share of the positive in the relations. With ``mu`` and ``eta`` the loss is
    that of :func:`sce_free_loss`, and ``target_entropy`` that of the target scaled to mass 1.
    """
    check_sce(lambda_, mu, eta, tau, tau_m, mask_positive)
    if mu is not None and eta is not None:
        taus: dict[str, Any] = {"tau": tau, "tau_m": tau_m}
        with torch.no_grad():
            parts = sce_terms(query, key, queue, lambda_=lambda_ / (lambda_ + mu), **taus)
        free = sce_free_loss(query, key, queue, lambda_=lambda_, mu=mu, eta=eta, **taus)
        return parts._replace(loss=free)
    check_shapes(query, key, queue)
    # fp32 under autocast too: exp(1/0.05) and sums over 65,536 keys need more than 16 bits.
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (full_precision(x) for x in (query, key.detach(), queue.detach()))
        positive = (query * key).sum(dim=1) / tau  # (N,), never concatenated with the negatives
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
            entropy = torch.special.entr(w2_positive) + torch.special.entr(w2_negatives)
            parts = SCETerms(
                loss=loss,
                infonce=log_mass - positive,
                ressl=log_mass_negatives - expected,
                ceil=log_mass - log_mass_negatives,
                target_entropy=entropy + w2_negatives * entropy_s2,
                positive_similarity=positive * tau,
            )
            parts = SCETerms(*(part.mean().to(query.dtype) for part in parts))
        return parts._replace(loss=loss.mean().to(query.dtype))


def info_nce_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """InfoNCE with a queue (eq. 1; MoCo, He et al. 2020), a scalar; else as :func:`sce_loss`."""
    infonce, _, _ = _parts(query, key, queue, tau)
    return infonce.mean().to(full_precision(query).dtype)


def ressl_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float, tau_m: float) -> Tensor:
    """Cross-entropy of the relations (eq. 4; ReSSL, Zheng et al. 2021); else as :func:`sce_loss`.

    ``tau_m`` should be below ``tau``, see :func:`sharpness_warnings`.
    """
    _, ressl, _ = _parts(query, key, queue, tau, tau_m)
    return ressl.mean().to(full_precision(query).dtype)


def ceil_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """Minus log of the probability of the negatives (Proposition 1); else as :func:`sce_loss`.

    It pushes query and key apart, and is of use only beside a loss that attracts.
    """
    _, _, ceil = _parts(query, key, queue, tau)
    return ceil.mean().to(full_precision(query).dtype)


def sce_free_loss(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    *,
    lambda_: float,
    mu: float,
    eta: float,
    tau: float,
    tau_m: float,
) -> Tensor:
    """``lambda_*InfoNCE + mu*ReSSL + eta*Ceil`` (eq. 10); else as :func:`sce_loss`.

    ``mu = eta = 1 - lambda_`` is the SCE loss.
    """
    check_coefficients(lambda_, mu, eta)
    infonce, ressl, ceil = _parts(query, key, queue, tau, tau_m)
    loss = lambda_ * infonce + mu * ressl + eta * ceil
    return loss.mean().to(full_precision(query).dtype)


def _parts(
    query: Tensor, key: Tensor, queue: Tensor, tau: float, tau_m: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """InfoNCE, ReSSL (of no relations without ``tau_m``) and Ceil of each sample, (N,) float64."""
    check_shapes(query, key, queue)
    check_temperature("tau", tau)
    if tau_m is not None:
        check_temperature("tau_m", tau_m)
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (full_precision(x) for x in (query, key.detach(), queue.detach()))
        logits = (query / tau) @ queue.T  # (N, K), without a copy for the quotient
        # All that follows is (N,): float64 is cheap and keeps Proposition 1 to 1e-6.
        positive = (query * key).sum(dim=1).double() / tau
        negatives = logits.logsumexp(dim=1).double()
        expected = torch.zeros_like(positive)
        if tau_m is not None:
            s2 = torch.softmax((key / tau_m) @ queue.T, dim=1)
            expected = (s2 * logits).sum(dim=1).double()
        # Not logsumexp of a concatenation: that would copy the (N, K) logits.
        joint = torch.logaddexp(positive, negatives)
    return joint - positive, negatives - expected, joint - negatives


def check_sce(
    lambda_: float,
    mu: float | None,
    eta: float | None,
    tau: float,
    tau_m: float,
    mask_positive: bool = True,
) -> None:
    """Raise ValueError for a coefficient or temperature out of its range."""
    if mu is None and not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_ must be from 0 to 1, got {lambda_}")
    if not (tau > 0 and tau_m > 0):
        raise ValueError(f"temperatures must be above 0, got tau={tau}, tau_m={tau_m}")
    if mu is None or eta is None:
        return
    check_coefficients(lambda_, mu, eta)
    if not mask_positive:
        raise ValueError(
            "the free coefficients of eq. 10 need mask_positive=True: with False the loss is "
            "no sum of InfoNCE, ReSSL and Ceil"
        )


def check_coefficients(lambda_: float, mu: float, eta: float) -> None:
    """Raise ValueError for negative or infinite coefficients of eq. 10, or ``lambda_ = mu = 0``."""
    for name, value in (("lambda_", lambda_), ("mu", mu), ("eta", eta)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"coefficient {name} must be a finite number from 0, got {value}")
    # Ceil alone has its minimum where the positive has probability 0.
    if lambda_ + mu == 0:
        raise ValueError(
            f"coefficients lambda_=0, mu=0, eta={eta} leave nothing that brings query and key "
            "together: lambda_ (InfoNCE) or mu (ReSSL) must be above 0"
        )


def sce_warnings(
    lambda_: float, mu: float | None, eta: float | None, tau: float, tau_m: float
) -> list[str]:
    """Warnings of free coefficients off SCE's scale, or that are ReSSL near its collapse."""
    if mu is None or eta is None:
        return []
    found = []
    if not math.isclose(lambda_ + mu, 1.0, abs_tol=1e-6):
        found.append(
            f"the coefficients lambda_={lambda_:g} and mu={mu:g} (eta={eta:g}) add up to "
            f"{lambda_ + mu:g}, not 1: the loss, and the learning rate that suits it, are not on "
            "the scale of SCE"
        )
    return [*found, *(sharpness_warnings(tau, tau_m) if lambda_ == eta == 0 else [])]


def sharpness_warnings(tau: float, tau_m: float) -> list[str]:
    """A warning of relations that are not sharper than the online distribution."""
    if tau_m < tau:
        return []
    return [
        f"tau_m={tau_m:g} is not below tau={tau:g}: the relations are then not sharper than the "
        "distribution that learns them, and ReSSL collapses as tau_m comes near tau; use a "
        "smaller tau_m, e.g. 0.04 with tau 0.1"
    ]
