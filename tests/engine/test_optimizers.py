"""LARS against a plain loop in numpy, one parameter at a time; layer decay against names."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from helpers.hf_models import FAMILIES, small_architecture
from helpers.query_methods import NEEDED, SMALL
from torch import nn

from sce_video.engine.optimizers import LARS, NoNormDecayConstructor
from sce_video.registry import MODELS

SHAPES = [(5,), (), (4, 3), (2, 3, 3, 3), (4, 2, 1, 3, 3), (7,), (1, 1)]


def reference_step(p, grad, buffer, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=0.001):
    """One step of one array in the order of eztorch's LARS; returns the new array and buffer."""
    g = grad
    if p.ndim > 1:
        g = grad + weight_decay * p
        p_norm, g_norm = np.sqrt((p * p).sum()), np.sqrt((g * g).sum())
        if p_norm != 0 and g_norm != 0:
            g = g * (trust_coefficient * p_norm / g_norm)
    buffer = momentum * buffer + g
    return p - lr * buffer, buffer


def slowfast_step(p, grad, buffer, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=0.001,
                  nesterov=True):  # fmt: skip
    """One step of SlowFast's LARS around torch's SGD; returns the new array and buffer."""
    g = grad
    if p.ndim != 1 and p.ndim != 0:
        p_norm, g_norm = np.sqrt((p * p).sum()), np.sqrt((g * g).sum())
        if p_norm != 0 and g_norm != 0:
            rate = trust_coefficient * p_norm / (g_norm + p_norm * weight_decay + 1e-8)
            g = (grad + weight_decay * p) * rate
    buffer = momentum * buffer + g
    return p - lr * (g + momentum * buffer if nesterov else buffer), buffer


def _run(groups, lrs, dtype, grads_of, plain_step=reference_step, **options):
    """LARS and a plain step over the same gradients; returns both lists of final arrays."""
    params = [[nn.Parameter(torch.tensor(p, dtype=dtype)) for p in arrays] for arrays, _ in groups]
    optimizer = LARS(
        [{"params": ps, **settings} for ps, (_, settings) in zip(params, groups, strict=True)],
        lr=1.0,
        **options,
    )
    plain = [[(p.copy(), np.zeros_like(p)) for p in arrays] for arrays, _ in groups]
    for step, lr in enumerate(lrs):
        for g, (_, settings) in enumerate(groups):
            optimizer.param_groups[g]["lr"] = lr * (g + 1)
            for i, param in enumerate(params[g]):
                grad = grads_of(step, g, i, param.shape)
                param.grad = None if grad is None else torch.tensor(grad, dtype=dtype)
                if grad is not None:
                    array, buffer = plain[g][i]
                    rate = lr * (g + 1)
                    plain[g][i] = plain_step(array, grad, buffer, rate, **settings)
        optimizer.step()
    return params, plain


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_equals_the_plain_loop_over_changing_rates(dtype, tolerance):
    rng = np.random.default_rng(0)
    first = [rng.normal(size=shape) for shape in SHAPES] + [np.zeros((3, 2))]
    second = [rng.normal(size=shape) for shape in SHAPES[2:]]
    third = [rng.normal(size=(3, 3))]
    groups = [
        (first, dict(weight_decay=0.1)),
        (second, dict(momentum=0.5, trust_coefficient=0.02)),
        (third, dict(momentum=0.0, weight_decay=1e-6)),
    ]
    noise = {}

    def grads(step, group, i, shape):
        if (group, i) == (1, 0):
            return np.zeros(shape)  # a zero gradient, no weight decay: the update's norm is 0
        if (group, i) == (1, 1) and step % 3 == 0:
            return None  # not used in this step
        return noise.setdefault((step, group, i), rng.normal(size=shape))

    lrs = [4.8 * (1 + np.cos(np.pi * k / 25)) * min(1, k / 6) for k in range(25)]
    params, plain = _run(groups, lrs, dtype, grads)
    for moved, expected in zip(params, plain, strict=True):
        for param, (array, _) in zip(moved, expected, strict=True):
            np.testing.assert_allclose(
                param.detach().double().numpy(), array, rtol=tolerance, atol=tolerance
            )
    assert torch.equal(params[1][0].double(), torch.tensor(second[0]).to(dtype).double())


