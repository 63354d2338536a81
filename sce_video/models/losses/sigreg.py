"""SIGReg: how far embeddings are from an isotropic Gaussian (LeJEPA, arXiv 2511.08544).

A distribution is N(0, I) if each of its projections on a line is N(0, 1). The projections ``x_n``
on a direction are compared with N(0, 1) by their characteristic functions (the test of Epps and
Pulley)::

    phi(t)    = mean_n exp(i t x_n)                  empirical; that of N(0, 1) is exp(-t^2 / 2)
    statistic = N * integral over t of |phi(t) - exp(-t^2 / 2)|^2 * exp(-t^2 / 2)

As ``|phi| <= 1`` the gradient is bounded for outliers too. For samples of N(0, 1) the expectation
of the statistic is 1.06 whatever N is; for samples that are all equal it grows as N.
"""

from __future__ import annotations

import math

import torch
from mmengine.dist import all_reduce, get_world_size
from torch import Tensor
from torch.distributed.nn.functional import all_reduce as all_reduce_with_gradient

from sce_video.models.losses.siamese import full_precision


def sigreg_loss(
    embeddings: Tensor, directions: Tensor, *, t_max: float = 5.0, num_points: int = 17
) -> Tensor:
    """Mean statistic of Epps and Pulley over directions, a scalar tensor; 0 is the least.

    In a distributed run the samples are those of all ranks: every rank gets the value of the joint
    batch, and the mean of the ranks' gradients (DistributedDataParallel) is that of the joint
    batch. All ranks must call this, with the same directions; their N may differ.

    Args:
        embeddings: (N, D), not normalised.
        directions: (M, D), unit vectors; the paper draws new ones for every step.
        t_max: The integral is taken from -t_max to t_max.
        num_points: Points of the trapezoidal rule over this range. The paper has 17 over [-5, 5];
            the public example (rbalestr-lab/lejepa, MINIMAL.md) ``t_max=3, num_points=33``.
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
    # fp32 under autocast too: near N(0, I) differences below the precision of 16 bits remain.
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings = full_precision(embeddings)
        t = torch.linspace(
            -t_max, t_max, num_points, dtype=embeddings.dtype, device=embeddings.device
        )
        angles = (embeddings @ directions.to(embeddings).T).unsqueeze(-1) * t  # (N, M, points)
        sums = torch.stack([angles.cos().sum(dim=0), angles.sin().sum(dim=0)])
        count = torch.full_like(sums[0, 0, 0], len(embeddings))  # no copy from the host
        # Sums, not means, are exchanged: ranks may have different numbers of samples.
        if get_world_size() > 1:
            sums = all_reduce_with_gradient(sums)
            all_reduce(count)
        real, imaginary = sums / count
        gaussian = torch.exp(-t.square() / 2)
        distance = (real - gaussian).square() + imaginary.square()
        return count * torch.trapezoid(distance * gaussian, t, dim=-1).mean()
