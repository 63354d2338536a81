"""MLP heads: layers, biases and BN of every method, written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sce_video.models import MLP
from sce_video.registry import MODELS


def described(mlp: MLP) -> list[str]:
    """The layers as text: "8-16 bias", "bn affine", "bn", "relu"."""
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
    "SCE and MoCo v3 predictor": (
        dict(num_layers=2, norm_output=False),
        ["8-16", "bn affine", "relu", "16-4"],
    ),
    "MoCo v3 projector": (
        dict(num_layers=2, norm_output=True),
        ["8-16", "bn affine", "relu", "16-4", "bn"],
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
    "SwAV": (
        dict(num_layers=2, norm_output=False, bias=True),
        ["8-16 bias", "bn affine", "relu", "16-4 bias"],
    ),
    "biases but for the last layer": (
        dict(num_layers=2, norm_output=True, bias=True, bias_output=False),
        ["8-16 bias", "bn affine", "relu", "16-4", "bn"],
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


def test_names_in_a_checkpoint():
    """The paper's video projector: numbers of layers as in every checkpoint."""
    names = list(MLP(8, 16, 4, 3, True).state_dict())
    bn = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = ["layers.0.weight", *(f"layers.1.{part}" for part in bn)]
    expected += ["layers.3.weight", *(f"layers.4.{part}" for part in bn)]
    expected += ["layers.6.weight", *(f"layers.7.{part}" for part in bn[2:])]
    assert names == expected


def test_forward_equals_the_functional_one():
    torch.manual_seed(0)
    mlp = MLP(6, 5, 4, 2, True, bias=True, affine_output=True).train()
    h = torch.randn(7, 6)
    state = {name: value.clone() for name, value in mlp.state_dict().items()}

    def norm(x, number):
        x = (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + 1e-5)
        return x * state[f"layers.{number}.weight"] + state[f"layers.{number}.bias"]

    x = F.relu(norm(h @ state["layers.0.weight"].T + state["layers.0.bias"], 1))
    x = norm(x @ state["layers.3.weight"].T + state["layers.3.bias"], 4)
    torch.testing.assert_close(mlp(h), x, rtol=1e-4, atol=1e-5)


def test_heads_of_slowfast_begin_as_theirs():
    """fvcore's ``c2_xavier_fill``, U(-sqrt(3 / fan in), sqrt(3 / fan in)), and biases of 0."""
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
        (dict(num_layers=0), "num_layers must be at least 1, got 0"),
        (dict(hidden_channels=0), "hidden_channels must be at least 1, got 0"),
        (dict(in_channels=-1), "in_channels must be at least 1, got -1"),
        (dict(out_channels=0), "out_channels must be at least 1, got 0"),
        (dict(norm_output=False, affine_output=True), "affine_output=True needs an output BN"),
    ],
)
def test_bad_combinations(change, message):
    good = dict(in_channels=8, hidden_channels=16, out_channels=4, num_layers=2, norm_output=True)
    with pytest.raises(ValueError, match=message):
        MLP(**{**good, **change})
