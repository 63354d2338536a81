"""ResNet for images, and for the frames of videos (torchvision's layout and names)."""

from __future__ import annotations

from torch import Tensor, nn

from sce_video.models.backbones.common import ResidualBlock, ResNetBase, check_arguments
from sce_video.models.backbones.frame_pools import (
    fold_frames,
    maps_of_frames,
    pool_frames,
    pooled_channels,
)
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Channels, Features, Layers, Variant

STEMS = ("imagenet", "small")


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size if the stride is 1."""
    return nn.Conv2d(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False
    )


@MODELS.register_module()
class ResNet2d(ResNetBase):
    """ResNet of torchvision without its classifier, applied to every frame of a clip.

    A clip of T frames is computed as T images. The frames are folded into the batch, so BN in
    training mode normalises over samples and frames together. An image is a clip of one frame.
    Names and shapes of the parameters equal those in ``torchvision.models.resnet*`` without ``fc``,
    so torchvision's files can be loaded. Depth 18 has 11,176,512 parameters, and depth 50 has
    23,508,032.
    :class:`~sce_video.models.backbones.common.StagedBackbone` describes the other arguments.

    Args:
        depth: 18, 34, 50 or 101. At depth 50 and 101, the 3x3 convolution has the stride ("v1.5").
        base_channels: Number of channels of the stem. res2 to res5 have 1, 2, 4 and 8 times as
            many, and another four times as many at depth 50 and 101.
        stem: "imagenet" is a 7x7 convolution and 3x3 max-pooling, both with stride 2. "small" is a
            3x3 convolution with stride 1 and no pooling, for CIFAR (32 pixels), Tiny-ImageNet (64)
            and STL10 (96) (paper, appendix D.1, following SimCLR, arXiv 2002.05709, appendix B.9).
            It has torch's default initialisation (juliendenize/eztorch, models/trunks/resnet.py).
        frame_pool: How frame features are pooled into a representation
            (:func:`~sce_video.models.backbones.frame_pools.pool_frames`).
        zero_init_residual: Whether the last BN of every block starts at 0, so that blocks start as
            the identity (arXiv 1706.02677, section 5.1). The default is torchvision's.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        depth: Layers,
        base_channels: Channels = 64,
        in_channels: Features = 3,
        stem: Variant = "imagenet",
        frame_pool: Variant = "mean",
        frozen_stages: int = -1,
        norm_eval: bool = False,
        zero_init_residual: bool = False,
        channels_last: bool = False,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_arguments(base_channels, frozen_stages, depth)
        if stem not in STEMS:
            raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {stem!r}")
        small = stem == "small"
        if small:
            self.conv1 = _conv(in_channels, base_channels, kernel=3)
        else:
            self.conv1 = _conv(in_channels, base_channels, kernel=7, stride=2)
        self.bn1 = nn.BatchNorm2d(base_channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)

        def block(stage: int, before: int, channels: int, first: bool) -> ResidualBlock:
            stride = 2 if first and stage > 0 else 1
            if depth < 50:
                convs = [_conv(before, channels, 3, stride), _conv(channels, channels, 3)]
            else:
                convs = [
                    _conv(before, channels, 1),
                    _conv(channels, channels, 3, stride),
                    _conv(channels, 4 * channels, 1),
                ]
            return ResidualBlock(convs)

        self.build_stages(depth, base_channels, block)
        self.frame_pool = frame_pool
        self.out_channels = pooled_channels(frame_pool, self.out_channels)
        self.finish(frozen_stages, norm_eval, zero_init_residual, channels_last)

    def reset_parameters(self) -> None:
        """Initialise the weights as in all backbones, except those of the "small" stem."""
        super().reset_parameters()
        if isinstance(self.maxpool, nn.Identity):
            self.conv1.reset_parameters()

    @property
    def traces_any_size(self) -> bool:
        """Whether the pool does not use motion energy, whose maps and cells depend on the size."""
        return "energy" not in self.frame_pool

    def frame_maps(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, 3, T, H, W) to features (N, C, T, H/32, W/32) and to maps for ``energy``.

        With the "small" stem, the features have H/8 rows and W/8 columns.
        """
        return maps_of_frames(self.stage_maps(fold_frames(view)), view)

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to the features of :meth:`frame_maps`, pooled by ``frame_pool``."""
        features, fine = self.frame_maps(view)
        return pool_frames(features, self.frame_pool, view, fine)
