"""MLP heads of every method, attentive probes, and classifiers of boxes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

from sce_video.engine import ProbeGridConstructor
from sce_video.models import MLP
from sce_video.models.heads import AttentiveProbeHead
from sce_video.registry import MODELS


def described(mlp: MLP) -> list[str]:
    """Describe the layers as text: "8-16 bias", "bn affine", "bn", "relu"."""
    texts = []
    for layer in mlp.layers:
        if isinstance(layer, nn.Linear):
            bias = " bias" if layer.bias is not None else ""
            texts.append(f"{layer.in_features}-{layer.out_features}{bias}")
        elif isinstance(layer, nn.BatchNorm1d):
            texts.append("bn affine" if layer.affine else "bn")
        else:
            texts.append(type(layer).__name__.lower())
    return texts


HEADS = {
    "SCE projector": (
        dict(num_layers=3, norm_output=True),
        ["8-16", "bn affine", "relu", "16-16", "bn affine", "relu", "16-4", "bn"],
    ),
    "SCE on CIFAR, BYOL": (
        dict(num_layers=2, norm_output=False, bias_output=True),
        ["8-16", "bn affine", "relu", "16-4 bias"],
    ),
    "MoCo v2, ReSSL": (
        dict(num_layers=2, norm_output=False, norm_hidden=False, bias=True),
        ["8-16 bias", "relu", "16-4 bias"],
    ),
    "SimCLR": (
        dict(num_layers=2, norm_output=True, affine_output=True),
        ["8-16", "bn affine", "relu", "16-4", "bn affine"],
    ),
    "one layer": (dict(num_layers=1, norm_output=True), ["8-4", "bn"]),
}


@pytest.mark.parametrize("method", HEADS)
def test_layers_of_every_method(method):
    arguments, layers = HEADS[method]
    mlp = MODELS.build(
        dict(type="MLP", in_channels=8, hidden_channels=16, out_channels=4, **arguments)
    )
    assert described(mlp) == layers
    assert (mlp.in_channels, mlp.out_channels) == (8, 4)
    assert mlp(torch.rand(3, 8)).shape == (3, 4)


def test_heads_of_slowfast_begin_as_theirs():
    """Weights follow fvcore's ``c2_xavier_fill``, U(+-sqrt(3 / fan in)), and biases are 0."""
    options = dict(bias=True, init_cfg=dict(type="Caffe2Xavier", layer="Linear"))
    mlp = MLP(8, 16, 4, 3, False, norm_hidden=False, **options)
    torch.manual_seed(0)
    mlp.init_weights()
    torch.manual_seed(0)
    for layer in mlp.layers[::2]:
        bound = math.sqrt(3 / layer.in_features)
        assert torch.equal(layer.weight, torch.empty_like(layer.weight).uniform_(-bound, bound))
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_layers=-1), "num_layers must be at least 0, got -1"),
        (dict(num_layers=0), "num_layers=0 leaves .*out_channels to the 8 of the input, got 4"),
        (dict(num_layers=0, out_channels=8, norm_output=False), "num_layers=0 .*norm_output=True"),
        (dict(out_channels=0), "out_channels must be at least 1, got 0"),
        (dict(norm_output=False, affine_output=True), "affine_output=True needs an output BN"),
    ],
)
def test_bad_combinations(change, message):
    good = dict(in_channels=8, hidden_channels=16, out_channels=4, num_layers=2, norm_output=True)
    with pytest.raises(ValueError, match=message):
        MLP(**{**good, **change})


# Attentive probes: compared with plain attention, and a grid with single runs.


N, C, L, K, HEADS_ATTENTIVE_PROBE = 6, 12, (2, 3, 2), 5, 3
LRS, DECAYS = (1e-2, 1e-3), (0.5, 0.0)
WRAPPER = dict(
    type="MixedPrecisionOptimWrapper", dtype="float32", constructor=ProbeGridConstructor.__name__,
    optimizer=dict(type="AdamW"), clip_grad=dict(max_norm=0.05, per_group=True),
)  # fmt: skip


def build(lrs=LRS, weight_decays=DECAYS, **options) -> AttentiveProbeHead:
    torch.manual_seed(0)
    options = {"num_classes": K, "in_channels": C, "num_heads": HEADS_ATTENTIVE_PROBE, **options}
    head = AttentiveProbeHead(lrs=lrs, weight_decays=weight_decays, **options).double()
    with torch.no_grad():  # norms and biases that are not 1 and 0
        for probe in head.probes:
            torch.manual_seed(1)
            for parameter in probe.parameters():
                parameter.add_(torch.randn(parameter.shape, dtype=torch.float64), alpha=0.2)
    return head


def samples(labels):
    return [SimpleNamespace(gt_labels=SimpleNamespace(item=label[None])) for label in labels]


