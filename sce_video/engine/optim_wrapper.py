"""Mixed precision training on GPUs and CPUs."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper

from sce_video.registry import OPTIM_WRAPPERS

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@OPTIM_WRAPPERS.register_module()
class MixedPrecisionOptimWrapper(OptimWrapper):
    """Autocast in bf16 or fp16 on whatever device the parameters are on.

    Unlike mmengine's ``AmpOptimWrapper`` it runs on a CPU too and scales the loss in fp16 only:
    bf16 has the exponents of fp32 and needs no scaling.

    Args:
        optimizer: The torch optimiser.
        dtype: "bfloat16", "float16", or "float32" for no mixed precision, as on a CPU.
        accumulative_counts: Micro-batches per optimiser step.
        clip_grad: Arguments of gradient clipping, or None. With ``per_group=True`` the norm is that
            of each parameter group, not of all gradients: for groups that are trained independently
            of each other.
        init_scale: Initial loss scale, fp16 only.

    Raises:
        ValueError: an unknown dtype.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        dtype: str = "bfloat16",
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
        init_scale: float = 2.0**16,
    ) -> None:
        clip_grad = None if clip_grad is None else dict(clip_grad)
        self.clip_per_group = bool(clip_grad and clip_grad.pop("per_group", False))
        super().__init__(optimizer, accumulative_counts=accumulative_counts, clip_grad=clip_grad)
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {sorted(_DTYPES)}, got {dtype!r}")
        self.dtype = _DTYPES[dtype]
        self.device_type = optimizer.param_groups[0]["params"][0].device.type
        self.loss_scaler = torch.amp.GradScaler(
            self.device_type, init_scale=init_scale, enabled=dtype == "float16"
        )

    @contextmanager
    def optim_context(self, model):
        mixed = self.dtype != torch.float32
        autocast = torch.autocast(self.device_type, dtype=self.dtype, enabled=mixed)
        with super().optim_context(model), autocast:
            yield

    def backward(self, loss: torch.Tensor) -> None:
        self.loss_scaler.scale(loss).backward()
        self._inner_count += 1

    def step(self) -> None:
        """Unscale, clip and step; an fp16 step with infinite gradients is skipped."""
        if self.clip_grad_kwargs:
            self.loss_scaler.unscale_(self.optimizer)
            self._clip_grad()
        self.loss_scaler.step(self.optimizer)
        self.loss_scaler.update()

    def _clip_grad(self) -> None:
        if not self.clip_per_group:
            return super()._clip_grad()
        for group in self.optimizer.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            self.clip_func(params, **self.clip_grad_kwargs)

    def state_dict(self) -> dict:
        return {**super().state_dict(), "loss_scaler": self.loss_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        state_dict = dict(state_dict)
        scaler = state_dict.pop("loss_scaler", None)
        if scaler:  # absent after fp32 training without this wrapper, empty after bf16
            self.loss_scaler.load_state_dict(scaler)
        super().load_state_dict(state_dict)
