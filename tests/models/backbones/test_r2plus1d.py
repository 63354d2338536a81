"""R(2+1)D against torchvision's names, shapes and counts, and against a functional forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import R2Plus1d

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
# Channels between the convolutions of the first and the other blocks of res2..res5: in * out * 27
# over 9 * in + 3 * out, rounded down, for example 64 * 128 * 27 / 960 = 230.4.
MID = ((144, 144), (230, 288), (460, 576), (921, 1152))


def torchvision_shapes(depth: int = 18) -> dict[str, tuple]:
    """Names and shapes of ``torchvision.models.video.r2plus1d_18`` without fc, written out."""
    shapes: dict[str, tuple] = {}

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    def factorised(name, c_in, mid, c_out, kernel):
        shapes[f"{name}.0.weight"] = (mid, c_in, 1, kernel, kernel)
        norm(f"{name}.1", mid)
        shapes[f"{name}.3.weight"] = (c_out, mid, 3, 1, 1)

    factorised("stem", 3, 45, 64, 7)
    norm("stem.4", 64)
    c_in = 64
    for stage, count in enumerate(BLOCKS[depth]):
        c_out = 64 * 2**stage
        for i in range(count):
            block, mid = f"layer{stage + 1}.{i}", MID[stage][min(i, 1)]
            for number, first in enumerate((c_in, c_out), start=1):
                factorised(f"{block}.conv{number}.0", first, mid, c_out, 3)
                norm(f"{block}.conv{number}.1", c_out)
            if c_in != c_out:
                shapes[f"{block}.downsample.0.weight"] = (c_out, c_in, 1, 1, 1)
                norm(f"{block}.downsample.1", c_out)
            c_in = c_out
    return shapes


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


def test_names_shapes_and_counts_are_torchvisions():
    with torch.device("meta"):
        model = R2Plus1d()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == torchvision_shapes()
    assert list(shapes) == list(torchvision_shapes())  # torchvision's order, too
    count = sum(p.numel() for p in model.parameters())
    assert count == 31_300_125
    assert count + 512 * 400 + 400 == 31_505_325  # num_params of R2Plus1D_18_Weights
    with torch.device("meta"):
        deeper = R2Plus1d(depth=34)
    shapes = {name: tuple(value.shape) for name, value in deeper.state_dict().items()}
    assert shapes == torchvision_shapes(34)


@pytest.mark.parametrize("depth", [18, 34])
def test_forward_equals_the_functional_one(depth, randomised):
    model = randomised(R2Plus1d(depth=depth, base_channels=8))
    clip = torch.rand(2, 3, 9, 40, 32)
    with torch.no_grad():
        expected = functional_forward(model.state_dict(), clip, depth)
        assert expected.std() > 1e-3 and expected.shape == (2, 64, 2, 3, 2)
        scale = expected.abs().max()
        torch.testing.assert_close(model(clip) / scale, expected / scale, rtol=1e-5, atol=1e-5)
