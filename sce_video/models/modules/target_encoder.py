"""The target network, a moving average, with Shuffle-BN and random numbers for each step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.backbones.common import represent
from sce_video.utils.distributed import gather_samples, global_positions


class StepGenerator(nn.Module):
    """Parent class of modules that draw different random numbers for every optimiser step.

    The numbers are the same on all ranks and for all micro-batches of a step, and a resumed run
    continues with the same numbers. No global random generator is used.
    """

    step: Tensor  # int64 scalar: optimiser steps so far, saved in the checkpoint

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        #: Copy of ``step`` on the host, because reading the buffer would wait for the device
        self.done = 0

    def generator(self) -> torch.Generator:
        """Return a generator for the current step.

        The generator is on the CPU, so its numbers do not depend on the device.
        """
        return torch.Generator().manual_seed(self.done)

    def advance(self) -> None:
        """Advance to the next step."""
        self.done += 1
        self.step.fill_(self.done)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.done = int(self.step)


class BatchShuffle(StepGenerator):
    """Shuffle-BN, which encodes random groups so that batch norm does not reveal the positive.

    If query and key share batch-norm statistics, a network can use them to find the positive (He et
    al. 2020, section 3.3). The samples of all ranks are gathered, permuted depending on the
    optimiser step, encoded in ``splits`` groups on each rank, and put back in order. One group per
    rank corresponds to the shuffling between GPUs in facebookresearch/moco, ``moco/builder.py``.
    More groups simulate more GPUs: W ranks with S groups each form the same groups as one process
    with W S groups.

    Every rank holds the views of all ranks while they are encoded. Shuffling has no effect in
    evaluation mode, or with one group and ``sync_bn``.
    """

    def __init__(self, splits: int) -> None:
        super().__init__()
        if splits < 1:
            raise ValueError(f"shuffle_bn_splits must be at least 1, or None, got {splits}")
        self.splits = splits

    def forward(self, encode: Callable[[Tensor], Tensor], view: Tensor) -> Tensor:
        """Encode a view in random groups.

        All ranks must call this with tensors of the same shape.

        Args:
            encode: Function from views to embeddings.
            view: (n, ...), the samples of this rank.

        Returns:
            ``encode(view)``, (n, D).

        Raises:
            ValueError: If there are fewer samples than groups.
        """
        if len(view) < self.splits:
            raise ValueError(
                f"shuffle_bn_splits={self.splits} needs as many samples per process or more, got "
                f"{len(view)}. Raise train_dataloader.batch_size"
            )
        samples = gather_samples(view)  # (N, ...), in the order of the global batch
        order = torch.randperm(len(samples), generator=self.generator())
        order = order.to(view.device, non_blocking=True)
        own = global_positions(len(view), view.device)
        # Row p of the shuffled batch is the sample order[p]. This rank encodes only its own rows.
        mine = samples[order[own]]
        # Take every S-th sample, so that the groups depend only on their total number on all ranks.
        groups = [encode(mine[number :: self.splits]) for number in range(self.splits)]
        encoded = groups[0].new_empty(len(view), *groups[0].shape[1:])
        for number, group in enumerate(groups):
            encoded[number :: self.splits] = group
        shuffled = gather_samples(encoded)  # row p is sample order[p]
        return torch.empty_like(shuffled).index_copy_(0, order, shuffled)[own]


class TargetEncoder(nn.Module):
    """Copy of backbone and projector, updated by target <- m*target + (1-m)*online.

    Only parameters are averaged (paper, section 3.1), not buffers, because the target's BN layers
    run in training mode and track the statistics of their own forward passes.

    Args:
        backbone: Backbone of the online branch.
        projector: Projector of the online branch.
        shuffle_bn_splits: Number of groups of :class:`BatchShuffle`. None turns it off.
    """

    def __init__(
        self, backbone: nn.Module, projector: nn.Module, shuffle_bn_splits: int | None = None
    ) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.shuffle = None if shuffle_bn_splits is None else BatchShuffle(shuffle_bn_splits)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, view: Tensor) -> Tensor:
        """Encode a view (N, 3, T, H, W) to embeddings (N, D), not normalised, without gradient."""

        def encode(part: Tensor) -> Tensor:
            return self.projector(represent(self.backbone, part))

        return encode(view) if self.shuffle is None else self.shuffle(encode, view)

    @torch.no_grad()
    def copy_from(self, backbone: nn.Module, projector: nn.Module) -> None:
        """Copy the online parameters and buffers, so that both branches are equal."""
        self.backbone.load_state_dict(backbone.state_dict())
        self.projector.load_state_dict(projector.state_dict())

    @torch.no_grad()
    def update(self, backbone: nn.Module, projector: nn.Module, momentum: float) -> None:
        """Update all parameters by target <- momentum*target + (1-momentum)*online.

        Shuffle-BN also advances to the next step.
        """
        check_momentum(momentum)
        target: list[Tensor] = [*self.backbone.parameters(), *self.projector.parameters()]
        online: list[Tensor] = [*backbone.parameters(), *projector.parameters()]
        torch._foreach_lerp_(target, online, 1.0 - momentum)  # one kernel updates many tensors
        if self.shuffle is not None:
            self.shuffle.advance()


def check_momentum(momentum: float) -> None:
    """Check that the momentum of a moving average is from 0 to 1.

    Raises:
        ValueError: If the momentum is out of range.
    """
    if not 0.0 <= momentum <= 1.0:
        raise ValueError(f"momentum must be from 0 to 1, got {momentum}")
