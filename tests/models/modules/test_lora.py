"""LoRA compared with the explicit formula W + scale B A, in float64."""

from __future__ import annotations

import copy
from importlib import import_module

import pytest
import torch
from helpers.hf_models import FAMILIES, small_architecture
from helpers.query_methods import build_method
from torch import nn
from torch.func import functional_call

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.models.backbones.common import represent
from sce_video.models.modules.lora import add_adapters, merged_weights
from sce_video.registry import MODELS

RANK, ALPHA = 3, 5
SMALL = dict(type="VisionTransformer3d", depth=2, embed_dims=8, num_heads=2, patch_size=8)


def network(kind: str) -> nn.Module:
    """Build a model with a small backbone, ours or one of transformers."""
    config = dict(SMALL, position="learned")
    if kind in FAMILIES:
        if kind == "pe_video" and not import_module("transformers.utils").is_timm_available():
            pytest.skip("transformers builds networks of timm only next to torchvision")
        config = dict(type="HFEncoder", architecture=small_architecture(kind))
    torch.manual_seed(0)
    holder = nn.Module()
    holder.backbone = MODELS.build(config).double()
    return holder


@pytest.mark.parametrize("kind", ["VisionTransformer3d", *FAMILIES])
def test_output_and_gradients_are_those_of_the_formula(kind):
    """At first, features equal the source's exactly, later those of W + scale B A."""
    plain = network(kind).eval()
    adapted = copy.deepcopy(plain)
    layers = add_adapters(adapted, RANK, ALPHA)
    view = torch.rand(2, 3, 4, 32, 32, dtype=torch.float64)
    assert torch.equal(represent(adapted.backbone, view), represent(plain.backbone, view))

    trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == {"lora_A", "lora_B"}
    assert len(trained) == 2 * layers
    for parameter in trained.values():
        nn.init.normal_(parameter, std=0.3)
    weights, leaves = dict(plain.named_parameters()), {}
    for part in (name.removesuffix(".lora_A") for name in trained if name.endswith("A")):
        A, B = (adapted.get_parameter(f"{part}.lora_{x}").detach().clone() for x in "AB")
        leaves |= {f"{part}.lora_A": A.requires_grad_(), f"{part}.lora_B": B.requires_grad_()}
        weights[f"{part}.weight"] = weights[f"{part}.weight"] + ALPHA / RANK * (B @ A)
    inner = {name.removeprefix("backbone."): value for name, value in weights.items()}
    formula = functional_call(plain.backbone, inner, (view,)).mean(dim=(2, 3, 4))
    h = represent(adapted.backbone, view)
    torch.testing.assert_close(h, formula, rtol=1e-11, atol=1e-12)
    for value in (h, formula):
        value.square().sum().backward()
    for name, leaf in leaves.items():
        assert trained[name].grad.any(), name
        torch.testing.assert_close(trained[name].grad, leaf.grad, rtol=1e-9, atol=1e-10)

    plain.load_state_dict(merged_weights(adapted.state_dict()), strict=True)
    merged = represent(plain.backbone, view)
    torch.testing.assert_close(merged, h.detach(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["VisionTransformer3d", "videomae", "dinov2"])
def test_in_bfloat16_they_compute_what_the_merged_weights_compute(kind):
    """Errors are within the rounding of 8 bits, which a wrong update would exceed by far."""
    plain = network(kind).float().eval()
    adapted = copy.deepcopy(plain)
    add_adapters(adapted, RANK, ALPHA)
    for name, parameter in adapted.named_parameters():
        if name.endswith(("lora_A", "lora_B")):
            nn.init.normal_(parameter, std=0.3)
    view = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        before = represent(plain.backbone, view)
        exact = represent(adapted.backbone, view)
        plain.load_state_dict(merged_weights(adapted.state_dict()), strict=True)
        torch.testing.assert_close(represent(plain.backbone, view), exact, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            found = [represent(network.backbone, view).float() for network in (adapted, plain)]
    errors = [float((value - exact).norm() / exact.norm()) for value in (*found, before)]
    assert max(errors[:2]) < 0.1 and errors[2] > 0.3, errors


def test_adapters_alone_are_trained_and_averaged():
    model = build_method("SCE", backbone=SMALL)
    backbone = model.backbone
    depth, C = len(backbone.blocks), backbone.out_channels
    assert add_adapters(model, RANK) == 4 * depth
    # in + out of qkv C -> 3C, proj C -> C, fc1 C -> 4C and fc2 4C -> C
    trained = [p for p in backbone.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == depth * RANK * C * (4 + 2 + 5 + 5)
    before = {n: v.clone() for n, v in backbone.state_dict().items()}
    target = model.target.backbone
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())
    assert not any(p.requires_grad for p in target.parameters())

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.loss(list(torch.rand(2, 8, 3, 4, 32, 32)))["loss"].backward()
    optimizer.step()
    model.after_optimizer_step()
    for name, value in target.state_dict().items():
        online = backbone.state_dict()[name]
        if name.endswith(("lora_A", "lora_B")):
            average = model.momentum * before[name] + (1 - model.momentum) * online
            torch.testing.assert_close(value, average)
            assert name.endswith("A") or not torch.equal(online, before[name])
        else:
            assert torch.equal(value, before[name]) and torch.equal(online, before[name])


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        (dict(type="ResNet2d", depth=18, base_channels=4), {}, r"this network has none .ResNet2d"),
        (dict(type="S3D", base_channels=4, gating=True), {}, r"this network has none .S3D"),
        (dict(SMALL, frozen_stages=4), {}, "but all of them are frozen .VisionTransformer3d"),
        (SMALL, dict(rank=0), "lora.rank must be .* got 0"),
        (SMALL, dict(rank=9), "lora.rank must be at most 8.* got 9"),
        (SMALL, dict(alpha=-1.0), "lora.alpha must be above 0, got -1.0"),
    ],
)
def test_what_cannot_be_adapted_is_one_sentence(backbone, options, message):
    model = nn.Module()
    model.backbone = MODELS.build(backbone)
    with pytest.raises(ValueError, match=message):
        add_adapters(model, **{"rank": 4, **options})
    assert not [name for name in model.state_dict() if "lora" in name]


