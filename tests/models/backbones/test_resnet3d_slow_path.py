"""ResNet3D compared with tab:r3d, and R(2+1)D with torchvision's names and shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import R2Plus1d, ResNet3dSlowPath
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
    }  # the first convolution of each block in res4 and res5
    blocks = [f"layer{i}.{j}" for i in (3, 4) for j in range(len(model.stages()[i - 1]))]
    assert temporal == {f"{block}.conv1.weight" for block in blocks}


def test_r50_equals_mmaction2s_slow_only():
    """At depth 50, the outputs equal those of mmaction2's slow-only network."""
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
        if value.is_floating_point():  # in place, so it also changes theirs
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


BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def functional_forward(state: dict, x: torch.Tensor, depth: int) -> torch.Tensor:
    """Compute the evaluation-mode output for clips (N, 3, T, H, W) by plain torch functions."""

    def norm(x, name):
        parts = [state[f"{name}.{p}"] for p in ("running_mean", "running_var", "weight", "bias")]
        mean, var, weight, bias = (part[:, None, None, None] for part in parts)
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    def factorised(x, name, t, s, pad):
        x = F.conv3d(x, state[f"{name}.0.weight"], stride=(1, s, s), padding=(0, pad, pad))
        x = F.relu(norm(x, f"{name}.1"))
        return F.conv3d(x, state[f"{name}.3.weight"], stride=(t, 1, 1), padding=(1, 0, 0))

    x = F.relu(norm(factorised(x, "stem", 1, 2, 3), "stem.4"))
    for stage, count in enumerate(BLOCKS[depth], start=1):
        for i in range(count):
            block, stride = f"layer{stage}.{i}", 2 if i == 0 and stage > 1 else 1
            y = factorised(x, f"{block}.conv1.0", stride, stride, 1)
            y = F.relu(norm(y, f"{block}.conv1.1"))
            y = norm(factorised(y, f"{block}.conv2.0", 1, 1, 1), f"{block}.conv2.1")
            if stride > 1:
                x = F.conv3d(x, state[f"{block}.downsample.0.weight"], stride=stride)
                x = norm(x, f"{block}.downsample.1")
            x = F.relu(x + y)
    return x


@pytest.mark.parametrize("depth", [18, 34])
def test_forward_equals_the_functional_one(depth, randomised, read):
    model = randomised(R2Plus1d(depth=depth, base_channels=8))
    clip = torch.rand(2, 3, 9, 40, 32)
    with torch.no_grad():
        state = read(model)
        expected = functional_forward(state, clip, depth)
        assert state.read == set(state)  # torchvision's names
        assert expected.std() > 1e-3 and expected.shape == (2, 64, 2, 3, 2)
        scale = expected.abs().max()
        torch.testing.assert_close(model(clip) / scale, expected / scale, rtol=1e-5, atol=1e-5)


def test_the_count_of_parameters_is_torchvisions():
    with torch.device("meta"):
        model = R2Plus1d()
    count = sum(p.numel() for p in model.parameters())
    assert count == 31_300_125
    assert count + 512 * 400 + 400 == 31_505_325  # num_params of R2Plus1D_18_Weights