@pytest.mark.parametrize("nesterov", [True, False])
def test_equals_the_plain_loop_of_slowfast(nesterov):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in SHAPES] + [np.zeros((3, 2)), np.ones((2, 2))]

    def grads(step, group, i, shape):  # the last one has no gradient: no decay either
        return np.zeros(shape) if i == len(arrays) - 1 else rng.normal(size=shape)

    groups = [(arrays, dict(weight_decay=0.1, trust_coefficient=0.02))]
    lrs = [4.8, 2.0, 0.5, 1.0, 3.0]

    def plain_step(*args, **settings):
        return slowfast_step(*args, **settings, nesterov=nesterov)

    options = dict(nesterov=nesterov, separate_norms=True)
    (moved,), (plain,) = _run(groups, lrs, torch.float64, grads, plain_step, **options)
    for param, (array, _) in zip(moved, plain, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), array, rtol=1e-12, atol=1e-12)
    assert torch.equal(moved[-1].detach(), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_norms_are_fp32(dtype):
    # Both norms, 3e5 and 9e6, are beyond the 65504 of fp16.
    value = torch.full((300, 300), 1000.0)
    grad = torch.full((300, 300), 30000.0)
    moved = []
    for kind in (dtype, torch.float32):
        param = nn.Parameter(value.to(kind))
        param.grad = grad.to(kind)
        LARS([param], lr=20.0, trust_coefficient=1e-3).step()
        assert param.dtype == kind
        moved.append(param.detach().float())
    assert moved[1][0, 0] == pytest.approx(980, rel=1e-5)
    torch.testing.assert_close(moved[0], moved[1], rtol=4e-3, atol=0)


def test_state_is_saved_and_loaded_bit_by_bit(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(32, 5))
    settings = dict(lr=0.5, momentum=0.9, weight_decay=1e-3)
    optimizer = LARS(model.parameters(), **settings)
    clips = torch.randn(8, 2, 3, 4, 4, 4)

    def train(network, opt, steps):
        for clip in clips[steps]:
            opt.zero_grad()
            network(clip).square().mean().backward()
            opt.step()

    train(model, optimizer, slice(0, 4))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pth")
    resumed = copy.deepcopy(model)
    other = LARS(resumed.parameters(), lr=9.0)
    other.load_state_dict(torch.load(tmp_path / "optimizer.pth", weights_only=True))
    assert other.param_groups[0]["lr"] == 0.5
    train(model, optimizer, slice(4, 8))
    train(resumed, other, slice(4, 8))
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(lr=-1.0), "lr must .* got -1.0"),
        (dict(lr=1.0, momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (dict(lr=1.0, weight_decay=-1e-6), "weight_decay must .* got -1e-06"),
        (dict(lr=1.0, trust_coefficient=0.0), "trust_coefficient must be above 0"),
    ],
)
def test_bad_settings_are_named(settings, message):
    params = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match=message):
        LARS(params, **settings)
    with pytest.raises(ValueError, match=message):
        LARS([{"params": params, **settings}], lr=1.0)
    with pytest.raises(ValueError, match="unknown key 'wight_decay'"):
        LARS([{"params": params, "wight_decay": 0.1}], lr=1.0)


def test_a_sparse_gradient_is_refused():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"sparse gradient of shape \(4, 2\)"):
        LARS(embedding.parameters(), lr=1.0).step()


def constructor(**paramwise):
    optimizer = dict(type="LARS", lr=0.4, weight_decay=0.1)
    return NoNormDecayConstructor(dict(type="OptimWrapper", optimizer=optimizer), paramwise)


def depth_by_name(name: str) -> int | None:
    """Depth of a parameter, by its name alone; None for what follows the last block."""
    if name.startswith("network.mit."):  # X-CLIP's, on the frames' embeddings
        return None
    if block := re.match(r"(?:blocks|temporal|network(?:\.\w+)*\.layers?)\.(\d+)\.", name):
        return int(block[1]) + 1
    if name.startswith("head.0."):  # EfficientNet-Lite: the last convolution, after seven stages
        return 8
    if stage := re.match(r"layer(\d)\.", name):
        return int(stage[1])
    if layer := re.match(r"features\.(\d+)\.", name):  # S3D: the indices of its poolings
        return sum(int(layer[1]) > pooling for pooling in (1, 4, 7, 13))
    first = r"(conv1|bn1|stem|patch_embed|position_|network\.(\w+\.)*(embeddings|pre_lay\w+)\.)"
    return 0 if re.match(first, name) else None


@pytest.mark.parametrize("kind", [*sorted(set(SMALL) - set(NEEDED)), *FAMILIES[:7]])
def test_layer_decay_equals_a_loop_over_names(kind):
    config = {"type": kind, **SMALL.get(kind, {})}
    if kind in FAMILIES:
        config = dict(type="HFEncoder", architecture=small_architecture(kind))
    elif kind == "VisionTransformer3d":
        config |= dict(position="learned")
    model = nn.ModuleDict({"backbone": MODELS.build(config), "head": nn.Linear(2, 2)})
    model.backbone = model["backbone"]
    # One more than the stages of a convolutional network, or than the two blocks of a transformer.
    last = {"VisionTransformer3d": 3, "EfficientNetLite": 9}.get(kind, 5 if kind in SMALL else 3)
    groups = constructor(layer_decay=0.75, no_decay=["bias"])(model).optimizer.param_groups
    found = {p: group for group in groups for p in group["params"]}
    assert groups[0]["lr"] == 0.4  # the rate in the log
    for name, p in model.named_parameters():
        if not p.requires_grad:
            assert name.endswith("mask_token") and p not in found
            continue
        depth = depth_by_name(name.removeprefix("backbone."))
        factor = 0.75 ** (last - (last if depth is None else depth))
        assert found[p]["lr"] == pytest.approx(0.4 * factor, rel=1e-12), name
        assert found[p]["lr_scale"] == pytest.approx(factor, rel=1e-12)
        norm = isinstance(model.get_submodule(name.rpartition(".")[0]), nn.LayerNorm)
        if norm or "bn" in name or name.endswith("bias"):
            assert found[p]["weight_decay"] == 0, name
    assert {group["weight_decay"] for group in groups} == {0, 0.1}
    assert len(groups) == 2 * (last + 1)


def test_layer_decay_needs_layers():
    model = nn.Module()
    model.backbone = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="layer_decay=0.75 needs a backbone that lists its layers"):
        constructor(layer_decay=0.75)(model)
    for bad in (0, 1.5, "0.75", True):
        with pytest.raises(ValueError, match="layer_decay must be above 0 and at most 1, got"):
            constructor(layer_decay=bad)
