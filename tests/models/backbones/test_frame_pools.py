"""How the features of frames become one representation, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.models import EfficientNetLite, ResNet2d
from sce_video.models.backbones.frame_pools import (
    check_frame_pool,
    frame_features,
    frame_parts,
    pool_frames,
    pool_stored_clips,
    pool_stored_frames,
)
from sce_video.options.connect import FRAME_POOLS


def pooled(features: torch.Tensor, frame_pool: str, view: torch.Tensor | None = None) -> np.ndarray:
    """Return the representations of clips whose frames differ, unless a view is given."""
    if view is None:
        view = torch.rand(len(features), 3, features.shape[2], 2, 2)
    return pool_frames(features, frame_pool, view).mean((2, 3, 4)).numpy()


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_every_pool_equals_its_formula(frame_pool):
    torch.manual_seed(0)
    features = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64)
    frames = features.numpy().mean((3, 4))
    mean = frames.mean(2)
    absdiff = np.abs(frames[:, :, 1:] - frames[:, :, :-1]).mean(2)
    delta = frames[:, :, 3] - frames[:, :, 0]
    expected = {
        "mean": [mean],
        "mean+absdiff": [mean, absdiff],
        "mean+std": [mean, frames.std(2)],
        "mean+delta": [mean, delta],
        "mean+absdiff+delta": [mean, absdiff, delta],
        "concat": [frames[:, :, t] for t in range(4)],
    }[frame_pool]
    found = pooled(features, frame_pool)
    np.testing.assert_allclose(found, np.concatenate(expected, 1), atol=1e-12)
    assert found.shape[1] == 3 * check_frame_pool(frame_pool)


def test_a_frame_that_repeats_the_one_before_is_no_moment_of_its_own():
    """Clip 0 repeats its second frame, clip 1 all frames, and clip 2 none."""
    torch.manual_seed(0)
    order = torch.tensor([[0, 1, 1, 2], [0, 0, 0, 0], [0, 1, 2, 3]])
    moments = torch.rand(3, 3, 4, 2, 2, dtype=torch.float64)
    values = torch.randn(3, 5, 4, dtype=torch.float64)
    view = torch.stack([clip[:, rows] for clip, rows in zip(moments, order, strict=True)])
    features = torch.stack([clip[:, rows] for clip, rows in zip(values, order, strict=True)])
    found = pooled(features[..., None, None], "mean+absdiff", view)[:, 5:]
    steps = values.diff(dim=2).abs()
    expected = torch.stack([steps[0, :, :2].mean(1), torch.zeros(5), steps[2].mean(1)])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-12)


def test_a_long_clip_changes_from_its_first_to_its_last_quarter():
    frames = torch.randn(1, 2, 9, dtype=torch.float64)
    values = frames[0].numpy()
    expected = values[:, 7:].mean(1) - values[:, :2].mean(1)
    found = pooled(frames[..., None, None], "mean+delta")[0, 2:]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_concat_keeps_the_quarters_of_a_long_clip_in_order():
    frames = torch.randn(1, 2, 8, dtype=torch.float64)
    found = pooled(frames[..., None, None], "concat")
    expected = frames[0].numpy().reshape(2, 4, 2).mean(2).T.reshape(-1)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_a_clip_of_one_frame_has_no_motion(frame_pool):
    features = torch.randn(2, 3, 1, 2, 2, dtype=torch.float64)
    found = pooled(features, frame_pool).reshape(2, -1, 3)
    mean = features.mean((2, 3, 4)).numpy()
    np.testing.assert_allclose(found[:, 0], mean, atol=1e-12)
    others = mean if frame_pool == "concat" else 0 * mean
    assert all(np.allclose(found[:, part], others) for part in range(1, found.shape[1]))


@pytest.mark.parametrize("network", [ResNet2d(18, base_channels=4), EfficientNetLite()])
def test_features_of_frames_do_not_depend_on_the_pool(network):
    torch.manual_seed(0)
    view = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected = frame_features(network.eval(), view)
        network.frame_pool = "concat"
        torch.testing.assert_close(frame_features(network, view), expected)
        parts = network(view).mean((3, 4)).mean(2).unflatten(1, (4, -1))
    assert frame_parts(network) == 4
    torch.testing.assert_close(parts, expected)


def test_an_unknown_pool_is_named():
    with pytest.raises(ValueError, match="frame_pool must be one of mean, .*, got 'sum'"):
        ResNet2d(18, frame_pool="sum")


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_stored_features_are_pooled_as_those_of_a_view(frame_pool):
    torch.manual_seed(0)
    features = torch.randn(2, 3, 5, 1, 1, dtype=torch.float64)
    view = torch.rand(2, 3, 5, 2, 2)
    features[1, :, 2], view[1, :, 2] = features[1, :, 1], view[1, :, 1]  # a repeated frame
    found = pool_stored_frames(features[..., 0, 0], frame_pool).numpy()
    np.testing.assert_allclose(found, pooled(features, frame_pool, view), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_stored_frames_of_several_clips_are_pooled_as_by_the_network(frame_pool):
    clips = torch.randn(5, 2, 4, 6, generator=torch.manual_seed(0), dtype=torch.float64)
    maps = clips.flatten(0, 1).transpose(1, 2)[..., None, None].expand(-1, -1, -1, 2, 3)
    found = pool_stored_clips(clips, frame_pool)
    np.testing.assert_allclose(found.flatten(0, 1).numpy(), pooled(maps, frame_pool), atol=1e-12)
