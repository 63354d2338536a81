"""The backbone in CUDA graphs computes what the eager one does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from sce_video.engine.compile import compile_backbones


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 4, (1, 3, 3), padding=(0, 1, 1))
        self.bn = nn.BatchNorm3d(4)

    def forward(self, view):
        return self.bn(self.conv(view)).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()


def results(model, view):
    model.zero_grad()
    features = model.backbone(view)
    features.square().mean().backward()
    return [features.detach().clone(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_reduce_overhead_gives_the_same_values_and_gradients(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model, view = Model().cuda(), torch.rand(2, 3, 4, 8, 8, device="cuda")
    eager = results(model, view)
    assert compile_backbones(model, {"mode": "reduce-overhead"}) == 1
    counters.clear()
    for _ in range(2):
        torch.compiler.cudagraph_mark_step_begin()
        for one, other in zip(results(model, view), eager, strict=True):
            torch.testing.assert_close(one, other)
    assert counters["stats"]["unique_graphs"] == 1, "compiled once"
