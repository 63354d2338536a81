"""benchmarks/step_floor.py: bytes and operations against a count by layer, a published speed."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import nn

from sce_video.models import ResNet3dSlowPath


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        yield importlib.import_module("step_floor")
    finally:
        sys.path.remove(str(repo / "benchmarks"))


@pytest.fixture(scope="module")
def operations(tool):
    options = ("model.backbone.base_channels=8", "model.queue_size=64")
    return tool.operations_of(tool.Job(tool.RECIPES["r3d18"], 4, 32, 3, cfg_options=options))


def by_layer(batch):
    """FLOPs and elements (in, weights, out) of the convolutions of one forward pass."""
    backbone = ResNet3dSlowPath(depth=18, base_channels=8)
    found = []

    def note(conv, inputs, out):
        flops = 2 * out.numel() * conv.weight[0].numel()
        found.append((flops, inputs[0].numel(), conv.weight.numel(), out.numel()))

    for module in backbone.modules():
        if isinstance(module, nn.Conv3d):
            module.register_forward_hook(note)
    with torch.no_grad():
        backbone(torch.rand(batch, 3, 4, 32, 32))
    return found


def test_convolutions_equal_a_count_by_layer(operations):
    layers = by_layer(3)
    flops = sum(layer[0] for layer in layers)
    # Two views: online forward and backward (twice the operations, but to the pixels), target.
    convolutions = [o for o in operations if o.name.startswith("convolution")]
    assert sum(o.flops for o in convolutions) == 2 * (4 * flops - layers[0][0])
    forward = sum(x + w + y for _, x, w, y in layers)
    # Reads the gradient of the output, input and weights; writes those of input and weights.
    backward = sum(y + 2 * x + 2 * w for _, x, w, y in layers) - layers[0][1]
    assert sum(o.bytes for o in convolutions) == 2 * 2 * (2 * forward + backward)


def test_the_published_training(tool):
    """torchvision states 40.7 G multiply-adds for r3d_18 at 16x112, without a training."""
    clip = tool.r3d18_flops()
    stem = 2 * 3 * 3 * 7 * 7 * 64 * 16 * 56 * 56
    assert (clip + stem) / 3 / 2 == pytest.approx(40.697e9, rel=1e-3)
    # 16 clips on each of 8 GPUs in 37.6 ms.
    assert tool.PUBLISHED["clips_per_s"] == pytest.approx(8 * 16 / 37.6e-3, rel=1e-3)
    assert tool.published_share() == pytest.approx(0.104, abs=0.0005)
