"""Average pooling and representations of any backbone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sce_video.models.backbones.common import average_pool, represent


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 4), (2, 5, 3, 4, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_over_everything_after_the_channels(shape, dtype):
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = features.double().flatten(2).mean(2)
    pooled = average_pool(features)
    assert pooled.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(pooled.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_clips_pool_bit_for_bit_as_mean_over_the_three_axes(layout):
    features = torch.randn(3, 7, 4, 5, 6).to(memory_format=layout)
    assert torch.equal(average_pool(features), features.mean(dim=(2, 3, 4)))


@pytest.mark.parametrize(
    ("features", "got"), [(torch.zeros(2, 5), r"\(2, 5\)"), ((torch.zeros(1, 2, 3),), "tuple")]
)
def test_what_cannot_be_pooled_is_named(features, got):
    with pytest.raises(ValueError, match=rf"\(N, C, \.\.\.\), got {got}"):
        average_pool(features)


class MaxPooling(nn.Conv3d):
    def pool(self, features):
        return features.amax(dim=(2, 3, 4))


def test_represent_uses_the_backbones_own_pool_or_the_mean():
    torch.manual_seed(0)
    view = torch.rand(2, 3, 2, 4, 4)
    own, plain = MaxPooling(3, 5, 1), nn.Conv3d(3, 5, 1)
    assert torch.equal(represent(own, view), own(view).amax(dim=(2, 3, 4)))
    assert torch.equal(represent(plain, view), plain(view).mean(dim=(2, 3, 4)))
    plain.pool = nn.MaxPool3d(2)  # a layer with this name is not the contract
    assert torch.equal(represent(plain, view), plain(view).mean(dim=(2, 3, 4)))
