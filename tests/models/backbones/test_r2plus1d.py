"""R(2+1)D against torchvision's names, shapes and counts, and against a functional forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import R2Plus1d

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def functional_forward(state: dict, x: torch.Tensor, depth: int) -> torch.Tensor:
    """Evaluation-mode forward of clips (N, 3, T, H, W), written as plain torch functions."""

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
