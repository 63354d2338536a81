"""Attentive probes: against plain attention, a grid against single runs, the frozen backbone."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

from sce_video.engine import ProbeGridConstructor
from sce_video.models.heads import AttentiveProbeHead
from sce_video.registry import MODELS

N, C, L, K, HEADS = 6, 12, (2, 3, 2), 5, 3
LRS, DECAYS = (1e-2, 1e-3), (0.5, 0.0)
WRAPPER = dict(
    type="MixedPrecisionOptimWrapper", dtype="float32", constructor=ProbeGridConstructor.__name__,
    optimizer=dict(type="AdamW"), clip_grad=dict(max_norm=0.05, per_group=True),
)  # fmt: skip


def build(lrs=LRS, weight_decays=DECAYS, **options) -> AttentiveProbeHead:
    torch.manual_seed(0)
    options = {"num_classes": K, "in_channels": C, "num_heads": HEADS, **options}
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


def plain(features, weights):
    """Logits (N, K) of one probe of depth 1, every token projected, a head at a time."""
    tokens = features.flatten(2).transpose(1, 2)
    tokens = F.layer_norm(tokens, (C,), weights["norm.weight"], weights["norm.bias"], 1e-5)
    query = F.linear(weights["query"], weights["to_query.weight"], weights["to_query.bias"])
    keys = F.linear(tokens, weights["to_key.weight"])
    values = F.linear(tokens, weights["to_value.weight"], weights["to_value.bias"])
    rows = []
    for n in range(len(tokens)):
        parts = []
        for part in torch.arange(C).chunk(HEADS):
            scores = keys[n][:, part] @ query[part] / math.sqrt(len(part))
            share = scores.exp() / scores.exp().sum()
            parts.append(share @ values[n][:, part])
        x = weights["query"] + torch.cat(parts)
        y = F.layer_norm(x, (C,), weights["mlp.0.weight"], weights["mlp.0.bias"], 1e-5)
        y = F.gelu(F.linear(y, weights["mlp.1.weight"], weights["mlp.1.bias"]))
        x = x + F.linear(y, weights["mlp.3.weight"], weights["mlp.3.bias"])
        rows.append(F.linear(x, weights["fc_cls.weight"], weights["fc_cls.bias"]))
    return torch.stack(rows)


def test_a_step_equals_plain_attention_at_each_point():
    """Values, gradients, and the weights after one step of AdamW."""
    head = build()
    (features, labels), = batches(1)  # fmt: skip
    references = [
        {name: p.detach().clone().requires_grad_() for name, p in probe.named_parameters()}
        for probe in head.probes
    ]
    optim = wrapped(head, clip_grad=None)
    losses = head.loss(features, samples(labels))
    expected = []
    for weights, point in zip(references, head.grid, strict=True):
        loss = F.cross_entropy(plain(features, weights), labels)
        expected.append(loss)
        loss.backward()
        weights |= {"optimizer": torch.optim.AdamW(list(weights.values()), *point[:1],
                                                   weight_decay=point.weight_decay)}  # fmt: skip
    torch.testing.assert_close(losses["loss"], sum(expected), rtol=1e-12, atol=0)
    assert losses["ce_max"] == losses["ce_min"], "all start from the same weights"
    losses["loss"].backward()
    for weights, probe in zip(references, head.probes, strict=True):
        for name, parameter in probe.named_parameters():
            torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-9, atol=1e-14)
        weights["optimizer"].step()
    optim.step()
    for weights, probe in zip(references, head.probes, strict=True):
        for name, parameter in probe.named_parameters():
            torch.testing.assert_close(parameter, weights[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("depth", [1, 3])
def test_is_the_attentive_classifier_of_v_jepa_2(depth):
    """The pooler of transformers' V-JEPA 2, with the same weights and the authors' eps."""
    vjepa2 = pytest.importorskip("transformers.models.vjepa2.modeling_vjepa2")
    config = vjepa2.VJEPA2Config(
        hidden_size=C, num_attention_heads=HEADS, num_pooler_layers=depth - 1, mlp_ratio=4,
        layer_norm_eps=1e-5,
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


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_begins_as_the_attentive_classifier_of_v_jepa_2(depth):
    """facebookresearch/vjepa2, src/models/attentive_pooler.py: _init_weights, _rescale_blocks."""
    torch.manual_seed(0)
    (probe,) = AttentiveProbeHead(30, 48, lrs=(1e-3,), num_heads=4, depth=depth).probes
    divisors = {"mlp.3": 2 * max(1, depth - 1)}
    for i in range(1, depth):
        divisors |= {f"blocks.{i - 1}.{n}": 2 * i for n in ("self_attn.out_proj", "linear2")}
    for name, parameter in probe.named_parameters():
        stem, end = name.rsplit(".", 1) if "." in name else (name, "")
        if stem == "fc_cls":  # torch's, U(-1 / sqrt(fan in), 1 / sqrt(fan in))
            assert 0.9 < float(parameter.detach().abs().max()) * math.sqrt(48) <= 1
        elif parameter.ndim == 2:
            std = 0.02 / math.sqrt(divisors.get(stem, 1))
            assert parameter.std().item() == pytest.approx(std, rel=0.06), name
        elif end:
            assert (parameter == (0 if end.endswith("bias") else 1)).all(), name


def train(head, steps=6):
    optim = wrapped(head)
    for features, labels in batches(steps):
        optim.update_params(head.loss(features, samples(labels))["loss"])
    return head


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grid_in_one_pass_is_a_run_for_each_point(depth):
    """With clipping, whose norm is that of each probe alone."""
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


def test_beats_mean_pooling_where_the_signal_is_in_one_place():
    """A marked position of 48 holds the class; the others hold as large noise."""
    generator = torch.Generator().manual_seed(0)
    classes, size, count = 3, (3, 4, 4), 240
    marker, *codes = torch.linalg.qr(torch.randn(16, 16, generator=generator))[0][: classes + 1]

    def draw():
        labels = torch.randint(classes, (count,), generator=generator)
        tokens = torch.randn(count, 48, 16, generator=generator)
        place = torch.randint(48, (count,), generator=generator)
        tokens[torch.arange(count), place] = 4 * marker + 4 * torch.stack(codes)[labels]
        return tokens.transpose(1, 2).reshape(count, 16, *size), labels

    (features, labels), (tested, truth) = draw(), draw()
    torch.manual_seed(0)
    head = AttentiveProbeHead(classes, 16, lrs=(1e-2,), num_heads=2)
    linear = nn.Linear(16, classes)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2, weight_decay=0.0) for m in (head, linear)]
    for _ in range(120):
        F.cross_entropy(head(features)[:, 0], labels).backward()
        F.cross_entropy(linear(features.mean((2, 3, 4))), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    head.eval()
    with torch.no_grad():
        found = (head(tested), linear(tested.mean((2, 3, 4))))
    attentive, mean = ((scores.argmax(1) == truth).double().mean() for scores in found)
    assert attentive > 0.95 and mean < 0.75, (attentive, mean)


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
    with pytest.raises(ValueError, match="trained on a frozen backbone.*frozen_stages=4"):
        step(config)


def test_a_selected_probe_classifies_alone():
    head = build().eval()
    (features, _), = batches(1)  # fmt: skip
    everything = head(features)
    assert everything.shape == (N, 4, K) and head.selected is None
    head.select(2)
    torch.testing.assert_close(head(features), everything[:, 2])
    assert head.train()(features).shape == (N, 4, K)
    assert build((0.1,), (0.0,)).eval()(features).shape == (N, K), "of one, it is that one"
    assert [point.name for point in head.grid][:2] == ["lr0.01_wd0.5", "lr0.01_wd0"]


def test_a_diverged_probe_leaves_the_others_their_gradients():
    heads = build(), build()
    (features, labels), = batches(1)  # fmt: skip
    with torch.no_grad():
        heads[1].probes[0].query.fill_(float("nan"))
    for head in heads:
        head.loss(features, samples(labels))["loss"].backward()
    for mine, other in zip(heads[0].probes[1:], heads[1].probes[1:], strict=True):
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_bfloat16_is_near():
    head = build().eval()
    (features, _), = batches(1)  # fmt: skip
    exact = head(features)
    head.float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head(features.float())
    torch.testing.assert_close(mixed.double(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lrs=()), r"grid is empty: lrs and weight_decays.*lrs=\[\]"),
        (dict(weight_decays=[]), "grid is empty"),
        (dict(lrs=(1e-3, 0.001, 0.1)), "given twice: lr0.001_wd0, lr0.001_wd0.5$"),
        (dict(lrs=(0.0,)), "above 0.*lr=0"),
        (dict(weight_decays=(-1.0,)), "weight_decay=-1"),
        (dict(num_classes=1), "two classes or more, got num_classes=1"),
        (dict(num_classes=None), "two classes or more"),
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
        ValueError, match=r"two positions or more, got \(6, 12.*no tokens.*pool=mean"
    ):
        build()(torch.zeros(shape, dtype=torch.float64))


def test_parameter_groups_need_such_a_head():
    with pytest.raises(ValueError, match=r"parameter_groups\(\), got Linear"):
        wrapped(nn.Linear(2, 2))
