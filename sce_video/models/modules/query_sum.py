"""A loss that is a sum over queries: one backward pass for all of them, or one for each.

One backward pass keeps the activations of all queries at once. One for each keeps those of one
query: its gradients are taken as soon as its loss is known, and added up. The sum of the losses
then is a tensor without a graph but for one node, which hands the gradients, times its own, to the
parameters. So the backward pass that the engine calls works as always: hooks of
DistributedDataParallel, accumulated steps and clipping see the gradients of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sce_video.models.losses.cosine import full_precision


def sum_over_queries(
    terms_of: Callable[[int], dict[str, Tensor]],
    queries: Iterable[int],
    parameters: Sequence[nn.Parameter] | None = None,
) -> dict[str, Tensor]:
    """The sums of the scalars of all queries, by name.

    Args:
        terms_of: Takes a query, returns its scalars, the ``loss`` among them. The losses must not
            share a graph beyond the parameters.
        queries: What ``terms_of`` takes, one after the other.
        parameters: None for one backward pass; else those that are trained, for one per query.
            The gradients are added up in fp32 at least. The forward pass is not changed. Without
            gradient mode there is no backward pass, and nothing is kept either.

    Raises:
        ValueError: a backward pass per query under fp16 autocast.
    """
    trained = parameters if torch.is_grad_enabled() else None
    sums: dict[str, Tensor] = {}
    gradients: list[Tensor | None] = [None] * len(trained or ())
    for query in queries:
        terms = terms_of(query)
        if trained is not None:
            gradients = _added(gradients, terms["loss"], trained)
            terms = {name: value.detach() for name, value in terms.items()}  # free the graph
        for name, value in terms.items():
            sums[name] = sums[name] + value if name in sums else value
    if trained is not None:
        sums["loss"] = _StoredGradients.apply(sums["loss"], gradients, *trained)
    return sums


def _added(
    sums: list[Tensor | None], loss: Tensor, parameters: Sequence[nn.Parameter]
) -> list[Tensor | None]:
    """``sums`` plus the gradients of a loss; None for parameters that no loss depends on."""
    kind = loss.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
        raise ValueError(
            "backward_per_query=True takes gradients before the loss is scaled, and in float16 "
            "small ones become 0: set optim_wrapper.dtype to bfloat16 or float32 (--amp bfloat16)"
        )
    with torch.autocast(kind, enabled=False):  # a backward pass belongs outside of autocast
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        total if new is None else full_precision(new) if total is None else total + new
        for total, new in zip(sums, found, strict=True)
    ]


class _StoredGradients(torch.autograd.Function):
    """A scalar whose backward pass gives each parameter its stored gradient."""

    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, gradients: list[Tensor | None], *parameters: Tensor
    ) -> Tensor:
        ctx.gradients = [
            None if gradient is None else gradient.to(parameter.dtype)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        return None, None, *(None if g is None else g * factor for g in ctx.gradients)
