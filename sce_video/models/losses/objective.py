"""SCE's objective, with one lambda (eq. 9) or with the free coefficients of eq. 10.

To be imported as a module: ``objective.terms(...)``.

``mu`` and ``eta`` are None for one lambda. With them the objective is
``lambda_*InfoNCE + mu*ReSSL + eta*Ceil``, see :mod:`sce_video.models.losses.decomposition`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sce_video.models.losses.decomposition import (
    check_coefficients,
    coefficient_warnings,
    sce_free_loss,
    sharpness_warnings,
)
from sce_video.models.losses.sce import SCETerms, check_weights, sce_terms

_Coefficient = float | None


def split_coefficients(
    lambda_: float | Sequence[float],
) -> tuple[float, _Coefficient, _Coefficient]:
    """Lambda, mu and eta; mu and eta are None if only lambda is given.

    Raises:
        ValueError: neither one number nor three.
    """
    if not isinstance(lambda_, Sequence):
        return lambda_, None, None
    if len(lambda_) != 3:
        raise ValueError(
            f"lambda_ must be one number or the three (lambda, mu, eta) of eq. 10, got {lambda_}"
        )
    return lambda_[0], lambda_[1], lambda_[2]


def terms(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    lambda_: float,
    mu: _Coefficient,
    eta: _Coefficient,
    tau: float,
    tau_m: float,
    mask_positive: bool = True,
) -> SCETerms:
    """The loss and its components, scalar tensors.

    Arguments and errors are those of :func:`~sce_video.models.losses.sce_terms` and
    :func:`~sce_video.models.losses.sce_free_loss`. With free coefficients ``target_entropy`` is
    that of the target scaled to mass 1.
    """
    if mu is None or eta is None:
        return sce_terms(
            query,
            key,
            queue,
            lambda_=lambda_,
            tau=tau,
            tau_m=tau_m,
            mask_positive=mask_positive,
        )
    with torch.no_grad():
        share = lambda_ / (lambda_ + mu)
        parts = sce_terms(query, key, queue, lambda_=share, tau=tau, tau_m=tau_m)
    loss = sce_free_loss(query, key, queue, lambda_=lambda_, mu=mu, eta=eta, tau=tau, tau_m=tau_m)
    return parts._replace(loss=loss)


def chance_level(queue_size: int, lambda_: float, mu: _Coefficient, eta: _Coefficient) -> float:
    """The loss if the positive and the K keys of the queue have equal probabilities.

    log(K+1) with one lambda, whatever the target.
    """
    info_nce, ressl = math.log(queue_size + 1), math.log(queue_size)
    if mu is None or eta is None:
        return info_nce
    return lambda_ * info_nce + mu * ressl + eta * (info_nce - ressl)


def check(
    lambda_: float,
    mu: _Coefficient,
    eta: _Coefficient,
    tau: float,
    tau_m: float,
    mask_positive: bool = True,
) -> None:
    """Raise ValueError for a coefficient or temperature out of its range.

    Free coefficients need ``mask_positive``.
    """
    if mu is None or eta is None:
        check_weights(lambda_, tau, tau_m)
        return
    check_weights(0.0, tau, tau_m)
    check_coefficients(lambda_, mu, eta)
    if not mask_positive:
        raise ValueError(
            "the free coefficients of eq. 10 need mask_positive=True: with False the loss is "
            "no sum of InfoNCE, ReSSL and Ceil"
        )


def warnings(
    lambda_: float, mu: _Coefficient, eta: _Coefficient, tau: float, tau_m: float
) -> list[str]:
    """Warnings of free coefficients off SCE's scale, or that are ReSSL near its collapse."""
    if mu is None or eta is None:
        return []
    collapses = lambda_ == eta == 0
    return [
        *coefficient_warnings(lambda_, mu, eta),
        *(sharpness_warnings(tau, tau_m) if collapses else []),
    ]
