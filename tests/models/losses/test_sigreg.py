"""sigreg_loss compared with loops over its definition, and with a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import sigreg_loss


def oracle(embeddings, directions, t_max=5.0, num_points=17) -> float:
    """Compute the definition with loops and complex numbers."""
    n, step = len(embeddings), 2 * t_max / (num_points - 1)
    statistics = []
    for a in directions:
        integral = 0.0
        for k in range(num_points):
            t = -t_max + k * step
            phi = sum(np.exp(1j * t * float(a @ z)) for z in embeddings) / n
            end = 0.5 if k in (0, num_points - 1) else 1.0
            integral += end * step * abs(phi - math.exp(-(t**2) / 2)) ** 2 * math.exp(-(t**2) / 2)
        statistics.append(n * integral)
    return sum(statistics) / len(statistics)


def sample(n=7, dim=3, count=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, dim, generator=generator, dtype=dtype)
    directions = torch.randn(count, dim, generator=generator, dtype=dtype)
    return embeddings, F.normalize(directions, dim=1)


@pytest.mark.parametrize("options", [{}, dict(t_max=3.0, num_points=33)])
@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_equals_loops_over_the_definition(options, scale):
    embeddings, directions = sample()
    embeddings = scale * embeddings + 0.2
    expected = oracle(embeddings.numpy(), directions.numpy(), **options)
    assert sigreg_loss(embeddings, directions, **options).item() == pytest.approx(expected)
    single = sigreg_loss(embeddings.float(), directions.float(), **options)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(expected, rel=1e-5)


def test_gradient_equals_finite_differences():
    embeddings, directions = sample(n=4, dim=2, count=3)
    embeddings.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: sigreg_loss(z, directions), embeddings)


def test_is_computed_in_fp32_under_autocast():
    embeddings, directions = sample(n=64, dim=8, count=16, dtype=torch.float32)
    expected = sigreg_loss(embeddings, directions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sigreg_loss(embeddings, directions), expected)
        half = sigreg_loss(embeddings.bfloat16(), directions)
    assert half.dtype == torch.float32


@pytest.mark.parametrize(
    ("embeddings", "directions", "options", "message"),
    [
        ((4,), (2, 3), {}, r"embeddings must be \(N, D\) with N, D >= 1, got \(4,\)"),
        ((0, 3), (2, 3), {}, r"got \(0, 3\)"),
        ((4, 3), (2, 4), {}, r"directions must be \(M, 3\) with M >= 1, got \(2, 4\)"),
        ((4, 3), (0, 3), {}, r"got \(0, 3\)"),
        ((4, 3), (2, 3), dict(t_max=0.0), "t_max must be a number above 0, got 0.0"),
        ((4, 3), (2, 3), dict(t_max=math.nan), "got nan"),
        ((4, 3), (2, 3), dict(num_points=1), "num_points must be at least 2, got 1"),
    ],
)
def test_errors(embeddings, directions, options, message):
    with pytest.raises(ValueError, match=message):
        sigreg_loss(torch.ones(embeddings), torch.ones(directions), **options)
