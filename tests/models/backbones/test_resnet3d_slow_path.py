"""ResNet3D of the paper's table tab:r3d."""

from __future__ import annotations

import pytest
import torch

from sce_video.models import ResNet3dSlowPath
from sce_video.registry import MODELS


@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(18, 20_023_872), (50, 31_634_496), (34, 39_569_216), (101, 59_539_520)],
)
def test_parameters_of_the_paper_and_of_deeper_networks(depth, parameters):
    with torch.device("meta"):
        model = ResNet3dSlowPath(depth=depth)
    assert sum(p.numel() for p in model.parameters()) == parameters
    temporal = {
        name for name, p in model.named_parameters() if p.ndim == 5 and p.shape[2] > 1
    }  # the first of each block of res4 and res5
    blocks = [f"layer{i}.{j}" for i in (3, 4) for j in range(len(model.stages()[i - 1]))]
    assert temporal == {f"{block}.conv1.weight" for block in blocks}


def test_r50_equals_mmaction2s_slow_only():
    """The same network as mmaction2's slow-only R50 (at depth 18 they differ): equal outputs."""
    ours = ResNet3dSlowPath(depth=50, base_channels=8, zero_init_residual=False).eval()
    theirs = MODELS.build(
        dict(
            type="mmaction.ResNet3dSlowOnly",
            depth=50,
            base_channels=8,
            pretrained=None,
            lateral=False,
            conv1_kernel=(1, 7, 7),
            conv1_stride_t=1,
            pool1_stride_t=1,
            inflate=(0, 0, 1, 1),
            norm_eval=False,
        )
    )
    theirs.eval()  # returns None
    renamed = {"downsample.conv": "downsample.0", "downsample.bn": "downsample.1", ".conv.": "."}
    renamed |= {f"conv{i}.bn": f"bn{i}" for i in (1, 2, 3)}
    generator, state = torch.Generator().manual_seed(0), {}
    for name, value in theirs.state_dict().items():
        if value.is_floating_point():  # in place, so theirs has it too
            value += 0.1 * torch.rand(value.shape, generator=generator)
        for old, new in renamed.items():
            name = name.replace(old, new)
        state[name] = value
    ours.load_state_dict(state)
    x = torch.rand(1, 3, 4, 64, 64, generator=generator)
    with torch.no_grad():
        expected = theirs(x)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


def test_last_stage_for_localisation():
    model = ResNet3dSlowPath(depth=50, base_channels=8, last_stage_stride=1, last_stage_dilation=2)
    assert model(torch.rand(1, 3, 2, 64, 64)).shape == (1, 256, 2, 4, 4)
    assert {b.conv2.dilation for b in model.layer4} == {(1, 2, 2)}
    assert model.layer3[0].conv2.dilation == (1, 1, 1)
