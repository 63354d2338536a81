"""Vision transformer for video, with tubelets and joint attention over time and space."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.backbones.common import FreezableBackbone, check_frozen, check_view
from sce_video.models.backbones.token_dropping import TokenDropping
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Features, Layers, Stored, Variant

POSITIONS = ("sincos", "learned")
MLP_RATIO = 4
_TubeletSide = Annotated[int, Stored(32, is_width=True)]


class TubeletEmbedding(nn.Module):
    """Linear embedding of tubelets of t x p x p pixels (arXiv 2103.15691, section 3.2)."""

    def __init__(self, embed_dims: int, tubelet_size: int, patch_size: int) -> None:
        super().__init__()
        self.size = (tubelet_size, patch_size, patch_size)
        self.proj = nn.Conv3d(3, embed_dims, self.size, stride=self.size)

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to (N, C, ceil(T/t), H/p, W/p).

        An incomplete last tubelet is filled with the last frame.
        """
        return self.proj(self.filled(view))

    def of_kept(self, view: Tensor, grid: Sequence[int], kept: Tensor) -> Tensor:
        """Return the embeddings (N, K, C) of the tubelets at positions ``kept`` (N, K)."""
        cut = self.filled(view)
        for dim, size in enumerate(self.size):
            cut = cut.unflatten(2 + 2 * dim, (grid[dim], size))
        cut = cut.permute(0, 2, 4, 6, 1, 3, 5, 7)  # (N, T', H', W', 3, t, p, p), without a copy
        samples = torch.arange(len(view), device=view.device)[:, None]
        rows, columns = kept // grid[2] % grid[1], kept % grid[2]
        tubelets = cut[samples, kept // (grid[1] * grid[2]), rows, columns]
        return self.proj(tubelets.flatten(0, 1)).flatten(1).unflatten(0, kept.shape)

    def grid(self, view: Tensor) -> tuple[int, ...]:
        """Return the grid (T', H', W') of a view (N, 3, T, H, W).

        Raises:
            ValueError: If its height or width is not a multiple of the patch size.
        """
        check_view(view)
        (T, H, W), (t, p, _) = view.shape[2:], self.size
        if H % p or W % p:
            raise ValueError(
                f"views of {H}x{W} pixels cannot be divided into patches of {p}x{p}. Choose crop "
                f"sizes that are multiples of {p}, or another patch_size"
            )
        return -(-T // t), H // p, W // p

    def filled(self, view: Tensor) -> Tensor:
        """Repeat the last frame of a view until the tubelets divide its length."""
        missing = -view.shape[2] % self.size[0]
        if not missing:
            return view
        return torch.cat([view, view[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)


class Attention(nn.Module):
    """Multi-head self-attention over all tokens (N, L, C)."""

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, L, C) to the same shape."""
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, -1))  # (N, L, 3, heads, C/heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(query, key, value)  # scaled by 1/sqrt(C/heads)
        return self.proj(x.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Pre-norm attention and MLP, each with a shortcut.

    The MLP consists of two linear layers with GELU between them. ``drop_path`` is the probability
    that a sample skips the attention, and independently that it skips the MLP.
    """

    def __init__(self, embed_dims: int, num_heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = Attention(embed_dims, num_heads)
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        fc1 = nn.Linear(embed_dims, MLP_RATIO * embed_dims)
        fc2 = nn.Linear(MLP_RATIO * embed_dims, embed_dims)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, L, C) to the same shape."""
        x = x + self._dropped(self.attn(self.norm1(x)))
        return x + self._dropped(self.mlp(self.norm2(x)))

    def _dropped(self, branch: Tensor) -> Tensor:
        """Return the branch. In training, it is 0 for some samples (arXiv 1603.09382)."""
        # A target network runs in training mode but without gradient. Its branches are never
        # dropped, so keys come from the whole network, as in DINO's teacher (arXiv 2104.14294).
        if not (self.drop_path and self.training and torch.is_grad_enabled()):
            return branch
        keep = 1.0 - self.drop_path
        kept = torch.rand(len(branch), 1, 1, device=branch.device) < keep
        return branch * kept.to(branch.dtype) / keep


@MODELS.register_module()
class VisionTransformer3d(FreezableBackbone):
    """Vision transformer (arXiv 2010.11929) on tubelets, without class token.

    Every tubelet is a token, and all tokens attend to each other (arXiv 2103.15691, model 1). If
    the number of frames is not a multiple of the tubelet size, the last frame is repeated, so an
    image is a clip of one frame. The parameters have timm's names. With depth 12 and tubelets of 2
    frames and 16x16 pixels, the usual sizes are tiny (192 dimensions, 3 heads, 5,633,856
    parameters), small (384, 6, 21,884,544) and base (768, 12, 86,236,416).

    The position embedding is the sum of an embedding in time and one in space. It belongs to clips
    of ``grid_size`` tubelets, and is interpolated for other clips.

    Args:
        depth: Number of blocks.
        embed_dims: Size C of tokens and representations, a multiple of 4 and of ``num_heads``.
        num_heads: Number of attention heads.
        patch_size: Height and width of a tubelet, in pixels. Crop sizes must be multiples of it.
        tubelet_size: Number of frames in a tubelet.
        grid_size: Numbers of tubelets (T', H', W') in the clips to which the position embedding
            belongs. (4, 14, 14) corresponds to 8 frames of 224x224 pixels.
        position: "sincos" for fixed sines and cosines without parameters, or "learned".
        drop_path_rate: Probability that a sample skips the attention or the MLP of the last block.
            It increases linearly from 0 in the first block.
        frozen_stages: -1 trains everything. 0 freezes the embeddings, which helps unstable
            runs (MoCo v3, arXiv 2104.02057, section 4). 1 to 3 also freeze this many quarters
            of the blocks, and 4 freezes everything. A frozen layer has no gradient and stays in
            evaluation mode.
        with_cp: Activation checkpointing
            (:class:`~sce_video.models.backbones.common.FreezableBackbone`).
        keep_tokens: Share of the tokens that are computed for the loss of a self-supervised method.
            They are drawn from the samples' seeds. Target networks and evaluation compute all
            tokens (:class:`~sce_video.models.backbones.token_dropping.TokenDropping`).
        token_pattern: "random" keeps any tokens, and "tube" the same positions in space at all
            times.
        init_cfg: mmengine's initialisation config.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        depth: Layers = 12,
        embed_dims: Features = 384,
        num_heads: Annotated[int, Stored(256)] = 6,
        patch_size: _TubeletSide = 16,
        tubelet_size: _TubeletSide = 2,
        grid_size: Annotated[Sequence[int], Stored(64, values=3)] = (4, 14, 14),
        position: Variant = "sincos",
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        with_cp: bool = False,
        keep_tokens: float = 1.0,
        token_pattern: str = "random",
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        sizes = dict(depth=depth, num_heads=num_heads, patch_size=patch_size)
        for name, value in {**sizes, "tubelet_size": tubelet_size}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if embed_dims < 4 or embed_dims % 4 or embed_dims % num_heads:
            wanted = f"a multiple of 4 and of num_heads={num_heads}"
            raise ValueError(f"embed_dims must be {wanted}, got {embed_dims}")
        if len(grid_size) != 3 or min(grid_size) < 1:
            wanted = "three numbers (T', H', W') of at least 1"
            raise ValueError(f"grid_size must be {wanted}, got {grid_size}")
        if position not in POSITIONS:
            raise ValueError(f"position must be one of {', '.join(POSITIONS)}, got {position!r}")
        if not 0.0 <= drop_path_rate < 1.0:
            raise ValueError(f"drop_path_rate must be from 0 to below 1, got {drop_path_rate}")
        check_frozen(frozen_stages)
        self.token_dropping = TokenDropping(keep_tokens, token_pattern)
        self.grid_size = tuple(grid_size)
        self.position = position
        self.frozen_stages = frozen_stages
        self.out_channels = embed_dims
        self.patch_embed = TubeletEmbedding(embed_dims, tubelet_size, patch_size)
        if position == "learned":
            time, *space = self.grid_size
            self.position_time = nn.Parameter(torch.empty(1, embed_dims, time))
            self.position_space = nn.Parameter(torch.empty(1, embed_dims, *space))
        # The rate increases linearly from 0 in the first block to its full value in the last block.
        rates = [drop_path_rate * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(TransformerBlock(embed_dims, num_heads, r) for r in rates)
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.reset_parameters()
        self.freeze()

    def reset_parameters(self) -> None:
        """Draw weights and positions from a truncated normal distribution with deviation 0.02.

        Biases are 0, and norms are the identity.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv3d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for parameter in self._learned_positions():
            nn.init.trunc_normal_(parameter, std=0.02)

    def _learned_positions(self) -> list[nn.Parameter]:
        return [self.position_time, self.position_space] if self.position == "learned" else []

    def layers(self) -> Sequence[Sequence[nn.Module | nn.Parameter]]:
        """Return the embeddings and each block."""
        return [[self.patch_embed, *self._learned_positions()], *([b] for b in self.blocks)]

    def forward(self, view: Tensor) -> Tensor:
        """Map a view to normalised tokens.

        Args:
            view: (N, 3, T, H, W).

        Returns:
            (N, C, ceil(T/t), H/p, W/p), or only the kept tokens (N, C, K) if tokens are dropped.

        Raises:
            ValueError: If the height or width is not a multiple of the patch size.
        """
        grid = self.patch_embed.grid(view)
        positions = self.position_embedding(grid)
        kept = None
        if self.training and self.token_dropping.keep_tokens < 1.0:
            kept = self.token_dropping.draw(len(view), grid, view.device)
        if kept is None:
            x = self.patch_embed(view)
            x = (x + positions.to(x.dtype)).flatten(2).transpose(1, 2)
        else:
            x = self.patch_embed.of_kept(view, grid, kept)
            # F.embedding sums its gradient in a fixed order, whereas indexing does not.
            x = x + F.embedding(kept, positions[0].flatten(1).T).to(x.dtype)
        x = self.norm(self.run([*self.blocks], x)).transpose(1, 2)
        return x if kept is not None else x.unflatten(2, grid)

    def position_embedding(self, grid: Sequence[int]) -> Tensor:
        """Return the position embedding (1, C, T', H', W') for clips of ``grid`` tubelets."""
        grid = tuple(grid)
        if self.position == "learned":
            time: Tensor = self.position_time  # (1, C, T')
            space: Tensor = self.position_space  # (1, C, H', W')
            if grid[:1] != self.grid_size[:1]:
                time = F.interpolate(time, grid[0], mode="linear")
            if grid[1:] != self.grid_size[1:]:
                space = F.interpolate(space, grid[1:], mode="bicubic")
        else:  # half of the spatial channels encode rows, the other half columns
            C, device = self.out_channels, self.patch_embed.proj.weight.device
            time, rows, columns = (
                sine_cosine(scaled_positions(n, own, device), dims).T[None]
                for n, own, dims in zip(grid, self.grid_size, (C, C // 2, C // 2), strict=True)
            )
            rows = rows[..., None].expand(-1, -1, -1, grid[2])
            columns = columns[:, :, None].expand(-1, -1, grid[1], -1)
            space = torch.cat([rows, columns], dim=1)
        return time[..., None, None] + space[:, :, None]


def scaled_positions(count: int, own: int, device: torch.device) -> Tensor:
    """Return the centres (count,) of ``count`` tubelets, in units of a grid of ``own`` tubelets.

    Both grids have the same total length::

        own = 4      |   0   |   1   |   2   |   3   |
        count = 2    |      0.5      |      2.5      |
    """
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) * own / count - 0.5


def sine_cosine(positions: Tensor, dims: int) -> Tensor:
    """Return sines and cosines (L, dims) of positions (L,) at ``dims / 2`` wavelengths from 2 pi.

    The frequencies are 10000^(-2i / dims) (arXiv 1706.03762, section 3.5). Sines come first.
    """
    i = torch.arange(dims // 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None] * 10000.0 ** (-2.0 * i / dims)
    return torch.cat([angles.sin(), angles.cos()], dim=1)
