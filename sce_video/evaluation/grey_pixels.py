"""Grey pixels instead of a network, as a floor that every network must exceed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from sce_video.models.backbones.common import check_view
from sce_video.registry import MODELS

#: Rec. 601 luma of red, green and blue.
_LUMA = (0.299, 0.587, 0.114)
#: Height and width to which a frame is averaged, as in docs/results.md.
_SIZE = (24, 32)


@MODELS.register_module()
class GreyPixels(BaseModule):
    """Mean, standard deviation and mean absolute difference of the grey pixels of a clip.

    Frames are averaged to 24 x 32 pixels. There is nothing to learn. A network that is not better
    than this one recognises videos by their brightness, or not at all.
    """

    out_channels = 3 * _SIZE[0] * _SIZE[1]

    def forward(self, view: Tensor) -> Tensor:
        """Map clips (N, 3, T, H, W) to features (N, 2304, 1, 1, 1)."""
        check_view(view)
        grey = torch.einsum("ncthw,c->nthw", view, view.new_tensor(_LUMA))
        pixels = F.adaptive_avg_pool2d(grey, _SIZE).flatten(2)  # (N, T, 768)
        if pixels.shape[1] > 1:
            change = pixels.diff(dim=1).abs().mean(1)
        else:
            change = torch.zeros_like(pixels[:, 0])
        parts = (pixels.mean(1), pixels.std(1, correction=0), change)
        return torch.cat(parts, 1)[:, :, None, None, None]

    def pool(self, features: Tensor) -> Tensor:
        """Reshape (N, 2304, 1, 1, 1) to (N, 2304)."""
        return features.flatten(1)
