"""ResNet3D, the slow pathway of SlowFast, which is the paper's video network (``tab:r3d``)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from sce_video.models.backbones.common import ResidualBlock, ResNetBase, check_arguments, check_view
from sce_video.models.backbones.frame_pools import last_and_fine, pool_frames, pooled_channels
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Channels, Features, Layers, Stored, Variant

#: The task determines these arguments: action localisation changes them for pretrained weights.
_OfTask = Annotated[int, Stored(8, in_new_tasks=False)]


def _conv(
    in_channels: int, out_channels: int, kernel: tuple[int, int], stride: int = 1, dilation: int = 1
) -> nn.Conv3d:
    """Return a convolution with "same" padding, spatial stride and dilation.

    ``kernel`` is the size in time and space.
    """
    temporal, spatial = kernel
    pad = dilation * (spatial // 2)
    return nn.Conv3d(
        in_channels,
        out_channels,
        kernel_size=(temporal, spatial, spatial),
        stride=(1, stride, stride),
        padding=(temporal // 2, pad, pad),
        dilation=(1, dilation, dilation),
        bias=False,
    )


@MODELS.register_module()
class ResNet3dSlowPath(ResNetBase):
    """ResNet3D without temporal stride. Only res4 and res5 have temporal convolutions.

    Depth 18 and 50 follow the paper, table ``tab:r3d``. Depth 34 and 101 have the same structure
    with the usual numbers of blocks. Depth 18 has 20,023,872 parameters, and depth 50 has
    31,634,496. ``ResNet3dSlowOnly(depth=18)`` in mmaction2 is a different network, because both
    convolutions of its blocks are temporal.
    :class:`~sce_video.models.backbones.common.StagedBackbone` describes the other arguments.

    Args:
        depth: 18, 34, 50 or 101.
        base_channels: Number of channels of the stem. res2 to res5 have 1, 2, 4 and 8 times as
            many, and another four times as many at depth 50 and 101.
        last_stage_stride: Spatial stride of res5, which is 1 for action localisation.
        last_stage_dilation: Spatial dilation of res5's 3x3 convolutions. Use 2 with stride 1.
        frame_pool: How the features of the frames become a representation
            (:func:`~sce_video.models.backbones.frame_pools.pool_frames`). The paper uses "mean".
        zero_init_residual: Whether the last BN of every block starts at 0, so that blocks start as
            the identity. The default is pytorchvideo's, on which the authors' code is based.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        depth: Layers,
        base_channels: Channels = 64,
        in_channels: Features = 3,
        last_stage_stride: _OfTask = 2,
        last_stage_dilation: _OfTask = 1,
        frame_pool: Variant = "mean",
        frozen_stages: int = -1,
        norm_eval: bool = False,
        zero_init_residual: bool = True,
        channels_last: bool = False,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_arguments(base_channels, frozen_stages, depth)
        if last_stage_stride not in (1, 2):
            raise ValueError(f"last_stage_stride must be 1 or 2, got {last_stage_stride}")
        if last_stage_dilation < 1:
            raise ValueError(f"last_stage_dilation must be at least 1, got {last_stage_dilation}")
        self.conv1 = _conv(in_channels, base_channels, (1, 7), stride=2)
        self.bn1 = nn.BatchNorm3d(base_channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))

        def block(stage: int, before: int, channels: int, first: bool) -> ResidualBlock:
            stride = (1, 2, 2, last_stage_stride)[stage] if first else 1
            dilation = last_stage_dilation if stage == 3 else 1
            # In res4 and res5, only the first convolution of a block is temporal (tab:r3d). The
            # other stages have no temporal convolutions.
            time = 3 if stage >= 2 else 1
            if depth < 50:
                convs = [
                    _conv(before, channels, (time, 3), stride, dilation),
                    _conv(channels, channels, (1, 3), dilation=dilation),
                ]
            else:
                convs = [
                    _conv(before, channels, (time, 1)),
                    _conv(channels, channels, (1, 3), stride, dilation),
                    _conv(channels, 4 * channels, (1, 1)),
                ]
            return ResidualBlock(convs)

        self.build_stages(depth, base_channels, block)
        self.frame_pool = frame_pool
        self.out_channels = pooled_channels(frame_pool, self.out_channels)
        self.finish(frozen_stages, norm_eval, zero_init_residual, channels_last)

    @property
    def traces_any_size(self) -> bool:
        """Whether the pool has no motion parts, which depend on the number of frames and cells."""
        return self.frame_pool == "mean"

    def frame_maps(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, 3, T, H, W) to features (N, C, T, H/32, W/32) and to maps for ``energy``."""
        check_view(view)
        return last_and_fine(self.stage_maps(view))

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to (N, C, T, H/32, W/32), or /16 with ``last_stage_stride=1``."""
        if self.frame_pool == "mean":
            check_view(view)
            return self.run_stages(view)
        features, fine = self.frame_maps(view)
        return pool_frames(features, self.frame_pool, view, fine)
