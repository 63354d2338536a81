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
ReSSL, it is ReSSL plus Ceil. Eq. 10 weights the three parts freely by ``lambda_``, ``mu`` and
``eta``; ``mu`` and ``eta`` are None if there is one lambda.

Losses are means over the samples, scalar tensors in fp32 at least, also under autocast; key and
queue get no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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
    """Compute the SCE loss (eq. 9), a scalar tensor; no gradient flows into key and queue.

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
    """Compute :func:`sce_loss` and its components, which are logged.

    Without ``mu`` and ``eta`` the loss is eq. 9. With both it is eq. 10, the sum of InfoNCE, ReSSL
    and Ceil weighted by ``lambda_``, ``mu`` and ``eta``, and ``target_entropy`` belongs to the
    target scaled to mass 1. With ``mask_positive=False`` the components are the same as with True,
    so their sum differs from the loss by the positive's share in the relations.

    Args:
        mu: Weight of ReSSL in eq. 10; None for eq. 9.
        eta: Weight of Ceil in eq. 10; None for eq. 9.

    Other arguments: see :func:`sce_loss`.
    """
    check_sce(lambda_, mu, eta, tau, tau_m, mask_positive)
    check_shapes(query, key, queue)
    # fp32 under autocast too: exp(1/0.05) and sums over 65,536 keys need more than 16 bits.
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (full_precision(x) for x in (query, key.detach(), queue.detach()))
        with torch.no_grad():
            relations = _logits(key, queue, tau_m)  # (N, K), logits of s2
            log_normaliser = relations.logsumexp(dim=1)
            s2 = torch.softmax(relations, dim=1)  # over the negatives only
            entropy_s2 = log_normaliser - (s2 * relations).sum(dim=1)
            s2_positive = torch.zeros_like(log_normaliser)
            if not mask_positive:
                unmasked = torch.logaddexp(log_normaliser, torch.zeros_like(log_normaliser))
                s2_positive = torch.exp(-unmasked)
            share = lambda_ if mu is None else lambda_ / (lambda_ + mu)
            w2_positive = share + (1 - share) * s2_positive
            w2_negatives = (1 - share) * (1 - s2_positive)  # their sum; each is this times s2
        negatives = _logits(query, queue, tau)  # (N, K)
        cosine = (query * key).sum(dim=1)  # (N,)
        if mu is None or eta is None:
            parts = _parts(cosine / tau, negatives, s2)
            loss = parts.log_mass - w2_positive * parts.positive - w2_negatives * parts.expected
        else:
            # Divided in float64 as in the losses of the single parts, whose sum this is.
            parts = _parts(cosine.double() / tau, negatives, s2)
            loss = lambda_ * parts.infonce + mu * parts.ressl + eta * parts.ceil

        with torch.no_grad():
            entropy = torch.special.entr(w2_positive) + torch.special.entr(w2_negatives)
            terms = SCETerms(
                loss=loss,
                infonce=parts.infonce,
                ressl=parts.ressl,
                ceil=parts.ceil,
                target_entropy=entropy + w2_negatives * entropy_s2,
                positive_similarity=parts.positive * tau,
            )
            terms = SCETerms(*(term.mean().to(query.dtype) for term in terms))
        return terms._replace(loss=loss.mean().to(query.dtype))


def info_nce_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """Compute InfoNCE with a queue (eq. 1; MoCo, He et al. 2020), a scalar.

    Arguments and errors: see :func:`sce_loss`.
    """
    infonce = _compared(query, key, queue, tau).infonce
    return infonce.mean().to(full_precision(query).dtype)


def ressl_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float, tau_m: float) -> Tensor:
    """Compute the cross-entropy of the relations (eq. 4; ReSSL, Zheng et al. 2021), a scalar.

    ``tau_m`` should be below ``tau``, see :func:`sharpness_warnings`. Other arguments and errors:
    see :func:`sce_loss`.
    """
    ressl = _compared(query, key, queue, tau, tau_m).ressl
    return ressl.mean().to(full_precision(query).dtype)


def ceil_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """Compute minus the log of the negatives' probability (Proposition 1), a scalar.

    It pushes query and key apart, so it is useful only next to a loss that attracts them.
    Arguments and errors: see :func:`sce_loss`.
    """
    ceil = _compared(query, key, queue, tau).ceil
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
    """Compute ``lambda_*InfoNCE + mu*ReSSL + eta*Ceil`` (eq. 10), a scalar.

    ``mu = eta = 1 - lambda_`` gives the SCE loss. Arguments and errors: see :func:`sce_terms`.
    """
    return sce_terms(query, key, queue, lambda_=lambda_, mu=mu, eta=eta, tau=tau, tau_m=tau_m).loss


@dataclass(frozen=True)
class _Parts:
    """Logits of each sample, (N,) in float64, and the losses that they give.

    All tensors from here on are (N,), so float64 is cheap and keeps Proposition 1 to 1e-6.
    """

    positive: Tensor  # logit of the key
    log_mass_negatives: Tensor  # log-sum-exp of the queue's logits
    log_mass: Tensor  # log-sum-exp of the logits of key and queue
    expected: Tensor  # mean logit of the queue under the relations s2; 0 without relations

    @property
    def infonce(self) -> Tensor:
        return self.log_mass - self.positive

    @property
    def ressl(self) -> Tensor:
        return self.log_mass_negatives - self.expected

    @property
    def ceil(self) -> Tensor:
        return self.log_mass - self.log_mass_negatives


def _parts(positive: Tensor, negatives: Tensor, s2: Tensor | None) -> _Parts:
    """Reduce the logits of the key (N,) and the queue (N, K); s2 (N, K) are the relations."""
    log_mass_negatives = negatives.logsumexp(dim=1).double()
    expected = torch.zeros_like(log_mass_negatives)
    if s2 is not None:
        expected = (s2 * negatives).sum(dim=1).double()
    positive = positive.double()
    # Not logsumexp of a concatenation, which would copy the (N, K) logits.
    log_mass = torch.logaddexp(positive, log_mass_negatives)
    return _Parts(positive, log_mass_negatives, log_mass, expected)


def _compared(
    query: Tensor, key: Tensor, queue: Tensor, tau: float, tau_m: float | None = None
) -> _Parts:
    """Check and compare embeddings for a single part of the loss; ``tau_m`` is for ReSSL alone."""
    check_shapes(query, key, queue)
    check_temperature("tau", tau)
    if tau_m is not None:
        check_temperature("tau_m", tau_m)
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (full_precision(x) for x in (query, key.detach(), queue.detach()))
        s2 = None if tau_m is None else torch.softmax(_logits(key, queue, tau_m), dim=1)
        positive = (query * key).sum(dim=1).double() / tau
        return _parts(positive, _logits(query, queue, tau), s2)


def _logits(embeddings: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """Similarities (N, K) to the queue over a temperature, the largest tensors of the loss."""
    # Dividing the product instead of a factor would make another copy of (N, K).
    return (embeddings / temperature) @ queue.T


def check_sce(
    lambda_: float,
    mu: float | None,
    eta: float | None,
    tau: float,
    tau_m: float,
    mask_positive: bool = True,
) -> None:
    """Raise ValueError for a coefficient or temperature out of its range."""
    check_temperature("tau", tau)
    check_temperature("tau_m", tau_m)
    if mu is None and eta is None:
        if not 0.0 <= lambda_ <= 1.0:
            raise ValueError(f"lambda_ must be from 0 to 1, got {lambda_}")
        return
    if mu is None or eta is None:
        raise ValueError(f"eq. 10 needs both mu and eta, got mu={mu}, eta={eta}: give both or none")
    for name, value in (("lambda_", lambda_), ("mu", mu), ("eta", eta)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"coefficient {name} must be finite and at least 0, got {value}")
    # Ceil alone has its minimum where the positive has probability 0.
    if lambda_ + mu == 0:
        raise ValueError(
            f"coefficients lambda_=0, mu=0, eta={eta} leave nothing that brings query and key "
            "together: lambda_ (InfoNCE) or mu (ReSSL) must be above 0"
        )
    if not mask_positive:
        raise ValueError(
            "the free coefficients of eq. 10 need mask_positive=True: with False the loss is "
            "not a sum of InfoNCE, ReSSL and Ceil"
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
