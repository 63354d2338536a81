"""ResNet3D, the slow pathway of SlowFast: the video network of the paper (table ``tab:r3d``)."""

from __future__ import annotations

from torch import Tensor, nn

from sce_video.models.backbones.common import (
    STAGE_BLOCKS,
    BasicBlockBase,
    BottleneckBase,
    ResNetBase,
    check_arguments,
    check_view,
)
from sce_video.registry import MODELS

# Temporal convolutions are in res4 and res5 only (paper, table tab:r3d).
_TEMPORAL_STAGES = (False, False, True, True)


def _conv(
    in_channels: int,
    out_channels: int,
    kernel: tuple[int, int],
    stride: int = 1,
    dilation: int = 1,
) -> nn.Conv3d:
    """A convolution with kernel (time, space), "same" padding, spatial stride and dilation."""
    temporal, spatial = kernel
    return nn.Conv3d(
        in_channels,
        out_channels,
        kernel_size=(temporal, spatial, spatial),
        stride=(1, stride, stride),
        padding=(temporal // 2, dilation * (spatial // 2), dilation * (spatial // 2)),
        dilation=(1, dilation, dilation),
        bias=False,
    )


class BasicBlock(BasicBlockBase):
    """Two convolutions of R18 and R34; only the **first** is temporal (tab:r3d)."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, dilation: int, temporal: bool
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, (3 if temporal else 1, 3), stride, dilation)
        self.bn1 = nn.BatchNorm3d(channels)
        self.conv2 = _conv(channels, channels, (1, 3), dilation=dilation)
        self.bn2 = nn.BatchNorm3d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, channels * self.expansion, stride)


class Bottleneck(BottleneckBase):
    """Three convolutions of R50 and R101; the first is temporal, the stride on the 3x3."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, dilation: int, temporal: bool
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, (3 if temporal else 1, 1))
        self.bn1 = nn.BatchNorm3d(channels)
        self.conv2 = _conv(channels, channels, (1, 3), stride, dilation)
        self.bn2 = nn.BatchNorm3d(channels)
        self.conv3 = _conv(channels, channels * self.expansion, (1, 1))
        self.bn3 = nn.BatchNorm3d(channels * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, channels * self.expansion, stride)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Identity, or a strided 1x1x1 projection where the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        _conv(in_channels, out_channels, (1, 1), stride), nn.BatchNorm3d(out_channels)
    )


_BLOCKS: dict[int, type[BasicBlock] | type[Bottleneck]] = {
    18: BasicBlock,
    34: BasicBlock,
    50: Bottleneck,
    101: Bottleneck,
}


@MODELS.register_module()
class ResNet3dSlowPath(ResNetBase):
    """ResNet3D without temporal stride, temporal convolutions in res4 and res5 only.

    Source: paper, table ``tab:r3d`` (18 and 50; 34 and 101 follow the same rule with the usual
    block counts). 20,023,872 parameters at depth 18, 31,634,496 at depth 50. mmaction2's
    ``ResNet3dSlowOnly(depth=18)`` is another network: both of its convolutions are temporal.

    Args:
        depth: 18, 34, 50 or 101.
        base_channels: Channels of the stem; res2..res5 have 1, 2, 4, 8 times as many (times 4
            again at depth 50 and 101).
        in_channels: Channels of the frames.
        last_stage_stride: Spatial stride of res5: 2, or 1 for action localisation.
        last_stage_dilation: Spatial dilation of res5's 3x3 convolutions: 1, or 2 with stride 1.
        zero_init_residual: Start the last BN of every block at 0, so that blocks begin as the
            identity (pytorchvideo's default, on which the authors' code builds).
        frozen_stages, norm_eval, channels_last, init_cfg: see
            :class:`~sce_video.models.backbones.common.StagedBackbone`.

    Raises:
        ValueError: an unknown depth, or a value out of its range.
    """

    def __init__(
        self,
        depth: int,
        base_channels: int = 64,
        in_channels: int = 3,
        last_stage_stride: int = 2,
        last_stage_dilation: int = 1,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        zero_init_residual: bool = True,
        channels_last: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        check_arguments(depth, base_channels, frozen_stages)
        if last_stage_stride not in (1, 2):
            raise ValueError(f"last_stage_stride must be 1 or 2, got {last_stage_stride}")
        if last_stage_dilation < 1:
            raise ValueError(f"last_stage_dilation must be at least 1, got {last_stage_dilation}")
        self.depth = depth

        self.conv1 = _conv(in_channels, base_channels, (1, 7), stride=2)
        self.bn1 = nn.BatchNorm3d(base_channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))
        strides = (1, 2, 2, last_stage_stride)
        dilations = (1, 1, 1, last_stage_dilation)
        self.out_channels = base_channels
        for stage, blocks in enumerate(STAGE_BLOCKS[depth]):
            layer = self._make_stage(
                base_channels * 2**stage,
                blocks,
                strides[stage],
                dilations[stage],
                _TEMPORAL_STAGES[stage],
            )
            self.add_module(f"layer{stage + 1}", layer)
        self.finish(frozen_stages, norm_eval, zero_init_residual, channels_last)

    def _make_stage(
        self, channels: int, blocks: int, stride: int, dilation: int, temporal: bool
    ) -> nn.Sequential:
        block_type = _BLOCKS[self.depth]
        stage = []
        for i in range(blocks):
            first_stride = stride if i == 0 else 1
            stage.append(block_type(self.out_channels, channels, first_stride, dilation, temporal))
            self.out_channels = channels * block_type.expansion
        return nn.Sequential(*stage)

    def forward(self, view: Tensor) -> Tensor:
        """(N, 3, T, H, W) to (N, C, T, H/32, W/32); H/16, W/16 with ``last_stage_stride=1``."""
        check_view(view)
        return self.run_stages(view)
