"""Parameter groups: normalisation layers without weight decay."""

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
    (models/optimizer.py). mmengine's ``norm_decay_mult`` makes a group, and a line in the log, of
    every tensor.

    Args:
        optim_wrapper_cfg: Config of the wrapper and, under ``optimizer``, of the optimiser.
        paramwise_cfg: None; settings by parameter need mmengine's constructor.

    Raises:
        ValueError: ``paramwise_cfg`` is given.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        if paramwise_cfg:
            raise ValueError(
                f"NoNormDecayConstructor has no paramwise_cfg, got {paramwise_cfg}: set "
                "optim_wrapper.constructor=DefaultOptimWrapperConstructor to use it"
            )
        self.optim_wrapper_cfg = optim_wrapper_cfg

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The wrapper with the optimiser of all parameters of ``model`` that have a gradient."""
        norms: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for module in unwrap_model(model).modules():
            group = norms if isinstance(module, _NORMS) else others
            group += [p for p in module.parameters(recurse=False) if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": others}]
        if norms:
            groups.append({"params": norms, "weight_decay": 0.0})
        settings = dict(self.optim_wrapper_cfg)
        optimizer = OPTIMIZERS.build({**settings.pop("optimizer"), "params": groups})
        return OPTIM_WRAPPERS.build(settings, default_args={"optimizer": optimizer})
