"""S3D and S3D-G compared with torchvision's names and counts, and a functional forward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import S3D

# Index in torchvision's ``features``: channels in; of the branches b0, b1 in/out, b2 in/out, b3.
INCEPTION = {
    5: (192, 64, 96, 128, 16, 32, 32),
    6: (256, 128, 128, 192, 32, 96, 64),
    8: (480, 192, 96, 208, 16, 48, 64),
    9: (512, 160, 112, 224, 24, 64, 64),
    10: (512, 128, 128, 256, 24, 64, 64),
    11: (512, 112, 144, 288, 32, 64, 64),
    12: (528, 256, 160, 320, 32, 128, 128),
    14: (832, 256, 160, 320, 32, 128, 128),
    15: (832, 384, 192, 384, 48, 128, 128),
}


def functional_forward(state: dict, x: torch.Tensor) -> torch.Tensor:
    """Compute the evaluation-mode output for clips (N, 3, T, H, W) by plain torch functions."""

    def conv(x, name, stride=1):
        weight = state[f"{name}.0.weight"]
        kernel = weight.shape[2:]
        x = F.conv3d(
            x,
            weight,
            stride=[stride if k > 1 else 1 for k in kernel],
            padding=[k // 2 for k in kernel],
        )
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (state[f"{name}.1.{p}"][:, None, None, None] for p in parts)
        return F.relu((x - mean) / torch.sqrt(var + 1e-3) * weight + bias)

    def separable(x, name, stride=1):
        return conv(conv(x, f"{name}.0", stride), f"{name}.1", stride)

    def gated(x, name):
        if f"{name}.gate.fc.weight" not in state:
            return x
        weight, bias = state[f"{name}.gate.fc.weight"], state[f"{name}.gate.fc.bias"]
        gate = 1 / (1 + torch.exp(-(x.mean((2, 3, 4)) @ weight.T + bias)))
        return torch.einsum("ncthw,nc->ncthw", x, gate)

    x = F.max_pool3d(separable(x, "features.0", 2), (1, 3, 3), (1, 2, 2), (0, 1, 1))
    x = gated(separable(conv(x, "features.2"), "features.3"), "features.3")
    x = F.max_pool3d(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))
    for index in INCEPTION:
        block = f"features.{index}"
        x = F.max_pool3d(x, 3, 2, 1) if index == 8 else x
        x = F.max_pool3d(x, 2, 2) if index == 14 else x
        branches = [
            conv(x, f"{block}.branch0"),
            separable(conv(x, f"{block}.branch1.0"), f"{block}.branch1.1"),
            separable(conv(x, f"{block}.branch2.0"), f"{block}.branch2.1"),
            conv(F.max_pool3d(x, 3, 1, 1), f"{block}.branch3.1"),
        ]
        x = torch.cat([gated(y, f"{block}.branch{i}") for i, y in enumerate(branches)], 1)
    return x


@pytest.mark.parametrize("gating", [False, True])
def test_counts_are_the_public_ones(gating):
    with torch.device("meta"):
        model = S3D(gating=gating)
    count = sum(p.numel() for p in model.parameters())
    gates = [192] + [c for _, b0, _, b1, _, b2, b3 in INCEPTION.values() for c in (b0, b1, b2, b3)]
    without = count - sum(c * c + c for c in gates) if gating else count
    assert without == 7_910_048
    assert without + 1024 * 400 + 400 == 8_320_048  # num_params of torchvision's S3D_Weights
    assert count == (9_135_056 if gating else 7_910_048)


@pytest.mark.parametrize("gating", [False, True])
def test_forward_equals_the_functional_one(gating, randomised, read):
    model = randomised(S3D(base_channels=16, gating=gating))
    clip = torch.rand(2, 3, 17, 70, 64)
    with torch.no_grad():
        state = read(model)
        expected = functional_forward(state, clip)
        assert state.read == set(state)  # torchvision's names
        assert expected.std() > 1e-3 and expected.shape == (2, 256, 2, 2, 2)
        scale = expected.abs().max()
        torch.testing.assert_close(model(clip) / scale, expected / scale, rtol=1e-5, atol=1e-5)
