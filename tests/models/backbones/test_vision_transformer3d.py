"""VisionTransformer3d compared with torch's encoder layers, closed formulas and loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sce_video.models import VisionTransformer3d

TINY = dict(depth=4, embed_dims=16, num_heads=2, patch_size=8, grid_size=(2, 4, 4))


def vit(seed: int = 0, **changes) -> VisionTransformer3d:
    """Build a tiny network in evaluation mode, with random parameters everywhere."""
    torch.manual_seed(seed)
    model = VisionTransformer3d(**{**TINY, **changes})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def torch_blocks(model: VisionTransformer3d) -> nn.Module:
    """Build the blocks and the final norm from torch.nn.TransformerEncoderLayer."""
    C = model.out_channels
    layers: list[nn.Module] = []
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            C, block.attn.num_heads, 4 * C, 0.0, F.gelu, 1e-6, batch_first=True, norm_first=True
        )
        theirs = {
            "self_attn.in_proj_": block.attn.qkv,
            "self_attn.out_proj.": block.attn.proj,
            "linear1.": block.mlp.fc1,
            "linear2.": block.mlp.fc2,
            "norm1.": block.norm1,
            "norm2.": block.norm2,
        }
        state = {f"{a}{b}": getattr(m, b) for a, m in theirs.items() for b in ("weight", "bias")}
        layer.load_state_dict(state)
        layers.append(layer)
    return nn.Sequential(*layers, model.norm)


@pytest.mark.parametrize("position", ["sincos", "learned"])
def test_forward_equals_torchs_encoder_layers(position):
    model = vit(position=position)
    blocks = torch_blocks(model).train()  # in evaluation mode, torch uses a fused kernel
    view = torch.rand(2, 3, 4, 32, 32, generator=torch.Generator().manual_seed(1))
    tokens = []  # the order of the tubelets is time, row, column
    weight, bias = model.patch_embed.proj.weight, model.patch_embed.proj.bias
    positions = model.position_embedding((2, 4, 4))[0]
    for t in range(2):
        for i in range(4):
            for j in range(4):
                tubelet = view[:, :, 2 * t : 2 * t + 2, 8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
                token = tubelet.flatten(1) @ weight.flatten(1).T + bias
                tokens.append(token + positions[:, t, i, j])
    with torch.no_grad():
        expected = blocks(torch.stack(tokens, dim=1))
        features = model(view)
    assert features.shape == (2, 16, 2, 4, 4) and expected.std() > 0.1
    torch.testing.assert_close(features.flatten(2).transpose(1, 2), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.pool(features), expected.mean(dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("embed_dims", "num_heads", "parameters"),
    [(192, 3, 5_633_856), (384, 6, 21_884_544), (768, 12, 86_236_416)],
)
def test_parameters_of_the_usual_sizes(embed_dims, num_heads, parameters):
    with torch.device("meta"):
        model = VisionTransformer3d(embed_dims=embed_dims, num_heads=num_heads)
        learned = VisionTransformer3d(
            embed_dims=embed_dims, num_heads=num_heads, position="learned"
        )
    C = embed_dims
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(p.numel() for p in learned.parameters()) == parameters + C * (4 + 14 * 14)


def test_sines_and_cosines_against_a_loop():
    positions = vit().position_embedding((3, 2, 5))[0]
    assert positions.shape == (16, 3, 2, 5)
    for t in range(3):
        for i in range(2):
            for j in range(5):
                # Centres in units of the grid (2, 4, 4), which has the same extent.
                x, y, z = (t + 0.5) * 2 / 3 - 0.5, (i + 0.5) * 4 / 2 - 0.5, (j + 0.5) * 4 / 5 - 0.5

                def waves(p, dims):
                    angles = [p / 10000 ** (2 * k / dims) for k in range(dims // 2)]
                    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]

                space = waves(y, 8) + waves(z, 8)
                expected = [a + b for a, b in zip(waves(x, 16), space, strict=True)]
                torch.testing.assert_close(positions[:, t, i, j], torch.tensor(expected))


def test_learned_positions_are_interpolated_in_time_and_space():
    model = vit(position="learned")
    own = model.position_embedding((2, 4, 4))
    expected = model.position_time[..., None, None] + model.position_space[:, :, None]
    assert torch.equal(own, expected)
    with torch.no_grad():
        model.position_time.copy_(torch.tensor([0.0, 1.0]).expand(1, 16, 2))
        model.position_space.copy_(torch.arange(4.0)[:, None].expand(1, 16, 4, 4))
    longer = model.position_embedding((4, 4, 4))[0, 0, :, 0, 0]
    torch.testing.assert_close(longer, torch.tensor([0.0, 0.25, 0.75, 1.0]))
    smaller = model.position_embedding((2, 2, 3))[0, 0]
    assert smaller.shape == (2, 2, 3)
    torch.testing.assert_close(smaller[0, 0] + smaller[0, 1], torch.full((3,), 3.0))


def test_drop_path_drops_samples_of_a_training_step_and_keeps_the_mean():
    model = vit(drop_path_rate=0.5)
    assert [block.drop_path for block in model.blocks] == pytest.approx([0, 1 / 6, 1 / 3, 0.5])
    block = model.blocks[-1].train()
    branch = torch.ones(4000, 1, 2)
    dropped = block._dropped(branch)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped[..., 0], dropped[..., 1])  # whole samples
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.06)
    assert block.eval()._dropped(branch) is branch


@pytest.mark.parametrize("position", ["sincos", "learned"])
@pytest.mark.parametrize(("frozen", "blocks"), [(-1, 0), (0, 0), (3, 3), (4, 4)])
def test_frozen_stages_are_quarters_of_the_blocks(frozen, blocks, position):
    model = VisionTransformer3d(
        **TINY, frozen_stages=frozen, drop_path_rate=0.5, position=position
    ).train()
    parts = ["patch_embed.", "position_"] if frozen >= 0 else []
    parts += [f"blocks.{i}." for i in range(blocks)] + (["norm."] if frozen == 4 else [])
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != name.startswith(tuple(parts)), name
    assert [block.training for block in model.blocks] == [i >= blocks for i in range(4)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(depth=0), "depth must be at least 1, got 0"),
        (dict(num_heads=3), "multiple of 4 and of num_heads=3, got 16"),
        (dict(embed_dims=6), "multiple of 4 and of num_heads=2, got 6"),
        (dict(grid_size=(0, 14, 14)), r"three numbers.*got \(0, 14, 14\)"),
        (dict(position="rotary"), "one of sincos, learned, got 'rotary'"),
        (dict(drop_path_rate=1.0), "drop_path_rate must be from 0 to below 1, got 1.0"),
    ],
)
def test_bad_values(bad, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer3d(**{**TINY, **bad})


def test_views_that_are_refused():
    with pytest.raises(ValueError, match=r"30x32 pixels.*8x8.*multiples of 8"):
        vit()(torch.rand(1, 3, 2, 30, 32))
