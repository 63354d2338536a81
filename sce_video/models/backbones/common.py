"""What backbones share: pooling of features to h; stages, initialisation and freezing."""

from __future__ import annotations

import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
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

#: Whether a compiled pass that is computed again updates the statistics of BN a second time.
_WRITES_TWICE = Version(torch.__version__) < Version("2.9")


def average_pool(features: Tensor) -> Tensor:
    """Mean of features (N, C, ...) over all dimensions after C: (N, C)."""
    # No tensor: the pathways of mmaction2's SlowFast, for example.
    if not isinstance(features, Tensor) or features.ndim < 3:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"average pooling needs a tensor (N, C, ...), got {shape}")
    return features.mean(dim=tuple(range(2, features.ndim)))


def map_tokens(features: Tensor) -> Tensor:
    """Tokens (N, L, C) of features (N, C, ...): one of each position, the last index fastest."""
    # One position: features of an encoder that pools them itself.
    if not isinstance(features, Tensor) or features.ndim < 3 or features[0, 0].numel() < 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"attentive pooling needs features (N, C, ...) of two positions or more, got {shape}: "
            "this backbone gives no tokens. An HFEncoder gives its patch tokens with "
            "model.backbone.pool=mean, if its family has that"
        )
    return features.flatten(2).transpose(1, 2)


