"""Token dropping compared with tokens listed by hand, and results that must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.hf_models import _model
from helpers.host_waits import host_waits
from helpers.query_methods import build_method

from sce_video.models.backbones import HFEncoder, VisionTransformer3d
from sce_video.models.backbones.hf_encoder import architecture_of
from sce_video.models.backbones.token_dropping import TokenDropping

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
    """Return the kept positions (t, i, j) by the rule in the docstring of the class."""
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
    """Encode two views in one batch, then a third one, with 5 frames in tubelets of 2."""
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


def test_a_sample_keeps_its_tokens_in_any_batch_and_all_positions_are_as_likely():
    dropping = TokenDropping(0.25, "random")
    with dropping.step(range(400)):
        first, second = dropping.draw(400, (2, 4, 4), CPU), dropping.draw(400, (2, 4, 4), CPU)
    with dropping.step([399, 17]):
        again = dropping.draw(2, (2, 4, 4), CPU)
    assert torch.equal(again, first[[399, 17]])
    assert not torch.equal(first, second)  # views keep different tokens
    counts = torch.bincount(torch.cat([first, second]).flatten(), minlength=32)
    assert counts.sum() == 800 * 8 and counts.min() > 120 and counts.max() < 280  # 200 times each
    assert all(len(set(row)) == 8 and row == sorted(row) for row in first.tolist())


def test_target_evaluation_and_other_users_compute_all_tokens():
    backbone = dict(type="VisionTransformer3d", **TINY, keep_tokens=0.1)
    model, found = build_method("SCE", backbone=backbone), []
    for network in (model.backbone, model.target.backbone):
        network.register_forward_hook(lambda *given: found.append(tuple(given[2].shape[2:])))
    views, every = list(torch.rand(2, 4, 3, 4, 32, 32)), (2, 4, 4)
    model(views, {"seed": [1, 2, 3, 4]}, mode="loss")["loss"].backward()
    assert found == [every, every, (3,), (3,)]  # keys, then queries
    model(views)
    with torch.no_grad():
        model(views, mode="loss")
    model.eval()(views, mode="loss")
    assert found[4:] == [every] * 10


def hf_encoder(family: str) -> HFEncoder:
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    encoder = HFEncoder(architecture_of(_model(family).config), keep_tokens=0.2).double()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder.train()


def test_videomae_computes_the_kept_tokens():
    encoder = hf_encoder("videomae")
    view = torch.rand(2, 3, 4, 32, 32, dtype=torch.float64)
    tensors = [*encoder.parameters(), *encoder.buffers()]
    with encoder.token_dropping.step([3, 4]), host_waits(tensors) as waits:
        found = encoder(view)
    assert not waits
    with encoder.token_dropping.step([3, 4]):
        kept = encoder.token_dropping.draw(2, (2, 4, 4), CPU)
    assert found.shape == (2, 32, 6)
    for n in range(2):
        tokens = encoder.network.embeddings(view[n : n + 1].transpose(1, 2), None)[:, kept[n]]
        expected = encoder.network.encoder(tokens).last_hidden_state
        norm = encoder.network.layernorm or torch.nn.Identity()
        torch.testing.assert_close(found[n].T, norm(expected)[0])


def test_vjepas_rotary_positions_are_those_of_the_kept_tokens():
    """Tokens of the first frames equal those of a clip of only these frames."""
    encoder = hf_encoder("vjepa2")
    clip = torch.rand(2, 4, 3, 32, 32, dtype=torch.float64)
    first, every = torch.arange(16).expand(2, -1), torch.arange(32).expand(2, -1)
    for kept, frames in ((first, 2), (every, 4)):
        expected = encoder.network.encoder(clip[:, :frames]).last_hidden_state
        torch.testing.assert_close(encoder._kept_tokens(clip, kept), expected)
    with encoder.token_dropping.step([3, 4]):
        assert encoder(clip.transpose(1, 2)).shape == (2, 48, 6)
