"""The loss of MoCo v3 against a loop in numpy, golden values and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import moco_v3_loss


def loop_moco_v3(query, keys, positives, tau):
    """One query and one key at a time, in float64."""
    total = 0.0
    for i, own in enumerate(positives):
        mass = sum(math.exp(float(query[i] @ key) / tau) for key in keys)
        total += math.log(mass) - float(query[i] @ keys[own]) / tau
    return 2 * tau * total / len(query)


def inputs(n=4, m=9, d=8):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, d)) for rows in (n, m)]
    arrays = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in arrays]
    return arrays, [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("tau", [0.07, 0.2, 1.0])
@pytest.mark.parametrize("positives", [[0, 1, 2, 3], [8, 1, 1, 4]])
def test_equals_the_loop(tau, positives):
    arrays, (query, keys) = inputs()
    own = torch.tensor(positives)
    expected = loop_moco_v3(*arrays, positives, tau)
    assert moco_v3_loss(query, keys, own, tau=tau).item() == pytest.approx(expected, abs=1e-10)
    single = moco_v3_loss(query.float(), keys.float(), own, tau=tau)
    assert single.item() == pytest.approx(expected, abs=1e-5)


# Computed once with the loop; fixed here to detect a change of both the code and the loop.
@pytest.mark.parametrize(("tau", "golden"), [(0.2, 0.1339452961), (1.0, 2.1543762528)])
def test_golden_values(tau, golden):
    grid = np.arange(6)[:, None] * 1.7 + np.arange(5)[None] * 0.9
    keys = np.cos(grid) + 0.3 * np.sin(grid * grid)
    keys = torch.from_numpy(keys / np.linalg.norm(keys, axis=1, keepdims=True))
    query = F.normalize(keys[::2] + 0.1, dim=1)
    loss = moco_v3_loss(query, keys, torch.tensor([0, 2, 4]), tau=tau)
    assert loss.item() == pytest.approx(golden, abs=1e-8)


def test_gradient_is_correct_and_reaches_the_query_only():
    _, (query, keys) = inputs(n=3, m=5, d=4)
    query.requires_grad_(), keys.requires_grad_()
    own = torch.tensor([4, 0, 2])
    moco_v3_loss(query, keys, own, tau=0.3).backward()
    assert keys.grad is None
    assert torch.autograd.gradcheck(
        lambda q: moco_v3_loss(q, keys.detach(), own, tau=0.3), (query.detach().requires_grad_(),)
    )


def test_unrelated_embeddings_give_the_log_of_the_number_of_keys():
    query, keys = F.normalize(torch.ones(3, 4), dim=1), F.normalize(torch.ones(12, 4), dim=1)
    loss = moco_v3_loss(query, keys, torch.tensor([0, 4, 8]), tau=0.2)
    assert loss.item() == pytest.approx(2 * 0.2 * math.log(12), abs=1e-5)


def test_fp32_under_autocast():
    _, (query, keys) = inputs()
    query, keys, own = query.float(), keys.float(), torch.arange(4)
    expected = moco_v3_loss(query, keys, own, tau=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(moco_v3_loss(query, keys, own, tau=0.05), expected)
        half = moco_v3_loss(query.bfloat16(), keys.bfloat16(), own, tau=0.05)
    assert half.dtype == torch.float32


def test_errors():
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
