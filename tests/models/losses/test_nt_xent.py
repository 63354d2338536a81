"""NT-Xent against a loop in numpy, golden values and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import nt_xent_loss


def loop_nt_xent(first, second, tau):
    """SimCLR's eq. 1 written out, one anchor and one candidate at a time, in float64."""
    z = [*first, *second]
    n, total = len(first), 0.0
    for i in range(2 * n):
        positive = float(z[i] @ z[(i + n) % (2 * n)]) / tau
        mass = sum(math.exp(float(z[i] @ z[a]) / tau) for a in range(2 * n) if a != i)
        total += math.log(mass) - positive
    return total / (2 * n)


def inputs(n=5, d=8, seed=0):
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal((n, d)) for _ in range(2)]
    arrays = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays]
    return arrays, [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("tau", [0.07, 0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_equals_the_loop(tau, n):
    arrays, tensors = inputs(n)
    expected = loop_nt_xent(*arrays, tau)
    assert nt_xent_loss(*tensors, tau=tau).item() == pytest.approx(expected, abs=1e-10)
    single = [t.float() for t in tensors]
    assert nt_xent_loss(*single, tau=tau).item() == pytest.approx(expected, abs=1e-5)


def golden_inputs():
    """Closed-form unit vectors (4, 6), float64."""
    grid = np.arange(4)[:, None] * 1.7 + np.arange(6)[None] * 0.9
    x = [np.cos(g) + 0.3 * np.sin(g * g) for g in (grid, grid + 0.2)]
    return [torch.from_numpy(v / np.linalg.norm(v, axis=1, keepdims=True)) for v in x]


# Computed once with the loop; fixed here to detect a change of both the code and the loop.
@pytest.mark.parametrize(("tau", "golden"), [(0.1, 0.0265428663), (0.5, 0.6335212516)])
def test_golden_values(tau, golden):
    assert nt_xent_loss(*golden_inputs(), tau=tau).item() == pytest.approx(golden, abs=1e-8)


def test_gradient_reaches_both_views_and_is_correct():
    _, tensors = inputs(n=3, d=5)
    tensors = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda a, b: nt_xent_loss(a, b, tau=0.3), tensors)


def test_unrelated_embeddings_give_the_log_of_the_number_of_candidates():
    same = F.normalize(torch.ones(16, 4), dim=1)
    assert nt_xent_loss(same, same, tau=0.1).item() == pytest.approx(math.log(31), abs=1e-5)


def test_views_can_be_exchanged():
    _, (first, second) = inputs()
    swapped = nt_xent_loss(second, first, tau=0.1)
    assert nt_xent_loss(first, second, tau=0.1).item() == pytest.approx(swapped.item(), abs=1e-12)


def test_fp32_under_autocast():
    _, tensors = inputs(n=16)
    single = [t.float() for t in tensors]
    expected = nt_xent_loss(*single, tau=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nt_xent_loss(*single, tau=0.05), expected)
        half = nt_xent_loss(*(t.bfloat16() for t in single), tau=0.05)
    assert half.dtype == torch.float32


def test_errors():
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"first and second must be .* \(3, 4\) and \(2, 4\)"):
        nt_xent_loss(x, x[:2], tau=0.1)
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 4\)"):
        nt_xent_loss(x[:0], x[:0], tau=0.1)
    for tau in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="tau must be a finite number above 0"):
            nt_xent_loss(x, x, tau=tau)
