"""The SCE loss compared with a loop in numpy, golden values and Proposition 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sce_video.models.losses import (
    ceil_loss,
    info_nce_loss,
    ressl_loss,
    sce_free_loss,
    sce_loss,
    sce_terms,
)


def loop_sce(z1, z2, queue, lambda_, tau, tau_m, mask_positive):
    """Compute eq. 3, 7, 8 and 9 in float64, one query and one key at a time."""
    total = 0.0
    for i in range(len(z1)):
        relations = [math.exp(float(z2[i] @ q) / tau_m) for q in queue]
        positive_relation = 0.0 if mask_positive else math.exp(0.0)
        mass = positive_relation + sum(relations)
        w2 = [lambda_ + (1 - lambda_) * positive_relation / mass]
        w2 += [(1 - lambda_) * r / mass for r in relations]
        online = [math.exp(float(z1[i] @ z2[i]) / tau)]
        online += [math.exp(float(z1[i] @ q) / tau) for q in queue]
        p1 = [o / sum(online) for o in online]
        total -= sum(w * math.log(p) for w, p in zip(w2, p1, strict=True))
    return total / len(z1)


def unit(rng, *shape):
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def inputs(seed=0, n=5, k=17, d=8, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    arrays = [unit(rng, n, d), unit(rng, n, d), unit(rng, k, d)]
    return arrays, [torch.from_numpy(a).to(dtype) for a in arrays]


@pytest.mark.parametrize("mask_positive", [True, False])
@pytest.mark.parametrize("lambda_", [0.0, 0.125, 1.0])
@pytest.mark.parametrize(("tau", "tau_m"), [(0.1, 0.05), (1.0, 0.5)])
def test_equals_the_loop(mask_positive, lambda_, tau, tau_m):
    arrays, tensors = inputs()
    expected = loop_sce(*arrays, lambda_, tau, tau_m, mask_positive)
    options = dict(lambda_=lambda_, tau=tau, tau_m=tau_m, mask_positive=mask_positive)
    assert sce_loss(*tensors, **options).item() == pytest.approx(expected, abs=1e-10)
    single = [t.float() for t in tensors]
    assert sce_loss(*single, **options).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_proposition_1(lambda_):
    _, (query, key, queue) = inputs(n=16, k=256, d=32, dtype=torch.float32)
    terms = sce_terms(query, key, queue, lambda_=lambda_, tau=0.1, tau_m=0.05)
    parts = lambda_ * terms.infonce + (1 - lambda_) * (terms.ressl + terms.ceil)
    assert terms.loss.item() == pytest.approx(parts.item(), abs=1e-5)


def test_target_entropy_and_similarity():
    arrays, (query, key, queue) = inputs()
    terms = sce_terms(query, key, queue, lambda_=0.5, tau_m=0.05)
    entropies = []
    for z2 in arrays[1]:
        relations = np.exp(arrays[2] @ z2 / 0.05)
        w2 = np.concatenate([[0.5], 0.5 * relations / relations.sum()])
        entropies.append(-(w2 * np.log(w2)).sum())
    assert terms.target_entropy.item() == pytest.approx(np.mean(entropies), abs=1e-9)
    cosine = np.mean([a @ b for a, b in zip(arrays[0], arrays[1], strict=True)])
    assert terms.positive_similarity.item() == pytest.approx(cosine, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_fp32_under_mixed_precision(dtype):
    _, (query, key, queue) = inputs(dtype=torch.float32)
    plain = sce_loss(query, key, queue)
    with torch.autocast("cpu", dtype=dtype):
        mixed = sce_loss(query, key, queue)
    assert mixed.dtype == torch.float32
    assert mixed.item() == plain.item()
    assert torch.isfinite(sce_loss(query.to(dtype), key.to(dtype), queue.to(dtype), tau_m=0.01))


# InfoNCE, ReSSL, Ceil and eq. 10 compared with a loop in numpy, golden values and SCE.


LOSSES = {
    "infonce": lambda q, k, m: info_nce_loss(q, k, m, tau=0.1),
    "ressl": lambda q, k, m: ressl_loss(q, k, m, tau=0.1, tau_m=0.05),
    "ceil": lambda q, k, m: ceil_loss(q, k, m, tau=0.1),
    "free": lambda q, k, m: sce_free_loss(
        q, k, m, lambda_=0.3, mu=0.6, eta=0.2, tau=0.1, tau_m=0.05
    ),
    "sce": lambda q, k, m: sce_loss(q, k, m, lambda_=0.3, tau=0.1, tau_m=0.05),
}


def loop(query, key, queue, tau, tau_m):
    """Compute the equations in float64, one sample and one key at a time."""
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
    infonce, ressl, ceil = infonce / n, ressl / n, ceil / n
    free, sce = 0.3 * infonce + 0.6 * ressl + 0.2 * ceil, 0.3 * infonce + 0.7 * (ressl + ceil)
    return dict(infonce=infonce, ressl=ressl, ceil=ceil, free=free, sce=sce)


def tensors_of(**options):
    return inputs(**options)[1]


@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_loop_of_sce_parts(name):
    tensors = tensors_of()
    expected = loop(*(x.numpy() for x in tensors), 0.1, 0.05)[name]
    assert LOSSES[name](*tensors).item() == pytest.approx(expected, abs=1e-10)
    single = LOSSES[name](*(x.float() for x in tensors))
    assert single.dtype == torch.float32 and single.ndim == 0
    assert single.item() == pytest.approx(expected, abs=1e-5)


FREE = dict(lambda_=0.3, mu=0.6, eta=0.2)


def test_free_coefficients_weight_the_parts_of_the_loop():
    """Compare eq. 10 and its logged components with loops in float64. The target has mass 1."""
    arrays, tensors = inputs()
    terms = sce_terms(*tensors, **FREE, tau=0.1, tau_m=0.05)
    expected = loop(*arrays, 0.1, 0.05)
    for name, value in dict(loss="free", infonce="infonce", ressl="ressl", ceil="ceil").items():
        assert getattr(terms, name).item() == pytest.approx(expected[value], abs=1e-12)
    entropies = []
    for key in arrays[1]:
        relations = [math.exp(float(key @ m) / 0.05) for m in arrays[2]]
        w2 = [0.3 / 0.9, *(0.6 / 0.9 * r / sum(relations) for r in relations)]
        entropies.append(-sum(w * math.log(w) for w in w2))
    assert terms.target_entropy.item() == pytest.approx(np.mean(entropies), abs=1e-12)


def test_gradient_of_free_coefficients_equals_the_formula():
    """Compare with derivatives of eq. 10 by hand, for the logits of the key and the negatives."""
    (queries, keys, queue), tensors = inputs()
    query = tensors[0].requires_grad_()
    sce_terms(query, *tensors[1:], **FREE, tau=0.1, tau_m=0.05).loss.backward()
    for q, k, found in zip(queries, keys, query.grad.numpy(), strict=True):
        positive, negatives = math.exp(q @ k / 0.1), np.exp(queue @ q / 0.1)
        relations = np.exp(queue @ k / 0.05)
        total = positive + negatives.sum()
        among_negatives = negatives / negatives.sum()
        of_positive = 0.3 * (positive / total - 1) + 0.2 * positive / total
        of_negatives = 0.3 * negatives / total
        of_negatives += 0.6 * (among_negatives - relations / relations.sum())
        of_negatives += 0.2 * (negatives / total - among_negatives)
        expected = (of_positive * k + of_negatives @ queue) / 0.1 / len(queries)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


class CountProducts(TorchDispatchMode):
    """Count the products with the queue."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.mm.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("loss", "products"),
    [
        (lambda *x: sce_terms(*x), 2),
        (lambda *x: sce_terms(*x, **FREE), 2),
        (LOSSES["free"], 2),
        (LOSSES["ressl"], 2),
        (LOSSES["infonce"], 1),
        (LOSSES["ceil"], 1),
    ],
    ids=["one lambda", "free coefficients", "eq. 10", "ressl", "infonce", "ceil"],
)
def test_queries_and_keys_are_multiplied_with_the_queue_once(loss, products):
    with CountProducts() as mode:
        loss(*tensors_of())
    assert mode.count == products


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_correct_and_reaches_the_query_only_of_sce_parts(name):
    query, key, queue = (x.requires_grad_() for x in tensors_of(n=3, k=7, d=5))
    LOSSES[name](query, key, queue).backward()
    assert query.grad.abs().max() > 0
    assert key.grad is None and queue.grad is None
    assert torch.autograd.gradcheck(
        lambda q: LOSSES[name](q, key.detach(), queue.detach()), (query.detach().requires_grad_(),)
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(tau=0.0), "tau must be .* got 0.0"),
        (dict(tau_m=math.nan), "tau_m must be .* got nan"),
        (dict(lambda_=-0.5), "coefficient lambda_ .* got -0.5"),
        (dict(mu=math.inf), "coefficient mu .* got inf"),
        (dict(eta=-1), "coefficient eta .* got -1"),
        (dict(lambda_=0, mu=0, eta=1), "nothing brings query and key together"),
    ],
)
def test_bad_values_are_named_of_sce_parts(change, match):
    good = dict(lambda_=0.5, mu=0.5, eta=0.5, tau=0.1, tau_m=0.05)
    with pytest.raises(ValueError, match=match):
        sce_free_loss(*tensors_of(), **{**good, **change})


@pytest.mark.parametrize("given", [dict(mu=0.5), dict(eta=0.5)])
def test_one_of_two_coefficients_is_refused(given):
    with pytest.raises(ValueError, match="needs both mu and eta, got mu="):
        sce_terms(*tensors_of(), **given)


@pytest.mark.parametrize("name", LOSSES)
def test_bad_shapes_are_named_of_sce_parts(name):
    query, key, queue = tensors_of()
    with pytest.raises(ValueError, match="same shape"):
        LOSSES[name](query, key[:2], queue)
    for wrong in (queue[:, :3], queue[:0]):
        with pytest.raises(ValueError, match="queue must be"):
            LOSSES[name](query, key, wrong)