def test_frozen_blocks_have_no_adapters():
    model = build_method("SCE", backbone={**SMALL, "frozen_stages": 2})
    assert add_adapters(model, RANK) == 4
    model.train()
    names = [n for n, p in model.backbone.named_parameters() if p.requires_grad]
    assert {name.split(".")[1] for name in names} == {"1"}


def adapter(**changes) -> dict[str, torch.Tensor]:
    A, B = torch.ones(2, 4), torch.ones(3, 2)
    found = {"weight": torch.ones(3, 4), "lora_A": A, "lora_B": B, "lora_scale": torch.tensor(0.5)}
    return {f"x.{name}": value for name, value in {**found, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (adapter(lora_scale=None), "x needs a weight and lora_A, lora_B, lora_scale"),
        (adapter(weight=torch.ones(3, 4, dtype=torch.int64)), "x needs a weight"),
        (
            adapter(lora_B=torch.ones(10**6, 2)),
            r"are \(3, 4\), \(2, 4\), \(1000000, 2\)",
        ),
        (adapter(lora_A=torch.ones(9, 4), lora_B=torch.ones(3, 9)), "does not fit"),
        (adapter(lora_A=torch.tensor(1.0)), "does not fit"),
        (adapter(lora_scale=torch.ones(1)), "does not fit"),
    ],
)
def test_files_with_other_adapters(tmp_path, weights, message):
    torch.save({"state_dict": weights}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=rf"a\.pth is not a readable checkpoint.*{message}"):
        load_checkpoint_file(tmp_path / "a.pth")


def test_a_small_file_stays_small(tmp_path):
    """A thousand views of one storage must not become a thousand merged weights."""
    shared, weights = torch.zeros(100, 100), {}
    for i in range(1000):
        small = dict(lora_A=shared[:1], lora_B=shared[:, :1], lora_scale=shared[0, 0])
        weights |= {f"{i}.{name}": x for name, x in dict(weight=shared, **small).items()}
    torch.save({"state_dict": weights}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="weights that share their memory"):
        load_checkpoint_file(tmp_path / "a.pth")
