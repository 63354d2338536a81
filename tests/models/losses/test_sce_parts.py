"""InfoNCE, ReSSL, Ceil and eq. 10 against a loop in numpy, golden values and SCE."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import (
    ceil_loss,
    info_nce_loss,
    ressl_loss,
    sce_free_loss,
    sce_loss,
    sce_warnings,
    sharpness_warnings,
)

LOSSES = {
    "infonce": lambda q, k, m: info_nce_loss(q, k, m, tau=0.1),
    "ressl": lambda q, k, m: ressl_loss(q, k, m, tau=0.1, tau_m=0.05),
    "ceil": lambda q, k, m: ceil_loss(q, k, m, tau=0.1),
    "free": lambda q, k, m: sce_free_loss(
        q, k, m, lambda_=0.3, mu=0.6, eta=0.2, tau=0.1, tau_m=0.05
    ),
}


def loop(query, key, queue, tau, tau_m):
    """The equations one sample and one key at a time, in float64."""
    infonce = ressl = ceil = 0.0
    for q, k in zip(query, key, strict=True):
        positive = math.exp(float(q @ k) / tau)
        negatives = [math.exp(float(q @ m) / tau) for m in queue]
        relations = [math.exp(float(k @ m) / tau_m) for m in queue]
        infonce -= math.log(positive / (positive + sum(negatives)))
        ceil -= math.log(sum(negatives) / (positive + sum(negatives)))
        for relation, negative in zip(relations, negatives, strict=True):
            ressl -= relation / sum(relations) * math.log(negative / sum(negatives))
    n = len(query)
    parts = dict(infonce=infonce / n, ressl=ressl / n, ceil=ceil / n)
    return {**parts, "free": 0.3 * parts["infonce"] + 0.6 * parts["ressl"] + 0.2 * parts["ceil"]}


def inputs(seed=0, n=5, k=17, d=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    make = lambda rows: F.normalize(torch.randn(rows, d, generator=generator).double(), dim=1)  # noqa: E731
    return [x.to(dtype) for x in (make(n), make(n), make(k))]


def golden_inputs():
    def vectors(rows, columns, phase):
        grid = np.arange(rows)[:, None] * 1.7 + np.arange(columns)[None] * 0.9 + phase
        x = np.cos(grid) + 0.3 * np.sin(grid * grid)
        return torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))

    return vectors(4, 6, 0.0), vectors(4, 6, 0.2), vectors(12, 6, 2.5)


@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_loop(name):
    tensors = inputs()
    expected = loop(*(x.numpy() for x in tensors), 0.1, 0.05)[name]
    assert LOSSES[name](*tensors).item() == pytest.approx(expected, abs=1e-10)
    single = LOSSES[name](*(x.float() for x in tensors))
    assert single.dtype == torch.float32 and single.ndim == 0
    assert single.item() == pytest.approx(expected, abs=1e-5)


# Computed once with the loop above; fixed here to detect a change of both the code and the loop.
GOLDEN = {
    "infonce": 1.2125476338,
    "ressl": 1.0317334756,
    "ceil": 0.3563829697,
    "free": 1.0540809694,
}


@pytest.mark.parametrize("name", LOSSES)
def test_golden_values(name):
    assert LOSSES[name](*golden_inputs()).item() == pytest.approx(GOLDEN[name], abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_correct_and_reaches_the_query_only(name):
    query, key, queue = (x.requires_grad_() for x in inputs(n=3, k=7, d=5))
    LOSSES[name](query, key, queue).backward()
    assert query.grad.abs().max() > 0
    assert key.grad is None and queue.grad is None
    assert torch.autograd.gradcheck(
        lambda q: LOSSES[name](q, key.detach(), queue.detach()), (query.detach().requires_grad_(),)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_computed_in_fp32_under_mixed_precision(name, dtype):
    tensors = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        mixed = LOSSES[name](*tensors)
    assert mixed.dtype == torch.float32
    assert mixed.item() == LOSSES[name](*tensors).item()
    assert torch.isfinite(LOSSES[name](*(x.to(dtype) for x in tensors)))


def value_and_gradient(loss, tensors):
    query = tensors[0].clone().requires_grad_()
    value = loss(query, *tensors[1:])
    value.backward()
    return value.detach(), query.grad


def assert_same(first, second, tensors):
    for a, b in zip(
        value_and_gradient(first, tensors), value_and_gradient(second, tensors), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.125, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_free_coefficients_of_one_minus_lambda_are_sce(lambda_, dtype):
    rest = 1 - lambda_
    assert_same(
        lambda *x: sce_free_loss(*x, lambda_=lambda_, mu=rest, eta=rest, tau=0.1, tau_m=0.05),
        lambda *x: sce_loss(*x, lambda_=lambda_, tau=0.1, tau_m=0.05),
        inputs(n=16, k=256, d=32, dtype=dtype),
    )


def test_lambda_one_is_infonce():
    tensors = inputs(n=16, k=64, dtype=torch.float32)
    sce = lambda *x: sce_loss(*x, lambda_=1.0, tau=0.1)  # noqa: E731

    def cross_entropy(query, key, queue):
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], dim=1) / 0.1
        return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.int64))

    assert_same(LOSSES["infonce"], sce, tensors)
    assert_same(LOSSES["infonce"], cross_entropy, tensors)


def test_lambda_zero_is_ressl_plus_ceil_and_not_ressl():
    tensors = inputs(n=16, k=64, dtype=torch.float32)
    sce = lambda *x: sce_loss(*x, lambda_=0.0, tau=0.1, tau_m=0.05)  # noqa: E731
    both = lambda *x: LOSSES["ressl"](*x) + LOSSES["ceil"](*x)  # noqa: E731
    assert_same(sce, both, tensors)
    (value, gradient), (other, other_gradient) = (
        value_and_gradient(loss, tensors) for loss in (sce, LOSSES["ressl"])
    )
    assert abs(value - other) > 1e-3
    assert (gradient - other_gradient).abs().max() > 1e-4


def test_ceil_alone_pushes_query_and_key_apart():
    query, key, queue = inputs()
    _, gradient = value_and_gradient(LOSSES["ceil"], (query, key, queue))
    without = query - 0.01 * gradient
    assert ((without - query) * key).sum() < 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(tau=0.0), "tau must be .* got 0.0"),
        (dict(tau_m=math.nan), "tau_m must be .* got nan"),
        (dict(lambda_=-0.5), "coefficient lambda_ .* got -0.5"),
        (dict(mu=math.inf), "coefficient mu .* got inf"),
        (dict(eta=-1), "coefficient eta .* got -1"),
        (dict(lambda_=0, mu=0, eta=1), "nothing that brings query and key together"),
    ],
)
def test_bad_values_are_named(change, match):
    good = dict(lambda_=0.5, mu=0.5, eta=0.5, tau=0.1, tau_m=0.05)
    with pytest.raises(ValueError, match=match):
        sce_free_loss(*inputs(), **{**good, **change})


@pytest.mark.parametrize("name", LOSSES)
def test_bad_shapes_are_named(name):
    query, key, queue = inputs()
    with pytest.raises(ValueError, match="same shape"):
        LOSSES[name](query, key[:2], queue)
    for wrong in (queue[:, :3], queue[:0]):
        with pytest.raises(ValueError, match="queue must be"):
            LOSSES[name](query, key, wrong)


def test_warnings():
    for free in ((0.5, 0.5, 0.0), (0.3, 0.7, 2.0), (0.5, None, None)):
        assert sce_warnings(*free, 0.1, 0.2) == []
    (warning,) = sce_warnings(0.5, 1.0, 0.5, 0.1, 0.04)
    assert "add up to 1.5, not 1" in warning
    assert sharpness_warnings(0.1, 0.04) == []
    for tau_m in (0.1, 0.2):
        (warning,) = sharpness_warnings(0.1, tau_m)
        assert f"tau_m={tau_m:g} is not below tau=0.1" in warning and "collapses" in warning
