"""The loss of a network that tells no samples apart, from a config alone."""

from __future__ import annotations

import contextlib
from typing import Any

from sce_video.models.algorithms import SelfSupervisedModel
from sce_video.registry import MODELS

#: A network of which nothing is computed: the level does not depend on it.
_BACKBONE = {"type": "ResNet2d", "depth": 18, "base_channels": 4}
_PARTS = ("projector", "predictor")
_HEADS = "MLP"


def chance_level(config: dict[str, Any]) -> float | None:
    """The chance level of the method of a config; None if it has none or cannot be built.

    Only methods of this package are built, with a small network in place of theirs, since the
    config may be a stranger's.
    """
    model = config.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        return None
    kind = MODELS.get(model["type"])
    if kind is None or not isinstance(kind, type) or not issubclass(kind, SelfSupervisedModel):
        return None
    if not kind.__module__.startswith("sce_video."):
        return None
    settings = {**model, "backbone": _BACKBONE, "data_preprocessor": None}
    heads = [value for value in settings.values() if isinstance(value, dict)]
    if any(head.get("type", _HEADS) not in (_HEADS, "ResNet2d") for head in heads):
        return None
    with contextlib.suppress(Exception):  # a wrong argument can raise any error in a constructor
        return MODELS.build(settings).chance_level()
    return None