def batches(count, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        features = torch.randn(N, C, *L, generator=generator, dtype=torch.float64)
        yield features, torch.randint(K, (N,), generator=generator)


def wrapped(head, **changes):
    model = nn.Module()
    model.cls_head = head
    with DefaultScope.overwrite_default_scope("sce_video"):
        return build_optim_wrapper(model, {**WRAPPER, **changes})


@pytest.mark.parametrize("depth", [1, 3])
def test_is_the_attentive_classifier_of_v_jepa_2(depth):
    """Compare with transformers' V-JEPA 2 pooler, with the same weights and the authors' eps."""
    vjepa2 = pytest.importorskip("transformers.models.vjepa2.modeling_vjepa2")
    config = vjepa2.VJEPA2Config(
        hidden_size=C, num_attention_heads=HEADS_ATTENTIVE_PROBE, num_pooler_layers=depth - 1,
        mlp_ratio=4, layer_norm_eps=1e-5,
    )  # fmt: skip
    config._attn_implementation = "sdpa"  # eager takes the softmax in float32
    theirs = vjepa2.VJEPA2AttentivePooler(config).double().eval()
    head = build(LRS[:1], DECAYS[:1], depth=depth).eval()
    (probe,) = head.probes
    own = dict(probe.named_parameters())
    layer = "cross_attention_layer."
    names = {
        "query": "query_tokens", "norm": f"{layer}layer_norm1", "mlp.0": f"{layer}layer_norm2",
        "mlp.1": f"{layer}mlp.fc1", "mlp.3": f"{layer}mlp.fc2",
        **{f"to_{n}": f"{layer}cross_attn.{n[0]}_proj" for n in ("query", "key", "value")},
    }  # fmt: skip
    for i in range(depth - 1):
        block, other = f"blocks.{i}", f"self_attention_layers.{i}"
        names |= {
            f"{block}.norm1": f"{other}.layer_norm1", f"{block}.norm2": f"{other}.layer_norm2",
            f"{block}.linear1": f"{other}.mlp.fc1", f"{block}.linear2": f"{other}.mlp.fc2",
            f"{block}.self_attn.out_proj": f"{other}.self_attn.out_proj",
        }  # fmt: skip
        for end in ("weight", "bias"):
            parts = own[f"{block}.self_attn.in_proj_{end}"].chunk(3)
            for part, name in zip(parts, "qkv", strict=True):
                theirs.get_parameter(f"{other}.self_attn.{name}_proj.{end}").data.copy_(part)
    for name, parameter in own.items():
        stem, _, end = name.rpartition(".")
        other = names.get(name) or f"{names.get(stem)}.{end}"
        if "in_proj" not in name and "fc_cls" not in name:
            theirs.get_parameter(other).data.copy_(
                parameter.reshape_as(theirs.get_parameter(other))
            )
    (features, _), = batches(1)  # fmt: skip
    with torch.no_grad():
        pooled = theirs(features.flatten(2).transpose(1, 2))
        torch.testing.assert_close(head(features), probe.fc_cls(pooled), rtol=1e-9, atol=1e-12)


def train(head, steps=6):
    optim = wrapped(head)
    for features, labels in batches(steps):
        optim.update_params(head.loss(features, samples(labels))["loss"])
    return head


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grid_in_one_pass_is_a_run_for_each_point(depth):
    """Test clipping, where each probe has its own norm."""
    grid = train(build(depth=depth))
    distances = []
    for i, point in enumerate(grid.grid):
        alone = train(build((point.lr,), (point.weight_decay,), depth=depth))
        for name, parameter in alone.probes[0].named_parameters():
            other = grid.probes[i].get_parameter(name)
            torch.testing.assert_close(parameter, other, rtol=0, atol=1e-10)
        distances.append(
            float((alone.probes[0].query - build().probes[0].query).detach().abs().max())
        )
    assert len(set(distances)) == len(distances), "the points are trained differently"


def test_the_backbone_takes_no_gradient_and_keeps_its_statistics():
    config = dict(
        type="Recognizer3D",
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=2, frozen_stages=4),
        cls_head=dict(type="AttentiveProbeHead", num_classes=3, in_channels=16, lrs=(0.1, 0.01)),
        data_preprocessor=dict(type="RecognizerDataPreprocessor"),
    )

    def step(config):
        with DefaultScope.overwrite_default_scope("sce_video"):
            model = MODELS.build(config)
            optim = build_optim_wrapper(model, WRAPPER)
        model.train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        labels = samples(torch.tensor([0, 2]))
        loss = model(torch.rand(2, 1, 3, 4, 64, 64), labels, mode="loss")["loss"]
        optim.update_params(loss)
        return model, before

    model, before = step(config)
    assert all(p.grad is None and not p.requires_grad for p in model.backbone.parameters())
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {f"cls_head.{name}" for name, _ in model.cls_head.named_parameters()}
    config["backbone"]["frozen_stages"] = 3
    with pytest.raises(ValueError, match="needs a frozen backbone.*frozen_stages=4"):
        step(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lrs=()), r"grid is empty\. lrs and weight_decays.*lrs=\[\]"),
        (dict(lrs=(1e-3, 0.001, 0.1)), "contains points twice: lr0.001_wd0, lr0.001_wd0.5$"),
        (dict(lrs=(0.0,)), "above 0.*lr=0"),
        (dict(weight_decays=(-1.0,)), "weight_decay=-1"),
        (dict(num_classes=None), "two classes or more, got num_classes=0"),
        (dict(num_heads=5), "num_heads must divide the 12 channels.*got 5"),
        (dict(depth=0), "depth must be at least 1"),
        (dict(selected=4), "one of 4 grid points, got 4"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        build(**{"lrs": LRS, **options})


@pytest.mark.parametrize("shape", [(N, C), (N, C, 1, 1, 1)])
def test_a_backbone_without_tokens_is_refused(shape):
    with pytest.raises(
        ValueError, match=r"two or more positions, got \(6, 12.*no tokens.*pool=mean"
    ):
        build()(torch.zeros(shape, dtype=torch.float64))
