"""ResNet2d compared with torchvision's names and counts, and with a functional forward pass."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import ResNet2d
from sce_video.models.backbones.common import represent

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def functional_resnet(state: dict, frames: torch.Tensor, depth: int, small: bool) -> torch.Tensor:
    """Compute the evaluation-mode output for images (N, 3, H, W) by plain torch functions."""

    def norm(x, name):
        parts = [state[f"{name}.{p}"] for p in ("running_mean", "running_var", "weight", "bias")]
        mean, var, weight, bias = (part[None, :, None, None] for part in parts)
        return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias

    def conv(x, name, stride):
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    x = F.relu(norm(conv(frames, "conv1", 1 if small else 2), "bn1"))
    x = x if small else F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth], start=1):
        for i in range(count):
            block, stride = f"layer{stage}.{i}", 2 if i == 0 and stage > 1 else 1
            strides = (1, stride, 1) if depth >= 50 else (stride, 1)
            y = x
            for number, s in enumerate(strides, start=1):
                y = norm(conv(y, f"{block}.conv{number}", s), f"{block}.bn{number}")
                y = F.relu(y) if number < len(strides) else y
            if f"{block}.downsample.0.weight" in state:
                x = norm(conv(x, f"{block}.downsample.0", stride), f"{block}.downsample.1")
            x = F.relu(x + y)
    return x


@pytest.mark.parametrize(("depth", "count"), [(18, 11_176_512), (50, 23_508_032)])
def test_counts_are_torchvisions(depth, count):
    with torch.device("meta"):
        model = ResNet2d(depth=depth)
    assert sum(p.numel() for p in model.parameters()) == count
    assert len(model.state_dict()) == {18: 120, 50: 318}[depth]


@pytest.mark.parametrize(("depth", "stem"), [(18, "imagenet"), (50, "small")])
def test_representations_of_images_equal_the_functional_ones(depth, stem, randomised, read):
    """Test the networks of the image recipes at full width, with global average pooling."""
    model = randomised(ResNet2d(depth=depth, stem=stem))
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        h = represent(model, images[:, :, None])
        state = read(model)
        features = functional_resnet(state, images, depth, stem == "small")
        assert state.read == set(state)  # torchvision's names
    assert h.shape == (2, 512 if depth == 18 else 2048)
    scale = features.mean((2, 3)).abs().max().item()
    torch.testing.assert_close(h, features.mean((2, 3)), rtol=1e-4, atol=1e-5 * scale)


def test_the_small_stem_begins_as_torch_begins_a_convolution():
    """As in eztorch, conv1 has torch's initialisation, and all other layers have He's."""
    torch.manual_seed(0)
    model = ResNet2d(depth=18, stem="small")
    bound = 1 / math.sqrt(27)  # U(-1 / sqrt(fan in), 1 / sqrt(fan in))
    assert 0.99 * bound < float(model.conv1.weight.detach().abs().max()) <= bound
    assert model.conv1.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for conv in (model.layer1[0].conv1, ResNet2d(depth=18).conv1):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
