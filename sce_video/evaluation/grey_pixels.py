"""Grey pixels instead of a network, as a floor that every network must exceed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from sce_video.models.backbones.common import check_view
from sce_video.models.backbones.frame_pools import StoredClips, motion_energy, pooled_channels
from sce_video.registry import MODELS

#: Weights of red, green and blue in Rec. 601 luma.
_LUMA = (0.299, 0.587, 0.114)
#: Height and width to which a frame is reduced by averaging, as in docs/results.md.
_SIZE = (24, 32)


@MODELS.register_module()
class GreyPixels(BaseModule):
    """Grey pixels of a clip, pooled over its frames as the features of an image network.

    Frames are averaged to 24 x 32 pixels. There is nothing to learn. A network that is not better
    than this one recognises videos by their brightness, or not at all.

    Args:
        frame_pool: How the frames become a representation, see
            :func:`~sce_video.models.backbones.frame_pools.pool_frames`: mean, standard
            deviation and mean absolute difference by default; "concat" for pixels in time order.

    Raises:
        ValueError: If there is no such pool.
    """

    out_channels = 3 * _SIZE[0] * _SIZE[1]

    def __init__(self, frame_pool: str = "mean+std+absdiff") -> None:
        super().__init__()
        self.frame_pool = frame_pool
        self.out_channels = pooled_channels(frame_pool, _SIZE[0] * _SIZE[1])

    def forward(self, view: Tensor) -> Tensor:
        """Map clips (N, 3, T, H, W) to features (N, out_channels, 1, 1, 1)."""
        check_view(view)
        grey = torch.einsum("ncthw,c->nthw", view, view.new_tensor(_LUMA))
        maps = F.adaptive_avg_pool2d(grey, _SIZE)  # (N, T, 24, 32)
        pixels = maps.flatten(2)
        changes = (pixels.diff(dim=1) != 0).any(2)
        clips = StoredClips(pixels, motion_energy(maps[:, None], pixels.mean(1)), changes)
        return clips.pooled(self.frame_pool)[:, :, None, None, None]

    def pool(self, features: Tensor) -> Tensor:
        """Reshape (N, out_channels, 1, 1, 1) to (N, out_channels)."""
        return features.flatten(1)
