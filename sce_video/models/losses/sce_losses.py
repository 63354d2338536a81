"""The SCE loss of the paper and its parts, for soft contrastive learning with a queue.

Let ``z1_i`` be a query, ``z2_i`` its key (the positive), and ``q_k`` the keys in the queue (the
negatives). With a queue, the other keys of the batch are not negatives (appendix A)::

    s2_ik = softmax_k(z2_i . q_k / tau_m)                      relations, negatives only  (eq. 3)
    w2_ik = lambda * 1[k is the positive] + (1-lambda) * s2_ik target                     (eq. 7)
    p1_ik = softmax over positive and negatives of z1_i . z2_k / tau                      (eq. 8)
    loss  = - mean_i sum_k w2_ik log p1_ik                                                (eq. 9)

With the logits ``pos`` and ``neg_k`` of p1, the parts of the loss are::

    InfoNCE = logsumexp([pos, neg]) - pos                                                 (eq. 1)
    ReSSL   = - sum_k s2_k log softmax_k(neg): the positive is in neither softmax         (eq. 4)
    Ceil    = logsumexp([pos, neg]) - logsumexp(neg)                             (Proposition 1)

By Proposition 1, SCE equals ``lambda InfoNCE + (1-lambda) (ReSSL + Ceil)``. SCE with ``lambda_=0``
is therefore ReSSL plus Ceil, not ReSSL. Eq. 10 weights the three parts freely by ``lambda_``,
``mu`` and ``eta``. If there is only one lambda, ``mu`` and ``eta`` are None.

Losses are means over the samples and scalar tensors in at least fp32, also under autocast. Key and
queue receive no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.models.losses.siamese import check_shapes, check_temperature, full_precision


class SCETerms(NamedTuple):
    """The loss and its components, which are scalar tensors. Only ``loss`` has a gradient."""

    loss: Tensor
    infonce: Tensor  # eq. 1, with the queue as negatives
    ressl: Tensor  # eq. 4: cross-entropy of the relations with the negatives only
    ceil: Tensor  # Proposition 1: minus log of the probability that p1 assigns to the negatives
    target_entropy: Tensor  # entropy of w2 in nats, from 0 (one-hot) to log(K+1) (uniform)
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
    """Compute the SCE loss (eq. 9), a scalar tensor without gradient to key and queue.

    Args:
        query: z1, the online embeddings, (N, D), l2-normalised.
        key: z2, the target embeddings, (N, D), l2-normalised.
        queue: Keys of earlier batches, (K, D), l2-normalised.
        lambda_: Weight of the positive in the target, 0 to 1. With 1, the loss is InfoNCE.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations, smaller than ``tau`` in the paper.
        mask_positive: True computes eq. 3, where the relations are a softmax over the negatives
            only. False follows the pseudo-code of appendix A, where the positive is in the softmax
            with logit 0.

    Raises:
        ValueError: If shapes do not match or a number is out of range.
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
    """Compute :func:`sce_loss` and its components for the log.

    The loss is eq. 9 if ``mu`` and ``eta`` are None. Otherwise, it is eq. 10, the sum of InfoNCE,
    ReSSL and Ceil weighted by ``lambda_``, ``mu`` and ``eta``, and ``target_entropy`` belongs to
    the target scaled to mass 1. With ``mask_positive=False``, the components are the same as with
    True, so their weighted sum differs from the loss by the positive's share in the relations.

    :func:`sce_loss` describes the other arguments and the errors.
    """
    check_sce(lambda_, mu, eta, tau, tau_m, mask_positive)
    check_shapes(query, key, queue)
    # Use fp32 even under autocast, because exp(1/0.05) and sums over 65,536 keys require it.
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
            w2_negatives = (1 - share) * (1 - s2_positive)  # their sum; s2 divides it among them
        negatives = _logits(query, queue, tau)  # (N, K)
        cosine = (query * key).sum(dim=1)  # (N,)
        if mu is None or eta is None:
            parts = _parts(cosine / tau, negatives, s2)
            loss = parts.log_mass - w2_positive * parts.positive - w2_negatives * parts.expected
        else:
            # Divide in float64, as the separate losses of the parts do, so that this is exactly
            # their sum.
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

    :func:`sce_loss` describes the arguments and the errors.
    """
    infonce = _compared(query, key, queue, tau).infonce
    return infonce.mean().to(full_precision(query).dtype)


def ressl_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float, tau_m: float) -> Tensor:
    """Compute the cross-entropy of the relations (eq. 4; ReSSL, Zheng et al. 2021), a scalar.

    ``tau_m`` should be below ``tau`` (:func:`sharpness_warnings`). :func:`sce_loss` describes the
    other arguments and the errors.
    """
    ressl = _compared(query, key, queue, tau, tau_m).ressl
    return ressl.mean().to(full_precision(query).dtype)


def ceil_loss(query: Tensor, key: Tensor, queue: Tensor, *, tau: float) -> Tensor:
    """Compute minus the log of the negatives' probability (Proposition 1), a scalar.

    This loss pushes query and key apart, so it is useful only together with one that attracts them.
    :func:`sce_loss` describes the arguments and the errors.
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

    With ``mu = eta = 1 - lambda_``, it equals the SCE loss. :func:`sce_terms` describes the
    arguments and the errors.
    """
    return sce_terms(query, key, queue, lambda_=lambda_, mu=mu, eta=eta, tau=tau, tau_m=tau_m).loss


@dataclass(frozen=True)
class _Parts:
    """Reduced logits of each sample, (N,) in float64, and the losses computed from them.

    Tensors of this size make float64 cheap, which keeps the error of Proposition 1 below 1e-6.
    """

    positive: Tensor  # logit of the key
    log_mass_negatives: Tensor  # log-sum-exp of the queue's logits
    log_mass: Tensor  # log-sum-exp of the logits of key and queue
    expected: Tensor  # mean logit of the queue weighted by the relations s2, or 0 without them

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
    """Reduce the logits of the key (N,) and the queue (N, K), with the relations s2 (N, K)."""
    log_mass_negatives = negatives.logsumexp(dim=1).double()
    expected = torch.zeros_like(log_mass_negatives)
    if s2 is not None:
        expected = (s2 * negatives).sum(dim=1).double()
    positive = positive.double()
    # Use logaddexp instead of a concatenation, which would copy the (N, K) logits.
    log_mass = torch.logaddexp(positive, log_mass_negatives)
    return _Parts(positive, log_mass_negatives, log_mass, expected)


def _compared(
    query: Tensor, key: Tensor, queue: Tensor, tau: float, tau_m: float | None = None
) -> _Parts:
    """Check and compare embeddings for one part of the loss. Only ReSSL uses ``tau_m``."""
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
    """Return the similarities (N, K) with the queue, divided by a temperature."""
    # Divide the embeddings instead of the product, because the product is the loss's largest tensor
    # and would be copied.
    return (embeddings / temperature) @ queue.T


def check_sce(
    lambda_: float,
    mu: float | None,
    eta: float | None,
    tau: float,
    tau_m: float,
    mask_positive: bool = True,
) -> None:
    """Check coefficients and temperatures.

    Raises:
        ValueError: If one of them is out of range.
    """
    check_temperature("tau", tau)
    check_temperature("tau_m", tau_m)
    if mu is None and eta is None:
        if not 0.0 <= lambda_ <= 1.0:
            raise ValueError(f"lambda_ must be from 0 to 1, got {lambda_}")
        return
    if mu is None or eta is None:
        raise ValueError(f"eq. 10 needs both mu and eta, got mu={mu} and eta={eta}")
    for name, value in (("lambda_", lambda_), ("mu", mu), ("eta", eta)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"coefficient {name} must be finite and at least 0, got {value}")
    # Alone, Ceil is smallest if the positive has probability 0, which drives query and key apart.
    if lambda_ + mu == 0:
        raise ValueError(
            f"with the coefficients lambda_=0, mu=0 and eta={eta}, nothing brings query and key "
            "together. lambda_ (InfoNCE) or mu (ReSSL) must be above 0"
        )
    if not mask_positive:
        raise ValueError(
            "the free coefficients of eq. 10 need mask_positive=True. With False, the loss is not "
            "a sum of InfoNCE, ReSSL and Ceil"
        )


def sce_warnings(
    lambda_: float, mu: float | None, eta: float | None, tau: float, tau_m: float
) -> list[str]:
    """Return warnings about coefficients that change the scale of the loss or risk a collapse."""
    if mu is None or eta is None:
        return []
    found = []
    if not math.isclose(lambda_ + mu, 1.0, abs_tol=1e-6):
        found.append(
            f"the coefficients lambda_={lambda_:g} and mu={mu:g} (eta={eta:g}) add up to "
            f"{lambda_ + mu:g}, not 1, so the scale of the loss differs from SCE's. Adapt the "
            "learning rate"
        )
    return [*found, *(sharpness_warnings(tau, tau_m) if lambda_ == eta == 0 else [])]


def sharpness_warnings(tau: float, tau_m: float) -> list[str]:
    """Return a warning if the relations are not sharper than the online distribution."""
    if tau_m < tau:
        return []
    return [
        f"tau_m={tau_m:g} is not below tau={tau:g}, so the relations are not sharper than the "
        "distribution that learns them. ReSSL collapses as tau_m approaches tau. Use a smaller "
        "tau_m, for example 0.04 with tau 0.1"
    ]
