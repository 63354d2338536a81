"""The views of a video that is embedded, and the network that makes a row of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sce_video.apis.model_settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Views of a video, and how they are computed.

    Attributes:
        num_clips: Clips per video, at equal steps; 1 takes the centre. A network trained with
            segment sampling always sees one clip, the whole video.
        num_crops: Crops per clip: 1 (centre) or 3 (along the long side).
        max_views: Largest batch of views. It bounds memory and affects speed; features change by
            rounding only.
        num_workers: Decoding processes; 0 decodes in the main process.
        timeout: Time limit for decoding a file, seconds; None for no limit.
    """

    num_clips: int = 4
    num_crops: int = 1
    max_views: int = 32
    num_workers: int = 0
    timeout: float | None = 60.0

    def __post_init__(self) -> None:
        for name, least in (("num_clips", 1), ("max_views", 1), ("num_workers", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")
        if self.num_crops not in (1, 3):
            raise ValueError(
                f"num_crops must be 1 (centre) or 3 (along the long side), got {self.num_crops}"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be positive seconds or None, got {self.timeout}")


class VideoNetwork(Protocol):
    """What embedding needs of a network: its input settings, and a row of numbers for a video."""

    @property
    def settings(self) -> ModelSettings:
        """Clip and crop."""

    @property
    def checkpoint(self) -> str:
        """Path of the weights, for messages."""

    @property
    def row_size(self) -> int:
        """D, size of a row."""

    def row(self, sample: dict[str, Any], max_views: int) -> np.ndarray:
        """(D,) float32 of a video packed by ``PackVideo``, from at most ``max_views`` at a time."""


def embed_sample(
    model: VideoNetwork, sample: dict[str, Any], options: EmbedOptions, name: str
) -> np.ndarray:
    """The row (D,) of one video.

    Videos are not batched: the rounding of a convolution depends on the batch size.
    """
    row = model.row(sample, options.max_views)
    if not np.isfinite(row).all():
        raise ValueError(
            f"the output for {name} is not finite: the network of {model.checkpoint} has diverged"
        )
    return row
