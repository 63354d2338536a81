"""Parameter groups: normalisation layers, and parameters by name, without weight decay."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapper
from torch import nn

from sce_video.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS
from sce_video.utils.distributed import unwrap_model

# _NormBase is the parent of all batch and instance norms, SyncBN included.
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class NoNormDecayConstructor:
    """Builds the optimiser with two parameter groups: BN (and other norms) has no weight decay.

    Everything else is decayed, biases included: as SlowFast with ``BN.WEIGHT_DECAY`` 0
    (models/optimizer.py). ``paramwise_cfg=dict(no_decay=["bias", "position_time"])`` also leaves
    out parameters of these names: vision transformers decay neither biases nor position embeddings.
    mmengine's ``norm_decay_mult`` makes a group, and a line in the log, of every tensor.

    Args:
        optim_wrapper_cfg: Config of the wrapper and, under ``optimizer``, of the optimiser.
        paramwise_cfg: None, or ``no_decay`` with the last parts of parameter names; other settings
            by parameter need mmengine's constructor.

    Raises:
        ValueError: ``paramwise_cfg`` has another key, or ``no_decay`` is no list of names.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        names = (paramwise_cfg or {}).get("no_decay", ())
        listed = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
        if set(paramwise_cfg or {}) - {"no_decay"} or not listed:
            raise ValueError(
                'NoNormDecayConstructor takes paramwise_cfg=dict(no_decay=["bias", ...]) only, got '
                f"{paramwise_cfg}: optim_wrapper.constructor=DefaultOptimWrapperConstructor takes "
                "other settings"
            )
        self.optim_wrapper_cfg = optim_wrapper_cfg
        self.no_decay = frozenset(names)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The wrapper with the optimiser of all parameters of ``model`` that have a gradient."""
        spared: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for module in unwrap_model(model).modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    without = isinstance(module, _NORMS) or name in self.no_decay
                    (spared if without else others).append(parameter)
        groups: list[dict[str, Any]] = [{"params": others}]
        if spared:
            groups.append({"params": spared, "weight_decay": 0.0})
        settings = dict(self.optim_wrapper_cfg)
        optimizer = OPTIMIZERS.build({**settings.pop("optimizer"), "params": groups})
        return OPTIM_WRAPPERS.build(settings, default_args={"optimizer": optimizer})
