"""BYOL, MoCo v3 and NT-Xent against loops in numpy and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sce_video.models.losses import byol_loss, moco_v3_loss, nt_xent_loss


def loop_byol(query, key):
    """Squared distances, one number at a time, in float64."""
    total = 0.0
    for q, k in zip(query, key, strict=True):
        total += sum(float(a - b) ** 2 for a, b in zip(q, k, strict=True))
    return total / len(query)


def inputs(n=5, d=8, m=None):
    """Unit vectors (n, d) and (m, d), or two of the first."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, d)) for rows in (n, m or n)]
    arrays = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays]
    return arrays, [torch.from_numpy(a) for a in arrays]


def test_equals_the_loop():
    arrays, (query, key) = inputs()
    expected = loop_byol(*arrays)
    assert byol_loss(query, key).item() == pytest.approx(expected, abs=1e-12)
    assert byol_loss(query.float(), key.float()).item() == pytest.approx(expected, abs=1e-6)


def test_gradient_is_correct_and_reaches_the_query_only():
    _, (query, key) = inputs(n=3, d=5)
    query.requires_grad_(), key.requires_grad_()
    byol_loss(query, key).backward()
    assert key.grad is None
    torch.testing.assert_close(query.grad, -2 * key.detach() / 3)
    assert torch.autograd.gradcheck(
        lambda q: byol_loss(q, key.detach()), (query.detach().requires_grad_(),)
    )


def test_errors():
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"query and key must be .* \(3, 4\) and \(3, 2\)"):
        byol_loss(x, x[:, :2])
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 4\)"):
        byol_loss(x[:0], x[:0])


def loop_moco_v3(query, keys, positives, tau):
    """One query and one key at a time, in float64."""
    total = 0.0
    for i, own in enumerate(positives):
        mass = sum(math.exp(float(query[i] @ key) / tau) for key in keys)
        total += math.log(mass) - float(query[i] @ keys[own]) / tau
    return 2 * tau * total / len(query)


@pytest.mark.parametrize("tau", [0.07, 1.0])
@pytest.mark.parametrize("positives", [[0, 1, 2, 3], [8, 1, 1, 4]])
def test_equals_the_loop_of_moco_v3(tau, positives):
    arrays, (query, keys) = inputs(4, m=9)
    own = torch.tensor(positives)
    expected = loop_moco_v3(*arrays, positives, tau)
    assert moco_v3_loss(query, keys, own, tau=tau).item() == pytest.approx(expected, abs=1e-10)
    single = moco_v3_loss(query.float(), keys.float(), own, tau=tau)
    assert single.item() == pytest.approx(expected, abs=1e-5)


def test_gradient_is_correct_and_reaches_the_query_only_of_moco_v3():
    _, (query, keys) = inputs(n=3, m=5, d=4)
    query.requires_grad_(), keys.requires_grad_()
    own = torch.tensor([4, 0, 2])
    moco_v3_loss(query, keys, own, tau=0.3).backward()
    assert keys.grad is None
    assert torch.autograd.gradcheck(
        lambda q: moco_v3_loss(q, keys.detach(), own, tau=0.3), (query.detach().requires_grad_(),)
    )


def test_errors_of_moco_v3():
    x, own = torch.ones(3, 4), torch.arange(3)
    with pytest.raises(ValueError, match=r"got \(3, 4\) and \(3, 2\)"):
        moco_v3_loss(x, x[:, :2], own, tau=0.2)
    with pytest.raises(ValueError, match=r"queries and keys, got \(3, 4\) and \(0, 4\)"):
        moco_v3_loss(x, x[:0], own, tau=0.2)
    with pytest.raises(ValueError, match=r"positives must be \(3,\) of int64, got \(2,\)"):
        moco_v3_loss(x, x, own[:2], tau=0.2)
    for wrong in (3, -1, -100):  # -100 would be ignored by torch's cross_entropy
        with pytest.raises(ValueError, match=f"rows of the 3 keys, from 0, got {wrong}"):
            moco_v3_loss(x, x, torch.tensor([0, wrong, 1]), tau=0.2)
    with pytest.raises(ValueError, match="tau must be a finite number above 0, got 0"):
        moco_v3_loss(x, x, own, tau=0)


def loop_nt_xent(first, second, tau):
    """SimCLR's eq. 1 written out, one anchor and one candidate at a time, in float64."""
    z = [*first, *second]
    n, total = len(first), 0.0
    for i in range(2 * n):
        positive = float(z[i] @ z[(i + n) % (2 * n)]) / tau
        mass = sum(math.exp(float(z[i] @ z[a]) / tau) for a in range(2 * n) if a != i)
        total += math.log(mass) - positive
    return total / (2 * n)


@pytest.mark.parametrize("tau", [0.07, 1.0])
@pytest.mark.parametrize("n", [1, 5])
def test_equals_the_loop_of_nt_xent(tau, n):
    arrays, tensors = inputs(n)
    expected = loop_nt_xent(*arrays, tau)
    assert nt_xent_loss(*tensors, tau=tau).item() == pytest.approx(expected, abs=1e-10)
    single = [t.float() for t in tensors]
    assert nt_xent_loss(*single, tau=tau).item() == pytest.approx(expected, abs=1e-5)


def test_gradient_reaches_both_views_and_is_correct():
    _, tensors = inputs(n=3, d=5)
    tensors = [t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda a, b: nt_xent_loss(a, b, tau=0.3), tensors)


def test_errors_of_nt_xent():
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"first and second must be .* \(3, 4\) and \(2, 4\)"):
        nt_xent_loss(x, x[:2], tau=0.1)
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 4\)"):
        nt_xent_loss(x[:0], x[:0], tau=0.1)
    for tau in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="tau must be a finite number above 0"):
            nt_xent_loss(x, x, tau=tau)
