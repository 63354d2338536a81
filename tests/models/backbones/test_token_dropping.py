"""Token dropping against lists of tokens that are made by hand, and what it must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.query_methods import build_method

from sce_video.models import VisionTransformer3d
from sce_video.models.backbones.common import map_tokens
from sce_video.models.backbones.token_dropping import TokenDropping
from sce_video.registry import MODELS

TINY = dict(depth=2, embed_dims=16, num_heads=2, patch_size=8, grid_size=(2, 4, 4))
GRID = (3, 2, 4)
CPU = torch.device("cpu")
SEEDS = [5, 2**63 - 2, 7]


def vit(**changes) -> VisionTransformer3d:
    torch.manual_seed(0)
    model = VisionTransformer3d(**{**TINY, **changes})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().train()


def positions_by_hand(seed: int, view: int, share: float, pattern: str) -> list[tuple]:
    """The kept (t, i, j), by the rule in the docstring of the class."""
    T, H, W = GRID
    order = np.random.default_rng([0x544F4B45, view, seed]).permutation
    every = [(t, i, j) for t in range(T) for i in range(H) for j in range(W)]
    if pattern == "random":
        chosen = order(T * H * W)[: max(1, round(share * T * H * W))]
        return [every[n] for n in sorted(chosen)]
    columns = order(H * W)[: max(1, round(share * H * W))]
    return [(t, i, j) for t, i, j in every if W * i + j in columns]


@pytest.mark.parametrize("position", ["sincos", "learned"])
@pytest.mark.parametrize("pattern", ["random", "tube"])
@pytest.mark.parametrize("share", [0.3, 1e-9])
def test_features_equal_those_of_lists_of_tokens(position, pattern, share):
    """Two views in one batch, then one more; 5 frames in tubelets of 2."""
    model = vit(position=position, keep_tokens=share, token_pattern=pattern)
    views = torch.rand(3, 3, 3, 5, 16, 32, generator=torch.Generator().manual_seed(1)).double()
    with model.token_dropping.step(SEEDS):
        joint, last = model(views[:2].flatten(0, 1)), model(views[2])
    found = torch.cat([joint, last]).unflatten(0, (3, 3))
    weight, bias = model.patch_embed.proj.weight, model.patch_embed.proj.bias
    positions = model.position_embedding(GRID)[0]
    for v in range(3):
        for n, seed in enumerate(SEEDS):
            clip = torch.cat([views[v, n], views[v, n, :, -1:]], dim=1)
            tokens = []
            for t, i, j in positions_by_hand(seed, v, share, pattern):
                tubelet = clip[:, 2 * t : 2 * t + 2, 8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
                tokens.append((weight * tubelet).flatten(1).sum(1) + bias + positions[:, t, i, j])
            x = torch.stack(tokens)[None]
            for block in model.blocks:
                x = block(x)
            x = model.norm(x)
            torch.testing.assert_close(found[v, n].T, x[0], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(model.pool(found[v])[n], x[0].mean(0))
    if joint.shape[2] > 1:
        assert torch.equal(map_tokens(joint), joint.transpose(1, 2))


def test_dropped_tokens_take_no_gradient_and_have_no_influence():
    model = vit(keep_tokens=0.25)
    view = torch.rand(3, 3, 6, 16, 32, dtype=torch.float64, requires_grad=True)
    with model.token_dropping.step(SEEDS):
        features = model(view)
    features.square().sum().backward()
    tubelets = view.grad.unflatten(4, (4, 8)).unflatten(3, (2, 8)).unflatten(2, (3, 2))
    touched = tubelets.abs().sum(dim=(1, 3, 5, 7)) > 0  # (N, T', H', W')
    for n, seed in enumerate(SEEDS):
        kept = positions_by_hand(seed, 0, 0.25, "random")
        assert [tuple(p) for p in touched[n].nonzero().tolist()] == kept


def test_a_sample_keeps_its_tokens_in_any_batch_and_all_positions_are_as_likely():
    dropping = TokenDropping(0.25, "random")
    with dropping.step(range(400)):
        first, second = dropping.draw(400, (2, 4, 4), CPU), dropping.draw(400, (2, 4, 4), CPU)
    with dropping.step([399, 17]):
        again = dropping.draw(2, (2, 4, 4), CPU)
    assert torch.equal(again, first[[399, 17]])
    assert not torch.equal(first, second)  # views keep different tokens
    counts = torch.bincount(torch.cat([first, second]).flatten(), minlength=32)
    assert counts.sum() == 800 * 8 and counts.min() > 120 and counts.max() < 280  # 200 of each
    assert all(len(set(row)) == 8 and row == sorted(row) for row in first.tolist())


def test_target_evaluation_and_other_users_compute_all_tokens():
    backbone = dict(type="VisionTransformer3d", **TINY, keep_tokens=0.1)
    model = build_method("SCE", backbone=backbone)
    shapes = {"backbone": [], "target": []}
    for name, network in (("backbone", model.backbone), ("target", model.target.backbone)):
        network.register_forward_hook(
            lambda module, given, out, found=shapes[name]: found.append(tuple(out.shape))
        )
    views = list(torch.rand(2, 4, 3, 4, 32, 32))
    model(views, {"seed": [1, 2, 3, 4]}, mode="loss")["loss"].backward()
    assert shapes == {"backbone": [(4, 16, 3)] * 2, "target": [(4, 16, 2, 4, 4)] * 2}
    model(views)
    with torch.no_grad():
        model(views, {"seed": [1, 2, 3, 4]}, mode="loss")
    model.eval()(views, {"seed": [1, 2, 3, 4]}, mode="loss")
    assert shapes["backbone"][2:] == [(4, 16, 2, 4, 4)] * 6


def test_without_seeds_they_come_from_the_global_generator():
    backbone = dict(type="VisionTransformer3d", **TINY, keep_tokens=0.1)
    model = build_method("BYOL", backbone=backbone)
    views, losses = list(torch.rand(2, 4, 3, 4, 32, 32)), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(views, mode="loss")["loss"].item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(keep_tokens=0.0), "keep_tokens must be above 0 and at most 1, got 0.0"),
        (dict(keep_tokens=1.01), "at most 1, got 1.01"),
        (dict(keep_tokens=float("nan")), "at most 1, got nan"),
        (dict(token_pattern="block"), "one of random, tube, got 'block'"),
    ],
)
def test_bad_values(bad, message):
    with pytest.raises(ValueError, match=message):
        vit(**bad)


# -- transformers ----------------------------------------------------------------------------------


def hf_encoder(model_type: str, **changes):
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    size = "crop_size" if model_type == "vjepa2" else "image_size"
    architecture = dict(model_type=model_type, patch_size=8, hidden_size=48, num_hidden_layers=2,
                        num_attention_heads=2, **{size: 32})  # fmt: skip
    if model_type == "videomae":
        architecture |= dict(num_frames=4, intermediate_size=32)
    torch.manual_seed(0)
    made = MODELS.build(dict(type="HFEncoder", architecture=architecture, **changes)).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.train()


@pytest.mark.parametrize("model_type", ["videomae", "vjepa2"])
def test_an_encoder_of_transformers_computes_the_kept_tokens(model_type):
    """Each sample by itself, its dropped tokens cut out between the library's parts."""
    encoder = hf_encoder(model_type, keep_tokens=0.2, token_pattern="tube")
    view = torch.rand(2, 3, 4, 32, 32, dtype=torch.float64)
    with encoder.token_dropping.step([3, 4]):
        found = encoder(view)
    with encoder.token_dropping.step([3, 4]):
        kept = encoder.token_dropping.draw(2, (2, 4, 4), CPU)
    assert found.shape == (2, 48, 6) and kept.shape == (2, 6)
    part = encoder.network if model_type == "videomae" else encoder.network.encoder
    for n in range(2):
        clip = view[n : n + 1].transpose(1, 2)
        whole = part.embeddings(clip, None) if model_type == "videomae" else part.embeddings(clip)
        x = whole[:, kept[n]]
        if model_type == "videomae":
            x = part.encoder(x).last_hidden_state
            x = x if part.layernorm is None else part.layernorm(x)
        else:
            for layer in part.layer:
                x = layer(x, kept[n : n + 1])[0]
            x = part.layernorm(x)
        torch.testing.assert_close(found[n].T, x[0])
    torch.testing.assert_close(encoder.pool(found), found.mean(dim=2))


def test_vjepas_rotary_positions_are_those_of_the_kept_tokens():
    """The first frames' tokens are those of a clip of these frames; all tokens those of all."""
    encoder = hf_encoder("vjepa2")
    clip = torch.rand(2, 4, 3, 32, 32, dtype=torch.float64)
    first, every = torch.arange(16).expand(2, -1), torch.arange(32).expand(2, -1)
    for kept, frames in ((first, 2), (every, 4)):
        expected = encoder._tokens(clip[:, :frames], None)[0]
        torch.testing.assert_close(encoder._tokens(clip, kept)[0], expected)


def test_other_encoders_of_transformers_refuse():
    with pytest.raises(ValueError, match=r"keep_tokens of a dinov2 must be 1, got 0.5"):
        hf_encoder("dinov2", keep_tokens=0.5)
