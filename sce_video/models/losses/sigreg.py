"""SIGReg: the distance of embeddings from an isotropic Gaussian (LeJEPA, arXiv 2511.08544).

A distribution is N(0, I) if each of its projections onto a line is N(0, 1). The characteristic
function of the projections ``x_n`` onto a direction is compared with that of N(0, 1), which is the
test of Epps and Pulley::

    phi(t)    = mean_n exp(i t x_n)                  empirical; exp(-t^2 / 2) for N(0, 1)
    statistic = N * integral over t of |phi(t) - exp(-t^2 / 2)|^2 * exp(-t^2 / 2)

Because ``|phi| <= 1``, the gradient is bounded even for outliers. For samples of N(0, 1), the
expected statistic is 1.06 for every N. If all samples are equal, it increases in proportion to N.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sce_video.models.losses.siamese import full_precision
from sce_video.utils.distributed import sum_over_ranks


def sigreg_loss(
    embeddings: Tensor, directions: Tensor, *, t_max: float = 5.0, num_points: int = 17
) -> Tensor:
    """Compute the mean statistic of Epps and Pulley over directions, which is at least 0.

    In a distributed run, the statistic covers the samples of all ranks. Every rank returns the
    value for the whole batch, and the mean of the ranks' gradients (DistributedDataParallel) equals
    the gradient of the whole batch. All ranks must call this with the same directions. Their
    numbers of samples may differ.

    Args:
        embeddings: (N, D), not normalised.
        directions: (M, D), unit vectors. The paper draws new ones for every step.
        t_max: Limit of the integral, which extends from -t_max to t_max.
        num_points: Number of points of the trapezoidal rule. The paper uses 17 over [-5, 5], and
            the public example (rbalestr-lab/lejepa, MINIMAL.md) uses ``t_max=3, num_points=33``.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: If a shape or number is not valid.
    """
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"embeddings must be (N, D) with N, D >= 1, got {tuple(embeddings.shape)}")
    dim = embeddings.shape[1]
    if directions.ndim != 2 or directions.shape[1] != dim or len(directions) == 0:
        raise ValueError(
            f"directions must be (M, {dim}) with M >= 1, got {tuple(directions.shape)}"
        )
    if not 0 < t_max < math.inf:
        raise ValueError(f"t_max must be a number above 0, got {t_max}")
    if num_points < 2:
        raise ValueError(f"num_points must be at least 2, got {num_points}")
    # Turn autocast off, because 16 bits cannot represent the small differences near N(0, I).
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings = full_precision(embeddings)
        t = torch.linspace(
            -t_max, t_max, num_points, dtype=embeddings.dtype, device=embeddings.device
        )
        angles = (embeddings @ directions.to(embeddings).T).unsqueeze(-1) * t  # (N, M, points)
        sums = torch.stack([angles.cos().sum(dim=0), angles.sin().sum(dim=0)])
        count = torch.full_like(sums[0, 0, 0], len(embeddings))  # created on the device
        # Exchange sums instead of means, because ranks may have different numbers of samples.
        sums, count = sum_over_ranks(sums), sum_over_ranks(count)
        real, imaginary = sums / count
        gaussian = torch.exp(-t.square() / 2)
        distance = (real - gaussian).square() + imaginary.square()
        return count * torch.trapezoid(distance * gaussian, t, dim=-1).mean()