def rows_of_positions(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, C, ...) and (N, D, T, H, W) as rows (N T H W, C) and (N T H W, D).

    The student's are interpolated to the teacher's grid; ValueError for features of one position.
    """
    for name, features in (("student", student), ("teacher", teacher)):
        if features.ndim != 5 or features[0, 0].numel() < 2:
            raise ValueError(
                f"objective='tokens' compares positions, and the {name}'s features of a clip, "
                f"{tuple(features.shape[1:])}, have one: use 'cosine' or 'relations'"
            )
    on_grid = F.interpolate(student, teacher.shape[2:], mode="trilinear")
    rows, keys = (x.movedim(1, -1).flatten(0, -2) for x in (on_grid, teacher))
    return rows, keys


def represent(backbone: nn.Module, view: Tensor) -> Tensor:
    """h (N, C) of a view (N, 3, T, H, W): the backbone's features, pooled.

    A backbone with a method ``pool(features) -> (N, C)`` pools its own features (all of ours do);
    those of any other backbone, mmaction2's for example, are averaged by :func:`average_pool`.
    """
    features = backbone(view)
    pool = getattr(backbone, "pool", None)
    # A submodule that happens to be called "pool" is a layer of the network, not this contract.
    if pool is None or isinstance(pool, nn.Module):
        return average_pool(features)
    return pool(features)


def check_frozen(frozen_stages: int) -> None:
    """Raise ValueError for a stage that does not exist."""
    if not -1 <= frozen_stages <= 4:
        raise ValueError(f"frozen_stages must be from -1 to 4, got {frozen_stages}")


def check_view(view: Tensor) -> None:
    """Raise ValueError unless a view is (N, C, T, H, W)."""
    if view.ndim != 5:
        raise ValueError(f"expected a view (N, C, T, H, W), got shape {tuple(view.shape)}")


def init_info_to_file(module: BaseModule) -> None:
    """Write how each parameter was initialised to the file of the log, if it has one.

    Our models have this in the place of mmengine's method, which without a file, as in a training
    loop of one's own, prints hundreds of lines.
    """
    handlers = MMLogger.get_current_instance().handlers
    if any(isinstance(handler, logging.FileHandler) for handler in handlers):
        BaseModule._dump_init_info(module)


class FreezableBackbone(BaseModule):
    """A backbone that names its layers: the first may be frozen or have lower learning rates.

    ``frozen_stages``: -1 trains everything; 0 freezes the embeddings or the stem, s also the first
    s quarters of the blocks or stages, 4 everything. A frozen layer takes no gradient and stays in
    evaluation mode: no statistics, no dropout.

    With ``with_cp`` (mmaction2's name; "activation checkpointing") a step with gradient keeps the
    inputs of the blocks alone and computes a block again in the backward pass: less memory, one
    more forward pass, the same loss, gradients and statistics.
    """

    _dump_init_info = init_info_to_file
    frozen_stages: int

    def __init__(self, with_cp: bool = False, init_cfg: dict | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.with_cp = with_cp

    @abstractmethod
    def layers(self) -> Sequence[Sequence[nn.Module | nn.Parameter]]:
        """The network in order: the embeddings or the stem, then each block or stage.

        What is in none of them, such as a last norm or a pooler, is at the end of the network.
        """

    def depths(self) -> dict[nn.Parameter, int]:
        """Depth of each parameter: its place in :meth:`layers`, or their number if in none."""
        layers = self.layers()
        found = dict.fromkeys(self.parameters(), len(layers))
        # Backwards: the stem of a ConvNeXt is a part of its first stage, too.
        for depth, layer in reversed([*enumerate(layers)]):
            for part in layer:
                own = part.parameters() if isinstance(part, nn.Module) else [part]
                found |= dict.fromkeys(own, depth)
        return found

    def freeze(self) -> None:
        """Stop gradients and the training mode of what is frozen."""
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
        """Training mode, except for what is frozen."""
        super().train(mode)
        self.freeze()  # nn.Module.train() reaches frozen parts, too
        return self

    def pool(self, features: Tensor) -> Tensor:
        """Representation (N, C): features (N, C, T, H, W) averaged over time and space."""
        return average_pool(features)

    def run(self, blocks: Sequence[nn.Module], x: Tensor) -> Tensor:
        """The blocks, one after the other; each computed again in the backward pass if ``with_cp``.

        Without gradient (target networks, evaluation) nothing is kept anyway.
        """
        if self.with_cp and torch.is_grad_enabled():
            for block in blocks:
                x = checkpointed([block], x)
        else:
            for block in blocks:
                x = block(x)
        return x


def checkpointed(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """The layers, one after the other, computed again in the backward pass: x alone is kept.

    Random numbers and autocast are those of the first pass; running statistics change once.
    """

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    if torch.compiler.is_compiling():  # it traces no contexts, and writes statistics once
        # Before torch 2.9 it writes them in both passes: there all activations are kept.
        return run(x) if _WRITES_TWICE else checkpoint(run, x, use_reentrant=False)
    contexts = nullcontext(), _FixedStatistics(layers)  # of the first and the second pass
    return checkpoint(run, x, use_reentrant=False, context_fn=lambda: contexts)


class _FixedStatistics:
    """A context in which BN normalises by its batch but leaves the running statistics alone.

    torch's checkpointing would let the second forward pass count the batch once more.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        modules = itertools.chain.from_iterable(layer.modules() for layer in layers)
        self.norms = [module for module in modules if isinstance(module, _BatchNorm)]

    def __enter__(self) -> None:
        # Not by track_running_stats=False: the tensors saved for the backward pass would differ.
        self.before = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
            if norm.num_batches_tracked is not None:  # SyncBN wants one
                norm.num_batches_tracked = norm.num_batches_tracked.clone()

    def __exit__(self, *error: object) -> None:
        for norm, before in zip(self.norms, self.before, strict=True):
            norm.momentum, norm.num_batches_tracked = before


class StagedBackbone(FreezableBackbone):
    """A stem and four stages, one after the other; their initialisation, freezing and pooling.

    A subclass builds them, calls :meth:`finish`, and says what they are in :meth:`stem_layers` and
    :meth:`stages`. Residual blocks have ``last_norm``, the BN before the sum. Clips of fewer frames
    than ``least_frames`` take another graph of operators than longer ones. Options of all of them:

    - ``frozen_stages``: see :class:`FreezableBackbone`; here quarters are stages.
    - ``norm_eval``: keep every BN in evaluation mode while training.
    - ``channels_last``: compute in ``torch.channels_last(_3d)`` memory, faster on tensor cores.
    - ``with_cp``: see :class:`FreezableBackbone`; the stem is one block.
    - ``init_cfg``: mmengine's initialisation config, e.g. ``dict(type="Pretrained",
      checkpoint=..., prefix="backbone.")``.
    """

    least_frames = 1

    @abstractmethod
    def stem_layers(self) -> list[nn.Module]:
        """The layers before the first stage."""

    def stages(self) -> list[nn.Sequential]:
        """The four stages, after the stem: res2 to res5 of a ResNet."""
        return [getattr(self, f"layer{i}") for i in range(1, 5)]

    def finish(
        self, frozen_stages: int, norm_eval: bool, zero_init_residual: bool, channels_last: bool
    ) -> None:
        """Initialise the weights, set their memory format, freeze; keeps the options."""
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.zero_init_residual = zero_init_residual
        self.channels_last = channels_last
        self.reset_parameters()
        if channels_last:
            self.to(memory_format=self._memory_format())
        self.freeze()

    def reset_parameters(self) -> None:
        """He initialisation (fan out) of convolutions; BN to 1, or 0 where a block ends."""
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
        """Stem and stages."""
        return [self.stem_layers(), *([stage] for stage in self.stages())]

    def train(self, mode: bool = True) -> Self:
        """Training mode, except for what is frozen and, with ``norm_eval``, BN."""
        super().train(mode)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def run_stages(self, x: Tensor) -> Tensor:
        """Stem and stages, in the memory format of the weights."""
        if self.channels_last:
            x = x.contiguous(memory_format=self._memory_format())
        if not (self.with_cp and torch.is_grad_enabled()):
            return self.run([*self.stem_layers(), *self.stages()], x)
        x = checkpointed(self.stem_layers(), x)
        return self.run([block for stage in self.stages() for block in stage], x)


# Depth -> blocks in res2, res3, res4, res5 (He et al. 2016, table 1).
STAGE_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def check_arguments(base_channels: int, frozen_stages: int, depth: int = 18) -> None:
    """Raise ValueError for an unknown depth, no channels or a stage that does not exist."""
    if depth not in STAGE_BLOCKS:
        raise ValueError(f"depth must be one of {sorted(STAGE_BLOCKS)}, got {depth}")
    if base_channels < 1:
        raise ValueError(f"base_channels must be at least 1, got {base_channels}")
    check_frozen(frozen_stages)


def batch_norm(conv: nn.Conv2d | nn.Conv3d) -> _BatchNorm:
    """The BN that follows a convolution."""
    kind = nn.BatchNorm2d if isinstance(conv, nn.Conv2d) else nn.BatchNorm3d
    return kind(conv.out_channels)


class ResidualBlock(nn.Module):
    """Convolutions ``conv1, conv2 ...`` with BN and ReLU, and a shortcut (torchvision's names).

    The shortcut is the identity, or a 1x1 convolution where these change the size.
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
        """The normalisation before the sum."""
        return getattr(self, f"bn{self.depth}")

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        for i in range(1, self.depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            x = self.relu(x if i < self.depth else x + shortcut)
        return x


class ResNetBase(StagedBackbone):
    """A subclass builds ``conv1, bn1, relu, maxpool``, and blocks of two or three convolutions."""

    def build_stages(
        self, depth: int, base_channels: int, block: Callable[[int, int, int, bool], nn.Module]
    ) -> None:
        """Set ``layer1 .. layer4`` and ``out_channels``.

        ``block(stage, in_channels, channels, first)`` makes a block; from depth 50 on its output
        has four times ``channels``.
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
        """The layers before res2."""
        return [self.conv1, self.bn1, self.relu, self.maxpool]
