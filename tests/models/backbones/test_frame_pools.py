"""Pools of frame features compared with NumPy."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hf_models import PATCH, _model

from sce_video.models import EfficientNetLite, ResNet2d
from sce_video.models.backbones.frame_pools import (
    ENERGY_CELLS,
    StoredClips,
    features_of_frame,
    frame_channels,
    frame_features,
    motion_energy,
    pool_frames,
    pooled_channels,
    stored_clips,
)
from sce_video.models.backbones.hf_encoder import FAMILIES, HFEncoder, architecture_of
from sce_video.options.connect import FRAME_POOLS

#: Small image encoders of transformers: family, pool of the tokens, and size of the frames. In the
#: last case, the patch tokens have at least seven rows and columns.
IMAGE_ENCODERS = [
    *((family, "class", (32, 32)) for family in ("dinov2", "dinov2_with_registers", "dinov3_vit")),
    *((family, "projection", (32, 32)) for family in ("clip", "siglip")),
    *((family, "mean", (32, 32)) for family in ("dinov3_vit", "siglip")),
    *(("dinov3_convnext", pool, (32, 64)) for pool in ("class", "mean")),
    *(("siglip2", pool, (32, 40)) for pool in ("projection", "mean")),
    ("dinov2", "mean", (56, 64)),
]
#: Number of tokens before the patch tokens: the class token and two registers
FIRST_TOKENS = dict(dinov2=1, dinov2_with_registers=3, dinov3_vit=3, dinov3_convnext=1)


def pooled(features: torch.Tensor, frame_pool: str, view: torch.Tensor | None = None) -> np.ndarray:
    """Return the representations of clips whose frames differ, unless a view is given."""
    if view is None:
        view = torch.rand(len(features), 3, features.shape[2], 2, 2)
    return pool_frames(features, frame_pool, view, features).mean((2, 3, 4)).numpy()


def energy_by_loops(maps: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Compute the motion energy (N, 343) of maps (N, C, T, h, w), cell by cell."""

    def cells(size: int) -> list[slice]:
        ends = [(i * size / 7, (i + 1) * size / 7) for i in range(7)]
        return [slice(int(np.floor(start)), int(np.ceil(end))) for start, end in ends]

    change = np.abs(maps[:, :, 1:] - maps[:, :, :-1]).mean(1)
    found = np.zeros((len(maps), 7, 7, 7))
    for (i, t), (j, y), (k, x) in itertools.product(*map(enumerate, map(cells, change.shape[1:]))):
        found[:, i, j, k] = change[:, t, y, x].mean((1, 2, 3))
    little = 0.05 * np.abs(maps).mean((1, 2, 3, 4))
    share = found.reshape(len(maps), -1) / (found.mean((1, 2, 3)) + little)[:, None]
    return 0.5 * np.linalg.norm(mean, axis=1)[:, None] * share / np.sqrt(343)


def parts_of_pools(frames, absdiff, delta, energy, quarters):
    """Return the parts of each pool for frames (N, C, T)."""
    mean = frames.mean(2)
    return {
        "mean": [mean],
        "mean+absdiff": [mean, absdiff],
        "mean+std": [mean, frames.std(2)],
        "mean+delta": [mean, delta],
        "mean+absdiff+delta": [mean, absdiff, delta],
        "mean+absdiff+delta+energy": [mean, absdiff, delta, energy],
        "concat": quarters,
    }


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_every_pool_equals_its_formula(frame_pool):
    torch.manual_seed(0)
    features = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64)
    frames = features.numpy().mean((3, 4))
    mean = frames.mean(2)
    absdiff = np.abs(frames[:, :, 1:] - frames[:, :, :-1]).mean(2)
    delta = frames[:, :, 3] - frames[:, :, 0]
    energy = energy_by_loops(features.numpy(), mean)
    quarters = [frames[:, :, t] for t in range(4)]
    expected = parts_of_pools(frames, absdiff, delta, energy, quarters)[frame_pool]
    found = pooled(features, frame_pool)
    np.testing.assert_allclose(found, np.concatenate(expected, 1), atol=1e-12)
    assert found.shape[1] == pooled_channels(frame_pool, 3)
    assert frame_channels(frame_pool, found.shape[1]) == 3


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
    found = pooled(features, frame_pool)
    mean = features.mean((2, 3, 4)).numpy()
    np.testing.assert_allclose(found[:, :3], mean, atol=1e-12)
    others = np.tile(mean, 3) if frame_pool == "concat" else 0 * found[:, 3:]
    np.testing.assert_allclose(found[:, 3:], others, atol=1e-12)


