"""LARS, the optimiser of the paper's pretraining."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sce_video.registry import OPTIMIZERS

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_EPSILON = 1e-8  # SlowFast's
_GROUP_KEYS = {"params", "param_names", "name", "initial_lr"}


@OPTIMIZERS.register_module()
class LARS(Optimizer):
    """SGD with momentum whose step of each tensor is scaled by its norm (You et al., 2017).

    For a tensor ``p`` of two or more dimensions, with ``||.||`` its Frobenius norm::

        g = grad + weight_decay * p
        g = g * trust_coefficient * ||p|| / ||g||    (left as it is if ||p|| or ||g|| is 0)
        buffer = momentum * buffer + g               (starts at 0)
        p = p - lr * buffer                          (lr is not part of the buffer)

    Two options make it the LARS of facebookresearch/SlowFast (``slowfast/models/optimizer.py``).
    With ``separate_norms`` the second line has the norms of gradient and decay apart, and with
    ``nesterov`` the last line is that of torch's SGD, for all tensors::

        g = g * trust_coefficient * ||p|| / (||grad|| + weight_decay * ||p|| + 1e-8)
                                                     (g = grad if ||p|| or ||grad|| is 0)
        p = p - lr * (g + momentum * buffer)

    Tensors of one dimension or none (biases, the scale and shift of a BN) take ``g = grad``: no
    weight decay and no rate scaling. Source: paper, appendix D.3; order of operations and
    exclusions as in the authors' code (eztorch, ``eztorch/optimizers``). The arithmetic runs over
    all tensors of a device and dtype at once, and the ratios never leave the device, so that a step
    does not synchronise with the host. For fp16 and bf16 parameters norms,
    ratios and scaled updates are fp32; the buffer has the parameter's dtype.

    Args:
        params: Tensors, named tensors, or groups of them as in torch; a group may set its own
            ``lr``, ``momentum``, ``weight_decay`` and ``trust_coefficient``.
        lr: Learning rate.
        momentum: Factor of the momentum buffer, in [0, 1).
        weight_decay: Factor of the parameter that is added to its gradient.
        trust_coefficient: Norm of a tensor's step relative to its own norm, at ``lr=1`` and without
            momentum.
        nesterov: Nesterov momentum; a group may set its own.
        separate_norms: Whether gradient and decay enter the ratio by their own norms; a group may
            set its own.

    Raises:
        ValueError: a value out of its range, an unknown key in a group, a sparse gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        nesterov: bool = False,
        separate_norms: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "nesterov": nesterov,
            "separate_norms": separate_norms,
        }
        _check(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Checkpoints written before an option existed have it off."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)
            group.setdefault("separate_norms", False)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of tensors, with its own settings or the defaults."""
        unknown = sorted(set(param_group) - _GROUP_KEYS - set(self.defaults))
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]!r} in a parameter group; known: {sorted(self.defaults)}"
            )
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; the gradients stay unchanged.

        Args:
            closure: Computes the loss and its gradients again, or None.

        Returns:
            What ``closure`` returned, else None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _split(group["params"]):
                self._step_tensors(params, group)
        return loss

    def _step_tensors(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """One step of tensors of one device and dtype that are all scaled, or all not."""
        updates = [_dense_grad(p) for p in params]
        if params[0].ndim > 1:
            updates = _scaled(params, updates, group)
        buffers = [self._buffer(p) for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        if group["nesterov"]:
            buffers = list(torch._foreach_add(updates, buffers, alpha=group["momentum"]))
        torch._foreach_add_(params, buffers, alpha=-group["lr"])

    def _buffer(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state["momentum_buffer"]


def _check(settings: dict[str, Any]) -> None:
    """Raise ValueError if a setting of a group is out of range."""
    for name in ("lr", "weight_decay", "trust_coefficient"):
        value = settings[name]
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number of 0 or more, got {value}")
    if settings["trust_coefficient"] == 0:
        raise ValueError("trust_coefficient must be above 0, got 0: no weight would ever change")
    if not 0 <= settings["momentum"] < 1:
        raise ValueError(f"momentum must be in [0, 1), got {settings['momentum']}")


def _dense_grad(param: Tensor) -> Tensor:
    grad = param.grad
    assert grad is not None
    if grad.is_sparse:
        raise ValueError(
            f"LARS needs dense gradients, got a sparse one of shape {tuple(grad.shape)}: "
            "build the embedding with sparse=False"
        )
    return grad


def _split(params: list[Tensor]) -> list[list[Tensor]]:
    """Tensors with a gradient, grouped by device, dtype and whether they are scaled (ndim > 1)."""
    lists: dict[tuple[torch.device, torch.dtype, bool], list[Tensor]] = {}
    for p in params:
        if p.grad is not None:
            lists.setdefault((p.device, p.dtype, p.ndim > 1), []).append(p)
    return list(lists.values())


def _scaled(params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """Gradients with weight decay, scaled to ``trust_coefficient`` times the parameter's norm."""
    decay, trust = group["weight_decay"], group["trust_coefficient"]
    values: list[Tensor] | tuple[Tensor, ...] = params
    if params[0].dtype in _LOW_PRECISION:  # ratios overflow or underflow in fp16
        values = [p.float() for p in params]
        grads = [g.float() for g in grads]
    updates = torch._foreach_add(grads, values, alpha=decay)
    param_norms = torch.stack(torch._foreach_norm(values))
    if group["separate_norms"]:
        grad_norms = torch.stack(torch._foreach_norm(grads))
        ratios = trust * param_norms / (grad_norms + decay * param_norms + _EPSILON)
        ratios = ratios * (grad_norms > 0)  # without a gradient there is no decay
        ratios = torch.where(param_norms > 0, ratios, torch.ones_like(ratios))
    else:
        update_norms = torch.stack(torch._foreach_norm(updates))
        ratios = torch.where(
            (param_norms > 0) & (update_norms > 0),
            trust * param_norms / update_norms,
            torch.ones_like(param_norms),
        )
    torch._foreach_mul_(updates, ratios.unbind())
    return list(updates)
