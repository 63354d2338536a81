"""The SCE loss against a loop in numpy, golden values and Proposition 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sce_video.models.losses import sce_loss, sce_terms


def loop_sce(z1, z2, queue, lambda_, tau, tau_m, mask_positive):
    """Eq. 3, 7, 8 and 9 written out, one query and one key at a time, in float64."""
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
@pytest.mark.parametrize("lambda_", [0.0, 0.125, 0.5, 1.0])
@pytest.mark.parametrize(("tau", "tau_m"), [(0.1, 0.05), (0.1, 0.07), (1.0, 0.5)])
def test_equals_the_loop(mask_positive, lambda_, tau, tau_m):
    arrays, tensors = inputs()
    expected = loop_sce(*arrays, lambda_, tau, tau_m, mask_positive)
    options = dict(lambda_=lambda_, tau=tau, tau_m=tau_m, mask_positive=mask_positive)
    assert sce_loss(*tensors, **options).item() == pytest.approx(expected, abs=1e-10)
    single = [t.float() for t in tensors]
    assert sce_loss(*single, **options).item() == pytest.approx(expected, abs=1e-5)


# Computed once with the loop above on the closed-form vectors of `golden_inputs`; fixed here to
# detect a change of both the code and the loop.
GOLDEN = {
    (True, 0.5, 0.05): 1.3003320395,
    (True, 0.125, 0.07): 1.4228718526,
    (True, 0.5, 0.5): 2.5323288754,
    (False, 0.5, 0.5): 2.4826249527,
    (False, 0.125, 0.07): 1.4228717573,
}


def golden_inputs():
    def vectors(rows, columns, phase):
        grid = np.arange(rows)[:, None] * 1.7 + np.arange(columns)[None] * 0.9 + phase
        x = np.cos(grid) + 0.3 * np.sin(grid * grid)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return vectors(4, 6, 0.0), vectors(4, 6, 0.2), vectors(12, 6, 2.5)


@pytest.mark.parametrize(("mask_positive", "lambda_", "tau_m"), list(GOLDEN))
def test_golden_values(mask_positive, lambda_, tau_m):
    tensors = [torch.from_numpy(a) for a in golden_inputs()]
    loss = sce_loss(*tensors, lambda_=lambda_, tau=0.1, tau_m=tau_m, mask_positive=mask_positive)
    assert loss.item() == pytest.approx(GOLDEN[mask_positive, lambda_, tau_m], abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.5, 1.0])
def test_proposition_1(seed, lambda_):
    _, (query, key, queue) = inputs(seed, n=16, k=256, d=32, dtype=torch.float32)
    terms = sce_terms(query, key, queue, lambda_=lambda_, tau=0.1, tau_m=0.05)
    parts = lambda_ * terms.infonce + (1 - lambda_) * (terms.ressl + terms.ceil)
    assert terms.loss.item() == pytest.approx(parts.item(), abs=1e-5)


def test_lambda_one_is_infonce():
    _, (query, key, queue) = inputs(dtype=torch.float32)
    logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], dim=1) / 0.1
    expected = F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.int64))
    assert sce_loss(query, key, queue, lambda_=1.0).item() == pytest.approx(expected.item(), 1e-5)


def test_both_variants_are_close_with_a_filled_queue():
    rng = np.random.default_rng(3)
    query, key = (torch.from_numpy(unit(rng, 8, 16)) for _ in range(2))
    # The keys of a trained queue resemble those of the batch.
    queue = F.normalize(key.repeat(512, 1) + 0.3 * torch.from_numpy(unit(rng, 4096, 16)), dim=1)
    masked = sce_loss(query, key, queue)
    pseudo_code = sce_loss(query, key, queue, mask_positive=False)
    assert masked.item() != pseudo_code.item()
    assert masked.item() == pytest.approx(pseudo_code.item(), abs=1e-5)


def test_gradient_is_correct_and_reaches_the_query_only():
    _, (query, key, queue) = inputs(n=3, k=7, d=5)
    query.requires_grad_(), key.requires_grad_(), queue.requires_grad_()
    sce_loss(query, key, queue).backward()
    assert key.grad is None and queue.grad is None
    assert torch.autograd.gradcheck(
        lambda q: sce_loss(q, key.detach(), queue.detach()), (query.detach().requires_grad_(),)
    )


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


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(lambda_=1.5), "lambda_.*1.5"),
        (dict(tau=0.0), "tau=0"),
        (dict(tau_m=-1.0), "tau_m=-1"),
    ],
)
def test_bad_values_are_named(change, match):
    _, tensors = inputs()
    with pytest.raises(ValueError, match=match):
        sce_loss(*tensors, **change)


def test_bad_shapes_are_named():
    _, (query, key, queue) = inputs()
    with pytest.raises(ValueError, match="same shape"):
        sce_loss(query, key[:2], queue)
    with pytest.raises(ValueError, match="queue"):
        sce_loss(query, key, queue[:, :3])
    with pytest.raises(ValueError, match="queue"):
        sce_loss(query, key, queue[:0])
