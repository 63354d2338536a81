"""Pooling, stages, initialisation, freezing and activation checkpointing of backbones."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from packaging.version import Version
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

#: Whether the second forward pass of checkpointing updates BN statistics again in compiled code
_WRITES_TWICE = Version(torch.__version__) < Version("2.9")


def average_pool(features: Tensor) -> Tensor:
    """Return the mean (N, C) of features (N, C, ...) over all dimensions after C.

    Raises:
        ValueError: If the features are not a tensor of this shape.
    """
    # A backbone may return something else. For example, SlowFast of mmaction2 returns a tuple.
    if not isinstance(features, Tensor) or features.ndim < 3:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"average pooling needs a tensor (N, C, ...), got {shape}")
    return features.mean(dim=tuple(range(2, features.ndim)))


def map_tokens(features: Tensor) -> Tensor:
    """Return the tokens (N, L, C) of features (N, C, ...), one per position, last index fastest.

    Raises:
        ValueError: If there are fewer than two positions.
    """
    # If there is only one position, the encoder has already pooled its features.
    if not isinstance(features, Tensor) or features.ndim < 3 or features[0, 0].numel() < 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            "attentive pooling needs features (N, C, ...) with two or more positions, got "
            f"{shape}. This backbone returns no tokens. An HFEncoder returns patch tokens with "
            "model.backbone.pool=mean, if its family supports this pool"
        )
    return features.flatten(2).transpose(1, 2)


def rows_of_positions(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of student and teacher, with one row per position.

    The student's features are interpolated to the teacher's grid.

    Args:
        student: (N, C, ...).
        teacher: (N, D, T, H, W).

    Returns:
        (N T H W, C) and (N T H W, D).

    Raises:
        ValueError: If the features have only one position.
    """
    for name, features in (("student", student), ("teacher", teacher)):
        if features.ndim != 5 or features[0, 0].numel() < 2:
            raise ValueError(
                f"objective='tokens' compares positions, but the {name}'s features of a clip have "
                f"only one, {tuple(features.shape[1:])}. Use 'cosine' or 'relations'"
            )
    on_grid = F.interpolate(student, teacher.shape[2:], mode="trilinear")
    rows, keys = (x.movedim(1, -1).flatten(0, -2) for x in (on_grid, teacher))
    return rows, keys


def represent(backbone: nn.Module, view: Tensor) -> Tensor:
    """Return the representation h (N, C) of a view (N, 3, T, H, W), the backbone's pooled features.

    The backbones of this package have a method ``pool(features) -> (N, C)``. The features of any
    other backbone, for example from mmaction2, are averaged (:func:`average_pool`).
    """
    features = backbone(view)
    pool = getattr(backbone, "pool", None)
    # A submodule called "pool" is a layer of the network and has nothing to do with this method.
    if pool is None or isinstance(pool, nn.Module):
        return average_pool(features)
    return pool(features)


def check_frozen(frozen_stages: int) -> None:
    """Check that a stage exists.

    Raises:
        ValueError: If ``frozen_stages`` is not from -1 to 4.
    """
    if not -1 <= frozen_stages <= 4:
        raise ValueError(f"frozen_stages must be from -1 to 4, got {frozen_stages}")


def check_view(view: Tensor) -> None:
    """Check that a view is (N, C, T, H, W).

    Raises:
        ValueError: If it has another number of dimensions.
    """
    if view.ndim != 5:
        raise ValueError(f"expected a view (N, C, T, H, W), got shape {tuple(view.shape)}")


def init_info_to_file(module: BaseModule) -> None:
    """Write how each parameter was initialised to the log file, if there is one.

    Our models use this function instead of mmengine's, which prints hundreds of lines if there is
    no log file, for example in your own training loop.
    """
    handlers = MMLogger.get_current_instance().handlers
    if any(isinstance(handler, logging.FileHandler) for handler in handlers):
        BaseModule._dump_init_info(module)