@pytest.mark.parametrize("network", [ResNet2d(18, base_channels=4), EfficientNetLite()])
def test_features_of_frames_do_not_depend_on_the_pool(network):
    torch.manual_seed(0)
    view = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected = frame_features(network.eval(), view)
        network.frame_pool = "concat"
        torch.testing.assert_close(frame_features(network, view), expected)
        parts = network(view).mean((3, 4)).mean(2).unflatten(1, (4, -1))
    assert features_of_frame(ResNet2d(18, base_channels=4, frame_pool="concat")) == 32
    torch.testing.assert_close(parts, expected)


def test_an_unknown_pool_is_named():
    with pytest.raises(ValueError, match="frame_pool must be one of mean, .*, got 'sum'"):
        ResNet2d(18, frame_pool="sum")


@pytest.mark.parametrize("frame_pool", FRAME_POOLS)
def test_stored_clips_are_pooled_as_by_the_network(frame_pool):
    torch.manual_seed(0)
    network = ResNet2d(18, base_channels=4, frame_pool=frame_pool).double().eval()
    view = torch.rand(6, 3, 5, 40, 48, dtype=torch.float64)
    view[1, :, 2] = view[1, :, 1]  # a repeated frame
    with torch.no_grad():
        expected = network(view).mean((2, 3, 4)).unflatten(0, (3, 2))
        rows = stored_clips(network, view).rows().unflatten(0, (3, 2))
    found = StoredClips.from_rows(rows, num_frames=5)
    torch.testing.assert_close(found.pooled(frame_pool), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="'sum'"):
        found.pooled("sum")


@pytest.mark.parametrize("size", [(8, 14, 14), (2, 3, 3), (20, 11, 25)])
def test_energy_has_the_cells_of_adaptive_pooling(size):
    torch.manual_seed(0)
    maps = torch.randn(2, 4, *size, dtype=torch.float64)
    mean = torch.randn(2, 5, dtype=torch.float64)
    change = maps.diff(dim=2).abs().mean(1)
    cells = torch.nn.functional.adaptive_avg_pool3d(change, ENERGY_CELLS).flatten(1)
    found = motion_energy(maps, mean)
    ratio = found / cells
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-12, atol=0)
    np.testing.assert_allclose(found, energy_by_loops(maps.numpy(), mean.numpy()), rtol=1e-12)


def test_energy_says_where_and_when_something_moves():
    """Only the top right corner of the clip moves, at its end."""
    maps = torch.ones(1, 2, 8, 7, 7)
    maps[:, :, 7, 0, 6] = 3.0
    found = motion_energy(maps, torch.ones(1, 4)).reshape(7, 7, 7)
    assert found.nonzero().tolist() == [[6, 0, 6]]
    assert not motion_energy(torch.ones(1, 2, 8, 7, 7), torch.ones(1, 4)).any()
    assert not motion_energy(torch.zeros(1, 2, 8, 7, 7), torch.ones(1, 4)).any()


@pytest.mark.parametrize(("side", "stage"), [(224, -1), (88, 2), (32, 0)])
def test_energy_comes_from_the_last_stage_with_seven_rows(side, stage):
    torch.manual_seed(0)
    network = EfficientNetLite(frame_pool="mean+energy").eval()
    view = torch.rand(1, 3, 2, side, side)
    with torch.no_grad():
        stages = [*network.stage_maps(view.transpose(1, 2).flatten(0, 1))]
        fine = stages[stage].unflatten(0, (1, 2)).transpose(1, 2)
        expected = motion_energy(fine, stages[-1].mean((2, 3)).mean(0, keepdim=True))
        found = network(view).mean((2, 3, 4))[:, 1280:]
    torch.testing.assert_close(found, expected)


def random_encoder(family: str, pool: str) -> tuple[torch.nn.Module, HFEncoder]:
    """Return a model of transformers with random weights, and ours with the same weights."""
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    torch.manual_seed(0)
    model = _model(family).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    architecture = architecture_of(model.config)
    ours = HFEncoder(architecture, pool).double().eval()
    network, _ = FAMILIES[architecture["model_type"]].split(copy.deepcopy(model), pool)
    ours.network.load_state_dict(network.state_dict())
    return model, ours


