"""Batch norm over the samples of all ranks, which does not wait for a GPU or break a graph."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.modules.batchnorm import _BatchNorm


class SyncBatchNorm(_BatchNorm):
    """Batch norm whose mean and variance cover the samples of all ranks.

    In contrast to :class:`torch.nn.SyncBatchNorm`, the host never waits for the device, and
    ``torch.compile`` does not break the graph. torch's layer selects the ranks that have samples by
    a mask, whose size the host has to read six times per layer and step. Here, all ranks must have
    the same number of samples, which is checked before the first step of a training run
    (:func:`check_equal_batches`).

    Each pass has one collective operation. The forward pass collects and combines the mean and the
    variance of every rank (Chan et al. 1983). In contrast to sums of squares, this loses no digits
    if the mean is large. The backward pass adds up two sums. Statistics are float32, or float64 for
    float64 inputs. Without a process group and in evaluation mode, the layer is an ordinary batch
    norm. Names in the state dict are the same as in :class:`torch.nn.BatchNorm3d`.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"must have at least 2 dimensions, got {input.dim()}")

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N, C, ...) over all samples and positions of all ranks."""
        if not self.training or not distributed.is_initialized():
            return super().forward(x)
        ranks = distributed.get_world_size()
        if ranks == 1:
            return super().forward(x)
        self._check_input_dim(x)
        out, mean, variance = Normalise.apply(x, self.weight, self.bias, self.eps, ranks)
        if self.track_running_stats:
            self._track(mean, variance, ranks * x.numel() // x.shape[1])
        return cast(Tensor, out)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics with a batch of ``count`` values per channel."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # Without a momentum, the running statistics are means over all batches.
        share = 1.0 / self.num_batches_tracked if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.add_((new.to(running.dtype) - running) * share)


class Normalise(torch.autograd.Function):
    """Normalisation by the statistics of all ranks, with its gradient.

    As in torch's batch norm, only the input is kept for the backward pass, in its own dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised ``x``, and the mean and variance (C,) over all ranks."""
        axes = _all_but_channels(x)
        variance, mean = torch.var_mean(_wide(x), axes, correction=0)
        own, rank = torch.stack((mean, variance)), distributed.get_rank()
        # Each rank contributes a matrix that is 0 except in its own row, so the sum contains the
        # rows of all ranks.
        rows = torch.stack([own if row == rank else torch.zeros_like(own) for row in range(ranks)])
        means, variances = _summed(rows).unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        scale = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.ranks, ctx.has_bias = ranks, bias is not None
        out = _centred(x, mean) * _channels(scale if weight is None else scale * weight, x)
        if bias is not None:
            out = out + _channels(bias, x)
        ctx.mark_non_differentiable(mean, variance)
        return out.to(x.dtype), mean, variance

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, *_: Any
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Return the gradients of input, weight and bias."""
        x, weight, mean, scale = ctx.saved_tensors
        axes = _all_but_channels(x)
        normalised, gradient = _centred(x, mean) * _channels(scale, x), _wide(gradient)
        of_bias, of_weight = gradient.sum(axes), (gradient * normalised).sum(axes)
        own = torch.stack((of_bias, of_weight))
        of_means, of_products = _summed(own) / (ctx.ranks * x.numel() // x.shape[1])
        shared = _channels(of_means, x) + normalised * _channels(of_products, x)
        total = scale if weight is None else scale * weight
        of_input = ((gradient - shared) * _channels(total, x)).to(x.dtype)
        return (
            of_input,
            None if weight is None else of_weight.to(weight.dtype),
            of_bias.to(mean.dtype) if ctx.has_bias else None,
            None,
            None,
        )


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _channels(values: Tensor, x: Tensor) -> Tensor:
    """Reshape (C,) values, so that they broadcast with (N, C, ...)."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    """Convert a tensor to the dtype in which statistics are computed."""
    return x if x.dtype == torch.float64 else x.float()


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    return _wide(x) - _channels(mean, x)


def _summed(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks. Only the GPU's stream waits, not the host."""
    group = distributed.group.WORLD
    assert group is not None
    return collectives.wait_tensor(collectives.all_reduce(x, "sum", group))


def convert_sync_batch_norm(module: nn.Module) -> nn.Module:
    """Replace every batch norm in a network by a :class:`SyncBatchNorm` with its parameters.

    Returns:
        The network, or the new layer if the network itself is a batch norm.
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        layer = SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            device="meta",
        )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            setattr(layer, name, tensor)
        layer.train(module.training)
        return layer
    for name, child in module.named_children():
        module.add_module(name, convert_sync_batch_norm(child))
    return module


def check_equal_batches(samples: int, batch_size: int, drop_last: bool) -> None:
    """Check that all batches of a rank have the same size, as the synchronisation requires.

    Args:
        samples: Number of samples of a rank in an epoch.
        batch_size: Number of samples of a rank in a step.
        drop_last: Whether an incomplete last batch is left out.

    Raises:
        ValueError: If the last batch of an epoch is smaller.
    """
    if not drop_last and samples % batch_size:
        raise ValueError(
            f"the last batch of an epoch has {samples % batch_size} samples, but the others have "
            f"{batch_size}. Synchronised batch norm (sync_bn) needs batches of the same size. Set "
            "train_dataloader.drop_last=True"
        )
