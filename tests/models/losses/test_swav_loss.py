"""Sinkhorn codes and the SwAV loss compared with loops in numpy and golden values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sce_video.models.losses import sinkhorn, swav_loss


def loop_sinkhorn(scores, epsilon, iterations):
    """Compute ``distributed_sinkhorn`` of facebookresearch/swav in float64, number by number."""
    samples, prototypes = scores.shape
    q = [[math.exp(scores[b, k] / epsilon) for b in range(samples)] for k in range(prototypes)]
    total = sum(map(sum, q))
    q = [[x / total for x in row] for row in q]
    for _ in range(iterations):
        q = [[x / sum(row) / prototypes for x in row] for row in q]
        sums = [sum(q[k][b] for k in range(prototypes)) for b in range(samples)]
        q = [[row[b] / sums[b] / samples for b in range(samples)] for row in q]
    return np.array(q).T * samples


def cosines(seed, *shape):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("shape", [(6, 4), (1, 3), (4, 1)])
def test_sinkhorn_equals_the_loop(shape, iterations, epsilon):
    scores = cosines(0, *shape)
    expected = loop_sinkhorn(scores, epsilon, iterations)
    codes = sinkhorn(torch.from_numpy(scores), epsilon=epsilon, iterations=iterations)
    np.testing.assert_allclose(codes.numpy(), expected, atol=1e-10)
    single = sinkhorn(torch.from_numpy(scores).float(), epsilon=epsilon, iterations=iterations)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 60000.0])
def test_codes_are_finite_for_scores_of_any_size(size, dtype):
    scores = torch.from_numpy(cosines(2, 16, 9)).mul(size).to(dtype)
    scores[0] = -size  # exp of this row, and of this prototype, is 0 compared with the others
    scores[:, 1] = -size
    scores[3, 2] = size
    codes = sinkhorn(scores)
    assert codes.dtype == torch.float32 and codes.isfinite().all()
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(16))
    loss = swav_loss([scores, scores], [codes, None], tau=0.1)
    assert loss.dtype == torch.float32 and loss.isfinite()


def test_gradient_is_correct_and_reaches_the_scores_only():
    scores = [torch.from_numpy(s).requires_grad_() for s in cosines(4, 3, 4, 3)]
    codes = [sinkhorn(scores[0]).requires_grad_(), sinkhorn(scores[1]), None]
    assert torch.autograd.gradcheck(lambda *s: swav_loss(s, codes, tau=0.3), scores)
    swav_loss(scores, codes, tau=0.3).backward()
    assert codes[0].grad is None and not codes[1].requires_grad


@pytest.mark.parametrize(
    ("shape", "options", "match"),
    [
        ((4,), {}, r"\(B, K\).*\(4,\)"),
        ((0, 3), {}, r"\(0, 3\)"),
        ((4, 3), dict(epsilon=0), "epsilon.*0"),
        ((4, 3), dict(iterations=0), "iterations.*0"),
    ],
)
def test_bad_values_of_sinkhorn_are_named(shape, options, match):
    with pytest.raises(ValueError, match=match):
        sinkhorn(torch.rand(shape), **options)


X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("scores", "codes", "tau", "match"),
    [
        ([X], [X], 0.1, "got 1 and 1"),
        ([X, X], [X], 0.1, "got 2 and 1"),
        ([X, X], [None, None], 0.1, "all codes are None"),
        ([X, X], [X[:3], None], 0.1, r"same shape.*\(3, 3\)"),
        ([X, X], [X, None], 0, "tau must be a finite number above 0, got 0"),
    ],
)
def test_bad_values_of_the_loss_are_named(scores, codes, tau, match):
    with pytest.raises(ValueError, match=match):
        swav_loss(scores, codes, tau=tau)