@torch.no_grad()
def frame_by_transformers(model: Any, family: str, pool: str, image: torch.Tensor) -> np.ndarray:
    """Return the feature (C, h, w) of one frame (3, H, W); h and w are 1 unless tokens are kept."""
    rows, columns = (side // (32 if "convnext" in family else PATCH) for side in image.shape[1:])
    if family == "siglip2":
        from transformers.models.siglip2.image_processing_pil_siglip2 import (
            convert_image_to_patches,
        )

        patches = torch.from_numpy(convert_image_to_patches(image.numpy(), PATCH))[None]
        output = model.get_image_features(
            pixel_values=patches,
            pixel_attention_mask=torch.ones(patches.shape[:2], dtype=torch.int32),
            spatial_shapes=torch.tensor([[rows, columns]]),
        )
    else:
        output = (model if "dino" in family else model.get_image_features)(image[None])
    if pool != "mean":
        return output.pooler_output[0][:, None, None].numpy()
    tokens = output.last_hidden_state[0, FIRST_TOKENS.get(family, 0) :]
    return tokens.T.reshape(-1, rows, columns).numpy()


@pytest.mark.parametrize(("family", "pool", "size"), IMAGE_ENCODERS)
def test_frames_of_an_encoder_of_transformers_are_pooled_one_by_one(family, pool, size):
    """The model of transformers receives one frame at a time. Clip 1 repeats a frame."""
    model, ours = random_encoder(family, pool)
    view = torch.randn(2, 3, 5, *size, dtype=torch.float64)
    view[1, :, 3] = view[1, :, 2]
    maps = np.stack(
        [
            np.stack([frame_by_transformers(model, family, pool, clip[:, t]) for t in range(5)], 1)
            for clip in view
        ]
    )
    frames = maps.mean((3, 4))
    mean, delta = frames.mean(2), frames[:, :, 4] - frames[:, :, 0]
    steps = np.abs(frames[:, :, 1:] - frames[:, :, :-1])
    absdiff = np.stack([steps[0].mean(1), steps[1][:, [0, 1, 3]].mean(1)])
    fine = maps if min(maps.shape[3:]) >= ENERGY_CELLS else view.numpy()
    energy = energy_by_loops(fine, mean)
    quarters = [frames[:, :, t : t + 2].mean(2) for t in range(4)]  # overlap, because T is 5
    expected = parts_of_pools(frames, absdiff, delta, energy, quarters)
    assert {*expected} == {*FRAME_POOLS} and absdiff.max() > 1e-2
    architecture, limit = architecture_of(model.config), 1e-6 * np.abs(frames).max()
    with torch.no_grad():
        rows = stored_clips(ours, view).rows()
        stored = StoredClips.from_rows(rows, num_frames=5)
        for frame_pool, parts in expected.items():
            encoder = HFEncoder(architecture, pool, frame_pool=frame_pool).double().eval()
            encoder.load_state_dict(ours.state_dict())
            found, wanted = encoder(view).mean((2, 3, 4)), np.concatenate(parts, 1)
            np.testing.assert_allclose(found, wanted, atol=limit)
            np.testing.assert_allclose(stored.pooled(frame_pool), wanted, atol=limit)
            np.testing.assert_allclose(
                frame_features(encoder, view), frames.transpose(0, 2, 1), atol=limit
            )
            assert encoder.out_channels == found.shape[1]
            assert features_of_frame(encoder) == encoder.frame_channels == frames.shape[1]


@pytest.mark.parametrize(("family", "pool"), [("dinov2", "class"), ("dinov2", "mean")])
def test_the_mean_over_frames_leaves_the_features_as_they_are(family, pool):
    """Bit for bit, and in the shape that heads, probes and stored checkpoints expect."""
    _, ours = random_encoder(family, pool)
    view = torch.randn(2, 3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        images = view.transpose(1, 2).flatten(0, 1)
        tokens = ours.network(images).last_hidden_state
        if pool == "class":
            expected = tokens[:, 0].unflatten(0, (2, 3)).transpose(1, 2)[..., None, None]
        else:
            maps = tokens[:, 1:].unflatten(1, (4, 4)).unflatten(0, (2, 3))
            expected = maps.permute(0, 4, 1, 2, 3)
        assert torch.equal(ours(view), expected)
    assert ours.frame_pool == "mean" and ours.out_channels == ours.frame_channels == 32


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("videomae", {"frame_pool": "concat"}, "frame_pool of videomae must be mean, got 'concat'"),
        ("vjepa2", {"frame_pool": "mean+std"}, "frame_pool of vjepa2 must be mean, got 'mean"),
        ("videomae", {"frame_pool": "mean+std", "keep_tokens": 0.5}, "must be mean, got 'mean"),
        ("dinov2", {"frame_pool": "mean+std", "keep_tokens": 0.5}, "keep_tokens of dinov2 must be"),
        ("dinov2", {"frame_pool": "class"}, "frame_pool must be one of mean, .*, got 'class'"),
        ("dinov2", {"frame_pool": 7}, "frame_pool must be one of mean, .*, got 7"),
        ("dinov2", {"pool": "mean+std"}, "pool of dinov2 must be one of class, mean, got 'mean"),
    ],
)
def test_pools_that_an_encoder_of_transformers_does_not_have(family, options, message):
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    with pytest.raises(ValueError, match=message):
        HFEncoder(architecture_of(_model(family).config), **options)
