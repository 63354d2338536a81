"""Encoders of transformers as backbones: V-JEPA 2, VideoMAE, DINOv2, DINOv3, CLIP, X-CLIP."""

from __future__ import annotations

from typing import Any, Self

import torch.nn.functional as F
from mmengine.model import BaseModule, initialize
from torch import Tensor

from sce_video.models.backbones.common import check_view
from sce_video.models.backbones.hf_families import (
    build_network,
    build_pooler,
    config_of,
    family_of,
    projection_of,
    submodule,
    tokens_of,
)
from sce_video.models.modules.pooling import average_pool
from sce_video.registry import MODELS


@MODELS.register_module()
class HFEncoder(BaseModule):
    """A vision encoder of transformers, which takes the clips that it was trained with.

    An encoder of images (DINOv2, DINOv3, CLIP) encodes every frame of a clip, and the
    representation is the mean over the frames. The features (N, C, T', H', W') depend on ``pool``,
    and their mean over T', H', W' is the representation, so heads that average them see the same:

    ========== ============================================ ==========================
    pool       representation of a clip                     features
    ========== ============================================ ==========================
    mean       mean of the patch tokens                     tokens (N, C, T', H', W')
    class      class token                                  (N, C, T, 1, 1)
    mean_norm  mean, normalised as in a VideoMAE classifier (N, C, 1, 1, 1)
    attentive  attentive pooler of a V-JEPA 2 classifier    (N, C, 1, 1, 1)
    projection embedding shared with the texts, not         (N, D, 1, 1, 1), CLIP
               normalised                                   (N, D, T, 1, 1)
    ========== ============================================ ==========================

    Args:
        architecture: ``config.json`` of the model as plain data: ``model_type`` and what differs
            from the defaults of its class.
        pool: See above; None for the first that the family has.
        resize_to: Side of the square to which frames of other sizes are resized, antialiased and
            in float: for processors that do so (DINOv3's); None refuses what does not fit.
        frozen_stages: -1 trains everything; 0 freezes the embeddings, s also s quarters of the
            blocks, 4 everything. A frozen part takes no gradient and stays in evaluation mode.
        init_cfg: mmengine's initialisation config, e.g. ``dict(type="Pretrained",
            checkpoint=..., prefix="backbone.")``.

    Raises:
        ValueError: an unknown model type, a pool that the model does not have, or a value out of
            its range.
        MissingPackageError: transformers is not installed.
    """

    def __init__(
        self,
        architecture: dict[str, Any],
        pool: str | None = None,
        resize_to: int | None = None,
        frozen_stages: int = -1,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        self.family = family_of(architecture.get("model_type"))
        self.pool_name = self.family.pools[0] if pool is None else pool
        if self.pool_name not in self.family.pools:
            raise ValueError(
                f"pool of a {architecture['model_type']} must be one of "
                f"{', '.join(self.family.pools)}, got {pool!r}"
            )
        if not -1 <= frozen_stages <= 4:
            raise ValueError(f"frozen_stages must be from -1 to 4, got {frozen_stages}")
        config = config_of(architecture)
        self.resize_to = resize_to
        self.frozen_stages = frozen_stages
        self.network = build_network(config)
        if self.pool_name in ("attentive", "mean_norm"):
            self.pooler = build_pooler(config)
        projected = self.pool_name == "projection"
        self.out_channels = config.projection_dim if projected else config.hidden_size
        vision = getattr(config, "vision_config", config)
        self._patch = _side(vision.patch_size)
        self._tubelet = getattr(vision, "tubelet_size", 1)
        self._size, self._frames = _fixed_size(config, vision), _fixed_frames(config, vision)
        self._freeze()

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names; transformers has drawn the weights otherwise."""
        if self.init_cfg:
            initialize(self, self.init_cfg)

    def _freeze(self) -> None:
        """Stop gradients and dropout of the frozen part."""
        if self.frozen_stages < 0:
            return
        layers = submodule(self.network, self.family.layers)
        count = round(len(layers) * self.frozen_stages / 4)
        parts = [submodule(self.network, self.family.embeddings), *layers[:count]]
        for part in [self] if self.frozen_stages == 4 else parts:
            for module in part.modules():
                module.training = False
            part.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Training mode, except for what is frozen."""
        super().train(mode)
        self._freeze()
        return self

    def forward(self, view: Tensor) -> Tensor:
        """(N, 3, T, H, W) to features (N, C, T', H', W'), see the class.

        Raises:
            ValueError: no view (N, 3, T, H, W), or one that the encoder cannot take.
        """
        check_view(view)
        N, _, T = view.shape[:3]
        frames = view.transpose(1, 2)  # (N, T, 3, H, W)
        if self.resize_to is not None and tuple(view.shape[3:]) != (self.resize_to,) * 2:
            images = frames.flatten(0, 1)
            side = (self.resize_to, self.resize_to)
            images = F.interpolate(images, side, mode="bilinear", antialias=True)
            frames = images.unflatten(0, (N, T))
        self.check_clip(T, *frames.shape[3:])
        clip = frames.flatten(0, 1) if self.family.per_frame else frames
        if self.pool_name == "projection":
            pooled: Tensor | None = projection_of(self.network, clip)
        else:
            tokens, class_token = tokens_of(self.network, clip)
            if self.pool_name == "mean":
                return self._on_grid(tokens, N, *frames.shape[3:])
            if self.pool_name == "mean_norm":
                tokens = tokens.mean(dim=1)
            pooled = class_token if self.pool_name == "class" else self.pooler(tokens)
        assert pooled is not None
        return pooled.unflatten(0, (N, -1)).transpose(1, 2)[..., None, None]

    def _on_grid(self, tokens: Tensor, N: int, height: int, width: int) -> Tensor:
        """Patch tokens in the order time, row, column as (N, C, T', H', W')."""
        rows, columns = height // self._patch, width // self._patch
        grid = tokens.reshape(N, -1, rows, columns, tokens.shape[-1])
        return grid.permute(0, 4, 1, 2, 3)

    def check_clip(self, frames: int, height: int, width: int) -> None:
        """Raise ValueError, which says what the encoder takes, for other clips."""
        name = type(self.network).__name__
        if self._frames is not None and frames != self._frames:
            raise ValueError(
                f"{name} takes clips of {self._frames} frames, to which its positions belong, got "
                f"{frames}: set num_frames={self._frames} in the pipelines"
            )
        if frames > self._tubelet and frames % self._tubelet:
            raise ValueError(
                f"{name} takes a number of frames that is a multiple of {self._tubelet}, got "
                f"{frames}"
            )
        if self._size is not None and (height, width) != (self._size, self._size):
            raise ValueError(
                f"{name} takes frames of {self._size}x{self._size} pixels, to which its positions "
                f"belong, got {height}x{width}: set the crop sizes of the pipelines"
            )
        if height % self._patch or width % self._patch:
            raise ValueError(
                f"{name} takes frames whose sides are multiples of its patches of {self._patch} "
                f"pixels, got {height}x{width}"
            )

    @property
    def takes_one_size(self) -> bool:
        """Whether its positions belong to frames of one size."""
        return self._size is not None

    def pool(self, features: Tensor) -> Tensor:
        """Representation (N, C): the mean of the features over time and space."""
        return average_pool(features)


def _side(value: Any) -> int:
    """One number of a size that may be given as two equal ones."""
    return int(value[0] if isinstance(value, list | tuple) else value)


def _fixed_size(config: Any, vision: Any) -> int | None:
    """Side of the only frames that the position embedding fits; None if it adapts."""
    if config.model_type.startswith("dino"):
        return None
    return _side(vision.crop_size if config.model_type == "vjepa2" else vision.image_size)


def _fixed_frames(config: Any, vision: Any) -> int | None:
    """The only number of frames that the position embedding fits; None if any."""
    return vision.num_frames if config.model_type in ("videomae", "xclip") else None
