"""LARS, the optimiser of the paper's pretraining, and parameter groups and mixed precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from sce_video.models.backbones.common import FreezableBackbone
from sce_video.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.stored_arguments import Word, Words

#: A torch parameter group: tensors, and settings that differ from the optimiser's defaults.
ParameterGroup = dict[str, Any]
#: Tensor dtypes for which LARS computes in float32.
_LOW_PRECISION = (torch.float16, torch.bfloat16)
#: Constant that SlowFast adds to the norms in the denominator.
_EPSILON = 1e-8
#: Keys that a group may have in addition to the settings.
_GROUP_KEYS = {"params", "param_names", "name", "initial_lr", "lr_scale"}


@OPTIMIZERS.register_module()
class LARS(Optimizer):
    """SGD with momentum that scales the step of each tensor by its norm (You et al., 2017).

    For a tensor ``p`` of two or more dimensions, with ``||.||`` its Frobenius norm::

        g = grad + weight_decay * p
        g = g * trust_coefficient * ||p|| / ||g||    (left as it is if ||p|| or ||g|| is 0)
        buffer = momentum * buffer + g               (starts at 0)
        p = p - lr * buffer                          (lr is not part of the buffer)

    Two options give the LARS of facebookresearch/SlowFast (``slowfast/models/optimizer.py``). With
    ``separate_norms``, the second line contains separate norms of gradient and decay. With
    ``nesterov``, the last line is the same as in torch's SGD, for all tensors::

        g = g * trust_coefficient * ||p|| / (||grad|| + weight_decay * ||p|| + 1e-8)
                                                     (g = grad if ||p|| or ||grad|| is 0)
        p = p - lr * (g + momentum * buffer)

    Tensors with at most one dimension (biases, the scale and shift of BN) use ``g = grad``, without
    weight decay and without scaling. The source is the paper, appendix D.3. The order of operations
    and the exclusions follow the authors' code (eztorch, ``eztorch/optimizers``). All tensors of a
    device and dtype are updated together, and the ratios never leave the device, so that a step
    does not synchronise with the host. For fp16 and bf16 parameters, norms, ratios and scaled
    updates are fp32. The buffer has the parameter's dtype.

    Args:
        params: Tensors, named tensors, or groups of them, as in torch. A group may override all
            settings below.
        lr: Learning rate.
        momentum: Factor of the momentum buffer, in [0, 1).
        weight_decay: Share of a parameter that is added to its gradient.
        trust_coefficient: Norm of a tensor's step relative to its own norm, at ``lr=1`` and without
            momentum.
        nesterov: Whether to use Nesterov momentum.
        separate_norms: Whether the ratio contains separate norms of gradient and decay.

    Raises:
        ValueError: If a value is out of range, a group has an unknown key, or a gradient is sparse.
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
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        defaults |= {"trust_coefficient": trust_coefficient}
        defaults |= {"nesterov": nesterov, "separate_norms": separate_norms}
        _check(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: ParameterGroup) -> None:
        """Add a group of tensors with its own settings."""
        unknown = sorted(set(param_group) - _GROUP_KEYS - set(self.defaults))
        if unknown:
            raise ValueError(
                f"unknown key {unknown[0]!r} in a parameter group. Use {sorted(self.defaults)}"
            )
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. The gradients do not change.

        Args:
            closure: Function that computes the loss and its gradients again; None for no function.

        Returns:
            The loss of the closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple, list[Tensor]] = {}  # grouped by device, dtype and scaling
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.device, p.dtype, p.ndim > 1), []).append(p)
            for params in alike.values():
                self._step_tensors(params, group)
        return loss

    def _step_tensors(self, params: list[Tensor], group: ParameterGroup) -> None:
        """Update tensors of the same device and dtype. Either all of them are scaled, or none."""
        updates, buffers = [], []
        for p in params:
            assert p.grad is not None
            if p.grad.is_sparse:
                raise ValueError(
                    "LARS needs dense gradients, got a sparse gradient of shape "
                    f"{tuple(p.shape)}. Build the embedding with sparse=False"
                )
            updates.append(p.grad)
            if "momentum_buffer" not in self.state[p]:
                zeros = torch.zeros_like(p, memory_format=torch.preserve_format)
                self.state[p]["momentum_buffer"] = zeros
            buffers.append(self.state[p]["momentum_buffer"])
        if params[0].ndim > 1:
            updates = _scaled(params, updates, group)
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        if group["nesterov"]:
            buffers = list(torch._foreach_add(updates, buffers, alpha=group["momentum"]))
        torch._foreach_add_(params, buffers, alpha=-group["lr"])


