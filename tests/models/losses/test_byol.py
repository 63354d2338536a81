"""The BYOL loss against a loop in numpy, golden values and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.models.losses import byol_loss


def loop_byol(query, key):
    """Squared distances, one number at a time, in float64."""
    total = 0.0
    for q, k in zip(query, key, strict=True):
        total += sum(float(a - b) ** 2 for a, b in zip(q, k, strict=True))
    return total / len(query)


def inputs(n=5, d=8):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, d)) for _ in range(2)]
    arrays = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays]
    return arrays, [torch.from_numpy(a) for a in arrays]


def test_equals_the_loop():
    arrays, (query, key) = inputs()
    expected = loop_byol(*arrays)
    assert byol_loss(query, key).item() == pytest.approx(expected, abs=1e-12)
    assert byol_loss(query.float(), key.float()).item() == pytest.approx(expected, abs=1e-6)


def test_golden_values():
    east, north = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert [byol_loss(east, key).item() for key in (east, north, -east)] == [0, 2, 4]
    tilted = torch.tensor([[0.6, 0.8], [0.8, -0.6]])  # cosines with east 0.6 and 0.8
    assert byol_loss(tilted, east.expand(2, 2)).item() == pytest.approx(0.6, abs=1e-6)


def test_gradient_is_correct_and_reaches_the_query_only():
    _, (query, key) = inputs(n=3, d=5)
    query.requires_grad_(), key.requires_grad_()
    byol_loss(query, key).backward()
    assert key.grad is None
    torch.testing.assert_close(query.grad, -2 * key.detach() / 3)
    assert torch.autograd.gradcheck(
        lambda q: byol_loss(q, key.detach()), (query.detach().requires_grad_(),)
    )


def test_fp32_under_autocast():
    _, (query, key) = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert byol_loss(query.bfloat16(), key.bfloat16()).dtype == torch.float32


def test_errors():
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"query and key must be .* \(3, 4\) and \(3, 2\)"):
        byol_loss(x, x[:, :2])
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 4\)"):
        byol_loss(x[:0], x[:0])