class FreezableBackbone(BaseModule):
    """A backbone that lists its layers, so that the first ones can be frozen or learn more slowly.

    ``frozen_stages=-1`` trains everything. 0 freezes the embeddings or the stem, 1 to 3 also freeze
    this many quarters of the blocks or stages, and 4 freezes everything. A frozen layer has no
    gradient and stays in evaluation mode, without dropout or new statistics.

    ``with_cp`` is mmaction2's name for activation checkpointing. A step with gradient then keeps
    only the inputs of the blocks, and computes each block again in the backward pass. This saves
    memory but costs another forward pass. Loss, gradients and statistics are the same.
    """

    _dump_init_info = init_info_to_file
    frozen_stages: int

    def __init__(self, with_cp: bool = False, init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.with_cp = with_cp

    @abstractmethod
    def layers(self) -> Sequence[Sequence[nn.Module | nn.Parameter]]:
        """Return the layers in order: the embeddings or the stem, then each block or stage.

        Parts that belong to no layer, such as a final norm or a pooler, count as the end of the
        network.
        """

    def depths(self) -> dict[nn.Parameter, int]:
        """Return the depth of each parameter.

        The depth is the index of the parameter's layer in :meth:`layers`. For a parameter that
        belongs to no layer, it is the number of layers.
        """
        layers = self.layers()
        found = dict.fromkeys(self.parameters(), len(layers))
        # Set earlier layers last, because they take precedence. For example, a ConvNeXt's stem is
        # also part of its first stage.
        for depth, layer in reversed([*enumerate(layers)]):
            for part in layer:
                own = part.parameters() if isinstance(part, nn.Module) else [part]
                found |= dict.fromkeys(own, depth)
        return found

    def freeze(self) -> None:
        """Turn off the gradients and the training mode of frozen layers."""
        frozen: list[nn.Module | nn.Parameter] = [self] if self.frozen_stages == 4 else []
        if 0 <= self.frozen_stages < 4:
            layers = self.layers()
            count = 1 + round((len(layers) - 1) * self.frozen_stages / 4)
            frozen = [part for layer in layers[:count] for part in layer]
        for part in frozen:
            for module in part.modules() if isinstance(part, nn.Module) else ():
                module.training = False
            part.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of all layers that are not frozen."""
        super().train(mode)
        self.freeze()  # nn.Module.train() also changes frozen layers
        return self

    def pool(self, features: Tensor) -> Tensor:
        """Average features (N, C, T, H, W) over time and space to the representation (N, C)."""
        return average_pool(features)

    def run(self, blocks: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Run blocks one after the other.

        With ``with_cp``, the backward pass computes each block again. Without gradient, as in
        target networks and evaluation, no activations are kept anyway.
        """
        if self.with_cp and torch.is_grad_enabled():
            for block in blocks:
                x = checkpointed([block], x)
        else:
            for block in blocks:
                x = block(x)
        return x


def checkpointed(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run layers one after the other, and compute them again in the backward pass.

    Only x is kept. The second forward pass uses the random numbers and autocast settings of the
    first one, and running statistics change only once.
    """

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    # A compiler cannot trace contexts. Since torch 2.9, compiled code needs no _FixedStatistics,
    # because only the first pass updates the statistics. In earlier versions, both passes update
    # them, so checkpointing is skipped and all activations are kept.
    if torch.compiler.is_compiling():
        return run(x) if _WRITES_TWICE else checkpoint(run, x, use_reentrant=False)
    contexts = nullcontext(), _FixedStatistics(layers)  # one for the first pass, one for the second
    return checkpoint(run, x, use_reentrant=False, context_fn=lambda: contexts)


class _FixedStatistics:
    """A context in which BN normalises by the batch without changing its running statistics.

    With torch's checkpointing alone, the second forward pass would count the batch again.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        modules = itertools.chain.from_iterable(layer.modules() for layer in layers)
        self.norms = [module for module in modules if isinstance(module, _BatchNorm)]

    def __enter__(self) -> None:
        # Setting track_running_stats=False instead would change which tensors are saved for the
        # backward pass.
        self.before = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
            if norm.num_batches_tracked is not None:  # SyncBN requires a counter
                norm.num_batches_tracked = norm.num_batches_tracked.clone()

    def __exit__(self, *error: object) -> None:
        for norm, before in zip(self.norms, self.before, strict=True):
            norm.momentum, norm.num_batches_tracked = before


class StagedBackbone(FreezableBackbone):
    """A stem and four stages, with their initialisation, freezing and pooling.

    A subclass builds the stem and the stages, calls :meth:`finish`, and lists them in
    :meth:`stem_layers` and :meth:`stages`. Residual blocks have ``last_norm``, the BN before the
    sum. Clips with fewer than ``least_frames`` frames have a different graph of operators than
    longer ones. All subclasses share these options:

    - ``frozen_stages``: Number of frozen stages as in :class:`FreezableBackbone`, where a quarter
      is a stage.
    - ``norm_eval``: Whether all BN layers stay in evaluation mode during training.
    - ``channels_last``: Whether to compute in ``torch.channels_last(_3d)`` memory, which is faster
      on tensor cores.
    - ``with_cp``: Activation checkpointing as in :class:`FreezableBackbone`, where the stem is one
      block.
    - ``init_cfg``: mmengine's initialisation config, for example ``dict(type="Pretrained",
      checkpoint=..., prefix="backbone.")``.
    """

    least_frames = 1

    @property
    def traces_any_size(self) -> bool:
        """Whether one traced graph accepts clips of any length, height and width."""
        return True

    @abstractmethod
    def stem_layers(self) -> list[nn.Module]:
        """Return the layers before the first stage."""

    def stages(self) -> list[nn.Sequential]:
        """Return the four stages after the stem: res2 to res5 of a ResNet."""
        return [getattr(self, f"layer{i}") for i in range(1, 5)]

    def finish(
        self, frozen_stages: int, norm_eval: bool, zero_init_residual: bool, channels_last: bool
    ) -> None:
        """Store the options, initialise the weights, set their memory format, and freeze layers."""
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.zero_init_residual = zero_init_residual
        self.channels_last = channels_last
        self.reset_parameters()
        if channels_last:
            self.to(memory_format=self._memory_format())
        self.freeze()

    def reset_parameters(self) -> None:
        """Initialise convolutions by He's method (fan out), and BN weights with 1.

        With ``zero_init_residual``, the last BN of each block starts at 0.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _BatchNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        if self.zero_init_residual:
            for module in self.modules():
                if isinstance(last_norm := getattr(module, "last_norm", None), _BatchNorm):
                    nn.init.zeros_(last_norm.weight)

    def _memory_format(self) -> torch.memory_format:
        is_3d = any(isinstance(module, nn.Conv3d) for module in self.modules())
        return torch.channels_last_3d if is_3d else torch.channels_last

    def layers(self) -> Sequence[Sequence[nn.Module]]:
        """Return stem and stages."""
        return [self.stem_layers(), *([stage] for stage in self.stages())]

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, except for frozen layers and, with ``norm_eval``, BN."""
        super().train(mode)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def run_stages(self, x: Tensor) -> Tensor:
        """Run stem and stages in the memory format of the weights."""
        for maps in self.stage_maps(x):
            x = maps
        return x

    def stage_maps(self, x: Tensor) -> Iterator[Tensor]:
        """Run stem and stages in the weights' memory format, and yield the maps of each stage."""
        if self.channels_last:
            x = x.contiguous(memory_format=self._memory_format())
        by_block = self.with_cp and torch.is_grad_enabled()
        x = checkpointed(self.stem_layers(), x) if by_block else self.run(self.stem_layers(), x)
        for stage in self.stages():
            x = self.run([*stage] if by_block else [stage], x)
            yield x


# Number of blocks in res2, res3, res4 and res5, by the network's depth (He et al. 2016, table 1)
STAGE_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def check_arguments(base_channels: int, frozen_stages: int, depth: int = 18) -> None:
    """Check depth, channels and frozen stages.

    Raises:
        ValueError: If one of them is unknown or out of range.
    """
    if depth not in STAGE_BLOCKS:
        raise ValueError(f"depth must be one of {sorted(STAGE_BLOCKS)}, got {depth}")
    if base_channels < 1:
        raise ValueError(f"base_channels must be at least 1, got {base_channels}")
    check_frozen(frozen_stages)


def batch_norm(conv: nn.Conv2d | nn.Conv3d) -> _BatchNorm:
    """Return the BN that follows a convolution."""
    kind = nn.BatchNorm2d if isinstance(conv, nn.Conv2d) else nn.BatchNorm3d
    return kind(conv.out_channels)


class ResidualBlock(nn.Module):
    """Convolutions ``conv1, conv2, ...`` with BN and ReLU, and a shortcut (torchvision's names).

    The shortcut is the identity, or a 1x1 convolution if the block changes the size or the number
    of channels.
    """

    def __init__(self, convs: Sequence[nn.Conv2d | nn.Conv3d]) -> None:
        super().__init__()
        for i, conv in enumerate(convs, start=1):
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", batch_norm(conv))
        self.depth = len(convs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        before, after = convs[0].in_channels, convs[-1].out_channels
        stride: Any = tuple(map(math.prod, zip(*(conv.stride for conv in convs), strict=True)))
        if before != after or max(stride) > 1:
            shortcut = type(convs[0])(before, after, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, batch_norm(shortcut))

    @property
    def last_norm(self) -> nn.Module:
        """The BN before the sum."""
        return getattr(self, f"bn{self.depth}")

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, ...) to (N, C', ...), with the strides of the convolutions."""
        shortcut = self.downsample(x)
        for i in range(1, self.depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            x = self.relu(x if i < self.depth else x + shortcut)
        return x


class ResNetBase(StagedBackbone):
    """Parent class of networks with ``conv1, bn1, relu, maxpool`` and residual blocks."""

    def build_stages(
        self, depth: int, base_channels: int, block: Callable[[int, int, int, bool], nn.Module]
    ) -> None:
        """Set ``layer1 .. layer4`` and ``out_channels``.

        Args:
            depth: 18, 34, 50 or 101.
            base_channels: Channels of the stem.
            block: Function ``block(stage, in_channels, channels, first)`` that builds a block. At
                depth 50 and above, the block has four times ``channels`` outputs.
        """
        self.out_channels = base_channels
        for stage, count in enumerate(STAGE_BLOCKS[depth]):
            channels = base_channels * 2**stage
            blocks: list[nn.Module] = []
            for i in range(count):
                blocks.append(block(stage, self.out_channels, channels, i == 0))
                self.out_channels = channels * (1 if depth < 50 else 4)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))

    def stem_layers(self) -> list[nn.Module]:
        """Return the layers before res2."""
        return [self.conv1, self.bn1, self.relu, self.maxpool]
