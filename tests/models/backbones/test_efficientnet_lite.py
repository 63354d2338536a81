"""EfficientNet-Lite equals the published network, and can become a video network."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import torch
from torch import nn

from sce_video.models import EfficientNetLite
from sce_video.models.backbones.efficientnet_lite import (
    VARIANTS,
    SameConv2d,
    TemporalDifference,
    from_published,
)

published = pytest.importorskip("efficientnet_lite_pytorch")


def reference(variant: str) -> nn.Module:
    """Return the network of another package with random weights."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        network = published.EfficientNet.from_name(f"efficientnet-{variant}").eval().double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # so that activations neither vanish nor explode
            nn.init.uniform_(module.running_var, 0.05, 0.2)
            nn.init.normal_(module.bias, std=0.2)
    return network


@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_features_equal_the_published_network(variant):
    network = reference(variant)
    own = EfficientNetLite(variant, temporal=True).eval().double()
    missing = own.load_state_dict(from_published(network.state_dict()), strict=False)
    # With initial weights, a temporal layer changes nothing.
    assert missing.unexpected_keys == []
    assert all(name.startswith("temporal.") for name in missing.missing_keys)
    size = VARIANTS[variant].size
    frames = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected = network.extract_features(frames)
        found = own(frames.unflatten(0, (1, 2)).transpose(1, 2))[0].transpose(0, 1)
    assert expected.std() > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_weights_of_another_layout_are_refused():
    with pytest.raises(ValueError, match="not EfficientNet weights"):
        from_published({"conv1.weight": torch.zeros(1)})


@pytest.mark.parametrize("size", [7, 8, 224])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_same_padding_keeps_one_output_for_each_stride(size, kernel, stride):
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    nn.init.ones_(conv.weight)
    image = torch.rand(1, 1, size, size)
    out = -(-size // stride)
    whole = max((out - 1) * stride + kernel - size, 0)
    padded = np.pad(image[0, 0].numpy(), ((whole // 2, whole - whole // 2),) * 2)
    expected = [
        [padded[i * stride : i * stride + kernel, j * stride : j * stride + kernel].sum()
         for j in range(out)] for i in range(out)
    ]  # fmt: skip
    torch.testing.assert_close(conv(image)[0, 0], torch.tensor(expected))


def test_a_temporal_layer_is_a_convolution_over_time():
    torch.manual_seed(0)
    layer = TemporalDifference(3).double()
    nn.init.normal_(layer.weight)
    layer.frames = 5
    clips = torch.randn(2, 5, 3, 2, 2, dtype=torch.float64)
    found = layer(clips.flatten(0, 1)).unflatten(0, (2, 5))
    before, after = layer.weight.detach()[:, :, None, None]
    for t in range(5):
        expected = clips[:, t].clone()
        if t > 0:
            expected += before * (clips[:, t] - clips[:, t - 1])
        if t < 4:
            expected += after * (clips[:, t + 1] - clips[:, t])
        torch.testing.assert_close(found[:, t], expected)


def test_a_clip_of_one_frame_is_an_image():
    network = EfficientNetLite(temporal=True, frame_pool="mean+absdiff").eval()
    with torch.no_grad():
        pooled = network.pool(network(torch.randn(1, 3, 1, 64, 64)))
    assert pooled.shape == (1, network.out_channels) == (1, 2560)
    assert pooled[:, 1280:].abs().max() == 0


@pytest.mark.parametrize("setting", [{"variant": "lite9"}, {"frame_pool": "sum"}])
def test_unknown_settings_are_named(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name} must be one of .*{value}"):
        EfficientNetLite(**setting)


def test_the_first_quarter_is_frozen():
    network = EfficientNetLite(frozen_stages=1, temporal=True).train()
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert any(name.startswith("blocks.1.") for name in frozen)
    assert not any(name.startswith(("blocks.2.", "temporal.", "head.")) for name in frozen)
    assert not network.stem[1].training and network.head[0][1].training
