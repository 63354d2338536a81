"""R(2+1)D, whose 3-D convolutions are factorised in space and time (torchvision's names)."""

from __future__ import annotations

from torch import Tensor, nn

from sce_video.models.backbones.common import ResNetBase, check_arguments, check_view
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Channels, Features, Layers


def _factorised(
    in_channels: int, mid: int, out_channels: int, kernel: int, strides: tuple[int, int]
) -> nn.Sequential:
    """Return a (1, k, k) convolution, BN, ReLU and a (3, 1, 1) convolution.

    ``strides`` are the strides in time and space.
    """
    temporal, spatial = strides
    pad = kernel // 2
    in_space = nn.Conv3d(
        in_channels,
        mid,
        kernel_size=(1, kernel, kernel),
        stride=(1, spatial, spatial),
        padding=(0, pad, pad),
        bias=False,
    )
    in_time = nn.Conv3d(
        mid,
        out_channels,
        kernel_size=(3, 1, 1),
        stride=(temporal, 1, 1),
        padding=(1, 0, 0),
        bias=False,
    )
    return nn.Sequential(in_space, nn.BatchNorm3d(mid), nn.ReLU(inplace=True), in_time)


class R2Plus1dBlock(nn.Module):
    """Two factorised convolutions, the first with stride, and a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        # With this number of channels between them, the two convolutions have as many weights as
        # one 3x3x3 convolution (arXiv 1711.11248, section 3.5). As in torchvision, the second pair
        # of a block uses the same number as the first.
        mid = in_channels * channels * 27 // (9 * in_channels + 3 * channels)
        self.conv1 = nn.Sequential(
            _factorised(in_channels, mid, channels, 3, (stride, stride)),
            nn.BatchNorm3d(channels),
            nn.ReLU(inplace=True),
        )
        self.conv2 = nn.Sequential(
            _factorised(channels, mid, channels, 3, (1, 1)), nn.BatchNorm3d(channels)
        )
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv3d(in_channels, channels, 1, stride=stride, bias=False),
                nn.BatchNorm3d(channels),
            )

    @property
    def last_norm(self) -> nn.Module:
        """The BN before the sum."""
        return self.conv2[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, T, H, W) to (N, C', T/s, H/s, W/s)."""
        return self.relu(self.conv2(self.conv1(x)) + self.downsample(x))


@MODELS.register_module()
class R2Plus1d(ResNetBase):
    """R(2+1)D (Tran et al., arXiv 1711.11248) as in torchvision, without its classifier.

    Names and shapes of the parameters equal those in ``torchvision.models.video.r2plus1d_18``
    (torchvision/models/video/resnet.py) without ``fc``, so its file loads after
    ``tools/convert/from_layout.py``. Depth 18 has 31,300,125 parameters.
    :class:`~sce_video.models.backbones.common.StagedBackbone` describes the other arguments.

    Args:
        depth: 18, or 34 with the same structure and the usual numbers of blocks.
        base_channels: Number of channels of the stem. res2 to res5 have 1, 2, 4 and 8 times as
            many. The spatial convolution of the stem has 45/64 of them.
        zero_init_residual: Whether the last BN of every block starts at 0, so that blocks start as
            the identity (arXiv 1706.02677, section 5.1). The default is torchvision's.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        depth: Layers = 18,
        base_channels: Channels = 64,
        in_channels: Features = 3,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        zero_init_residual: bool = False,
        channels_last: bool = False,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(with_cp, init_cfg)
        check_arguments(base_channels, frozen_stages, depth)
        if depth not in (18, 34):
            raise ValueError(f"depth of R2Plus1d must be one of [18, 34], got {depth}")
        self.stem = nn.Sequential(
            *_factorised(in_channels, max(1, 45 * base_channels // 64), base_channels, 7, (1, 2)),
            nn.BatchNorm3d(base_channels),
            nn.ReLU(inplace=True),
        )

        def block(stage: int, before: int, channels: int, first: bool) -> R2Plus1dBlock:
            return R2Plus1dBlock(before, channels, stride=2 if first and stage > 0 else 1)

        self.build_stages(depth, base_channels, block)
        self.finish(frozen_stages, norm_eval, zero_init_residual, channels_last)

    def stem_layers(self) -> list[nn.Module]:
        """Return the factorised 7x7 convolution."""
        return [self.stem]

    def forward(self, view: Tensor) -> Tensor:
        """Map (N, 3, T, H, W) to (N, C, T/8, H/16, W/16), with sizes rounded up."""
        check_view(view)
        return self.run_stages(view)