def _check(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting of a group is out of range."""
    for name in ("lr", "weight_decay", "trust_coefficient"):
        if not 0 <= settings[name] < math.inf:
            raise ValueError(f"{name} must be a finite number of 0 or more, got {settings[name]}")
    if settings["trust_coefficient"] == 0:
        raise ValueError("trust_coefficient must be above 0, or no weight would ever change, got 0")
    if not 0 <= settings["momentum"] < 1:
        raise ValueError(f"momentum must be in [0, 1), got {settings['momentum']}")


def _scaled(params: list[Tensor], grads: list[Tensor], group: ParameterGroup) -> list[Tensor]:
    """Scale gradients with weight decay to ``trust_coefficient`` times the parameter's norm."""
    decay, trust = group["weight_decay"], group["trust_coefficient"]
    values: list[Tensor] | tuple[Tensor, ...] = params
    if params[0].dtype in _LOW_PRECISION:  # ratios could overflow or underflow in fp16
        values = [p.float() for p in params]
        grads = [g.float() for g in grads]
    updates = torch._foreach_add(grads, values, alpha=decay)
    param_norms = torch.stack(torch._foreach_norm(values))
    if group["separate_norms"]:
        grad_norms = torch.stack(torch._foreach_norm(grads))
        ratios = trust * param_norms / (grad_norms + decay * param_norms + _EPSILON)
        ratios = ratios * (grad_norms > 0)  # a parameter without a gradient does not decay
        scaled = param_norms > 0
    else:
        update_norms = torch.stack(torch._foreach_norm(updates))
        ratios = trust * param_norms / update_norms
        scaled = (param_norms > 0) & (update_norms > 0)
    ratios = torch.where(scaled, ratios, torch.ones_like(ratios))
    # Keep the ratios on the device, because a conversion to Python numbers would wait for the GPU.
    torch._foreach_mul_(updates, ratios.unbind())
    return list(updates)


#: Normalisation layers. _NormBase is the parent of all batch and instance norms, including SyncBN.
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class NoNormDecayConstructor:
    """Constructor of an optimiser with two parameter groups, in which norms have no weight decay.

    All other parameters decay, including biases, as in SlowFast with ``BN.WEIGHT_DECAY`` 0
    (models/optimizer.py). mmengine's ``norm_decay_mult`` would make a group, and a line in the log,
    for every tensor.

    ``no_decay`` excludes further parameters, because vision transformers decay neither biases nor
    position embeddings. ``layer_decay`` makes two groups for every layer of the backbone
    (:class:`~sce_video.models.backbones.common.FreezableBackbone`). With ``layer_decay=0.75`` and L
    layers, the layer at depth d has 0.75^(L - d) times the learning rate, and the last norm and the
    heads have the full rate (microsoft/unilm, beit/optim_factory.py; facebookresearch/mae,
    util/lr_decay.py). The factor is a group's ``lr_scale``, which
    :class:`~sce_video.engine.schedules.ScheduleHook` keeps.

    Args:
        optim_wrapper_cfg: Config of the wrapper and, under ``optimizer``, of the optimiser.
        paramwise_cfg: ``dict(no_decay=["bias", "position_time"], layer_decay=0.75)``, in which both
            are optional, or None.

    Raises:
        ValueError: If ``paramwise_cfg`` has another key, ``no_decay`` is not a list of names,
            ``layer_decay`` is not in (0, 1], or the backbone does not list its layers.
    """

    def __init__(
        self,
        optim_wrapper_cfg: dict,
        paramwise_cfg: Words | None = None,
    ) -> None:
        given = dict(paramwise_cfg or {})
        names, self.layer_decay = given.pop("no_decay", ()), given.pop("layer_decay", None)
        listed = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
        if given or not listed:
            raise ValueError(
                'NoNormDecayConstructor accepts only paramwise_cfg=dict(no_decay=["bias", ...], '
                f"layer_decay=0.75), got {paramwise_cfg}. For other settings, set "
                "optim_wrapper.constructor=DefaultOptimWrapperConstructor"
            )
        factor = 1.0 if self.layer_decay is None else self.layer_decay
        if type(factor) not in (int, float) or not 0 < factor <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {factor!r}")
        self.optim_wrapper_cfg = optim_wrapper_cfg
        self.no_decay = frozenset(names)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        model = unwrap_model(model)
        depths, last = self._depths(model)
        found: dict[tuple[int, bool], list[nn.Parameter]] = {}
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    spared = isinstance(module, _NORMS) or name in self.no_decay
                    below = last - depths.get(parameter, last)
                    found.setdefault((below, spared), []).append(parameter)
        groups: list[ParameterGroup] = []
        for below, spared in sorted(found):  # the first group has the full rate, which is logged
            group: ParameterGroup = {"params": found[below, spared]}
            if spared:
                group["weight_decay"] = 0.0
            if self.layer_decay is not None:
                group["lr_scale"] = self.layer_decay**below
            groups.append(group)
        wrapper = _build_wrapper(self.optim_wrapper_cfg, groups)
        for group in wrapper.optimizer.param_groups:
            group["lr"] *= group.get("lr_scale", 1.0)
        return wrapper

    def _depths(self, model: nn.Module) -> tuple[dict[nn.Parameter, int], int]:
        """Return the depth of each backbone parameter and L; empty and 0 without layer decay."""
        if self.layer_decay is None:
            return {}, 0
        backbone = getattr(model, "backbone", None)
        if not isinstance(backbone, FreezableBackbone):
            raise ValueError(
                f"layer_decay={self.layer_decay} needs a backbone that lists its layers, but "
                f"{type(backbone).__name__} does not list them. Remove layer_decay from "
                "optim_wrapper.paramwise_cfg"
            )
        return backbone.depths(), len(backbone.layers())


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class ProbeGridConstructor:
    """Constructor of an optimiser that trains only the classifier, with its own parameter groups.

    ``model.cls_head.parameter_groups()`` returns the groups.
    :class:`~sce_video.models.heads.AttentiveProbeHead` has one group for each probe, with its
    learning rate and weight decay. Norms and biases decay too, as in facebookresearch/vjepa2,
    evals/video_classification_frozen/eval.py. ``paramwise_cfg`` must be None.

    Raises:
        ValueError: If ``paramwise_cfg`` is given, or the model has no such classifier.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        if paramwise_cfg:
            raise ValueError(
                "the classifier defines its parameter groups, so ProbeGridConstructor accepts no "
                f"paramwise_cfg, got {paramwise_cfg}"
            )
        self.optim_wrapper_cfg = optim_wrapper_cfg

    def __call__(self, model: nn.Module) -> OptimWrapper:
        head: Any = getattr(unwrap_model(model), "cls_head", None)
        if not hasattr(head, "parameter_groups"):
            raise ValueError(
                "ProbeGridConstructor needs a classifier with parameter_groups(), got "
                f"{type(head).__name__}. Set model.cls_head.type=AttentiveProbeHead, or use a "
                "different optim_wrapper.constructor"
            )
        return _build_wrapper(self.optim_wrapper_cfg, head.parameter_groups())


def _build_wrapper(cfg: dict, groups: list[ParameterGroup]) -> OptimWrapper:
    settings = dict(cfg)
    optimizer = OPTIMIZERS.build({**settings.pop("optimizer"), "params": groups})
    return OPTIM_WRAPPERS.build(settings, default_args={"optimizer": optimizer})


def computes_bfloat16() -> bool:
    """Return whether the current GPU has instructions for bfloat16.

    GPUs before NVIDIA's Ampere, such as the T4, only emulate it. This is many times slower, but
    torch counts it as supported by default.
    """
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@OPTIM_WRAPPERS.register_module()
class MixedPrecisionOptimWrapper(OptimWrapper):
    """Optimiser wrapper that computes in bf16 or fp16 on any device.

    Unlike mmengine's ``AmpOptimWrapper``, it also runs on a CPU, and it scales the loss only in
    fp16. bf16 has the same range of exponents as fp32 and needs no scaling.

    Args:
        optimizer: The torch optimiser.
        dtype: "bfloat16", "float16", or "float32" for no mixed precision.
        accumulative_counts: Micro-batches per optimiser step.
        clip_grad: Arguments of gradient clipping, or None. With ``per_group=True``, each parameter
            group is clipped by its own norm, because the groups are trained independently.
        init_scale: Initial loss scale, fp16 only.

    Raises:
        ValueError: If the dtype is unknown.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        dtype: Word = "bfloat16",
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
        """Unscale and clip the gradients, and step. Skip an fp16 step with infinite gradients."""
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
        # Checkpoints from runs without this wrapper lack a scaler state, and in bf16 the state is
        # empty.
        if scaler := state_dict.get("loss_scaler"):
            self.loss_scaler.load_state_dict(scaler)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "loss_scaler"})
