"""Parameter groups of a head that trains several classifiers at once."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapper
from torch import nn

from sce_video.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS
from sce_video.utils.distributed import unwrap_model


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class ProbeGridConstructor:
    """Builds the optimiser with the parameter groups of the classifier, and nothing else.

    ``model.cls_head.parameter_groups()`` gives them: of
    :class:`~sce_video.models.heads.AttentiveProbeHead` one for each probe, with its learning rate
    and weight decay. Norms and biases are decayed too, as in facebookresearch/vjepa2,
    evals/video_classification_frozen/eval.py.

    Args:
        optim_wrapper_cfg: Config of the wrapper and, under ``optimizer``, of the optimiser.
        paramwise_cfg: None.

    Raises:
        ValueError: ``paramwise_cfg`` is given.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        if paramwise_cfg:
            raise ValueError(
                "the classifier names its parameter groups, so ProbeGridConstructor takes no "
                f"paramwise_cfg, got {paramwise_cfg}"
            )
        self.optim_wrapper_cfg = optim_wrapper_cfg

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The wrapper with the optimiser.

        Raises:
            ValueError: the model has no classifier with parameter groups.
        """
        head: Any = getattr(unwrap_model(model), "cls_head", None)
        if not hasattr(head, "parameter_groups"):
            raise ValueError(
                "ProbeGridConstructor needs a classifier with parameter_groups(), got "
                f"{type(head).__name__}: set model.cls_head.type=AttentiveProbeHead, or another "
                "optim_wrapper.constructor"
            )
        settings = dict(self.optim_wrapper_cfg)
        groups = head.parameter_groups()
        optimizer = OPTIMIZERS.build({**settings.pop("optimizer"), "params": groups})
        return OPTIM_WRAPPERS.build(settings, default_args={"optimizer": optimizer})
