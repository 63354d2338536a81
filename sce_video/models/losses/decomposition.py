"""The parts of the SCE loss, alone and with free coefficients (eq. 1, 4, 10 and Proposition 1).

For a query q, its key k (the positive) and the keys of the queue (the negatives)::

    pos = q.k / tau      neg_j = q.queue_j / tau      s2 = softmax_j(k.queue_j / tau_m)   (eq. 3)
    InfoNCE = logsumexp([pos, neg]) - pos                                                 (eq. 1)
    ReSSL   = - sum_j s2_j log softmax_j(neg): the positive is in neither softmax         (eq. 4)
    Ceil    = logsumexp([pos, neg]) - logsumexp(neg)                             (Proposition 1)

Proposition 1: SCE is ``lambda InfoNCE + (1-lambda) (ReSSL + Ceil)``. So ``lambda_=0`` of SCE is not
ReSSL, it is ReSSL plus Ceil. All functions return the mean over the samples, a scalar tensor in
fp32 at least, also under autocast; key and queue get no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.models.losses.embeddings import check_shapes, check_temperature, full_precision


def info_nce_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """InfoNCE with a queue (eq. 1; MoCo, He et al. 2020), a scalar tensor.

    Args:
        query: Online embeddings (N, D), l2-normalised.
        key: Target embeddings (N, D), l2-normalised; no gradient flows into it.
        queue: Keys of earlier batches (K, D), l2-normalised; no gradient flows into it.
        tau: Temperature.

    Raises:
        ValueError: shapes that do not match, or a temperature that is not above 0.
    """
    masses = _masses(query, key, queue, tau)
    return (masses.all - masses.positive).mean().to(masses.dtype)


def ressl_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float, tau_m: float) -> Tensor:
    """Cross-entropy of the relations (eq. 4; ReSSL, Zheng et al. 2021), a scalar tensor.

    Args:
        query: Online embeddings (N, D), l2-normalised.
        key: Target embeddings (N, D), l2-normalised; no gradient flows into it.
        queue: Keys of earlier batches (K, D), l2-normalised; no gradient flows into it.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations; below ``tau``, see :func:`sharpness_warnings`.

    Raises:
        ValueError: shapes that do not match, or a temperature that is not above 0.
    """
    masses = _masses(query, key, queue, tau, tau_m)
    return (masses.negatives - masses.expected).mean().to(masses.dtype)


def ceil_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """Minus log of the probability of the negatives (Proposition 1), a scalar tensor.

    It pushes query and key apart, and is of use only beside a loss that attracts.

    Args:
        query: Online embeddings (N, D), l2-normalised.
        key: Target embeddings (N, D), l2-normalised; no gradient flows into it.
        queue: Keys of earlier batches (K, D), l2-normalised; no gradient flows into it.
        tau: Temperature.

    Raises:
        ValueError: shapes that do not match, or a temperature that is not above 0.
    """
    masses = _masses(query, key, queue, tau)
    return (masses.all - masses.negatives).mean().to(masses.dtype)


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
    """``lambda_*InfoNCE + mu*ReSSL + eta*Ceil`` (eq. 10), a scalar tensor.

    ``mu = eta = 1 - lambda_`` is the SCE loss.

    Args:
        query: Online embeddings (N, D), l2-normalised.
        key: Target embeddings (N, D), l2-normalised; no gradient flows into it.
        queue: Keys of earlier batches (K, D), l2-normalised; no gradient flows into it.
        lambda_: Coefficient of InfoNCE.
        mu: Coefficient of ReSSL.
        eta: Coefficient of Ceil.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations.

    Raises:
        ValueError: shapes that do not match, a temperature that is not above 0, or coefficients
            that :func:`check_coefficients` refuses.
    """
    check_coefficients(lambda_, mu, eta)
    masses = _masses(query, key, queue, tau, tau_m)
    loss = (
        lambda_ * (masses.all - masses.positive)
        + mu * (masses.negatives - masses.expected)
        + eta * (masses.all - masses.negatives)
    )
    return loss.mean().to(masses.dtype)


class _Masses(NamedTuple):
    """Logits (N,) of the positive and logs of sums of exponentials, in float64."""

    positive: Tensor
    negatives: Tensor
    all: Tensor
    expected: Tensor  # sum_j s2_j neg_j; 0 without tau_m
    dtype: torch.dtype  # of the result


def _masses(
    query: Tensor, key: Tensor, queue: Tensor, tau: float, tau_m: float | None = None
) -> _Masses:
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
        joint = torch.logaddexp(positive, negatives)
    return _Masses(positive, negatives, joint, expected, query.dtype)


def check_coefficients(lambda_: float, mu: float, eta: float) -> None:
    """Raise ValueError for coefficients of eq. 10 that are no objective.

    These are negative or infinite ones, and ``lambda_ = mu = 0``: Ceil alone has its minimum where
    the positive has probability 0, and nothing attracts.
    """
    for name, value in (("lambda_", lambda_), ("mu", mu), ("eta", eta)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"coefficient {name} must be a finite number from 0, got {value}")
    if lambda_ + mu == 0:
        raise ValueError(
            f"coefficients lambda_=0, mu=0, eta={eta} leave nothing that brings query and key "
            "together: lambda_ (InfoNCE) or mu (ReSSL) must be above 0"
        )


def coefficient_warnings(lambda_: float, mu: float, eta: float) -> list[str]:
    """A warning of coefficients whose target ``lambda_ + mu`` has not the mass 1."""
    total = lambda_ + mu
    if math.isclose(total, 1.0, abs_tol=1e-6):
        return []
    return [
        f"the coefficients lambda_={lambda_:g} and mu={mu:g} (eta={eta:g}) add up to {total:g}, "
        "not 1: the loss, and the learning rate that suits it, are not on the scale of SCE"
    ]


def sharpness_warnings(tau: float, tau_m: float) -> list[str]:
    """A warning of relations that are not sharper than the online distribution."""
    if tau_m < tau:
        return []
    return [
        f"tau_m={tau_m:g} is not below tau={tau:g}: the relations are then not sharper than the "
        "distribution that learns them, and ReSSL collapses as tau_m comes near tau; use a "
        "smaller tau_m, e.g. 0.04 with tau 0.1"
    ]
