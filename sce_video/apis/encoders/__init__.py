"""Encoders of others (transformers) as checkpoints of this package."""

from __future__ import annotations

from typing import Any

#: What a model begins with where a run or a checkpoint is expected.
MODEL_PREFIX = "hf:"


def is_model(text: Any) -> bool:
    """Whether a text names a model: ``hf:FOLDER`` or ``hf:OWNER/MODEL``."""
    return str(text).startswith(MODEL_PREFIX)
