"""BYOL, MoCo v3 and NT-Xent: a loop in numpy, gradients, errors; see test_other_libraries.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sce_video.models.losses import byol_loss, moco_v3_loss, nt_xent_loss


def inputs(n=5, d=8, m=None):
    """Unit vectors (n, d) and (m, d), or two of the first."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, d)) for rows in (n, m or n)]
    arrays = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays]
    return arrays, [torch.from_numpy(a) for a in arrays]


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
