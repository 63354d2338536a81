"""From decoded frames to the packed views of a network: resize and crop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sce_video.apis.model_settings import ModelSettings
from sce_video.datasets.transforms import PackVideo, ResizeAsProcessor, ResizeShortSide

Transform = Callable[[dict[str, Any]], dict[str, Any]]


def resize_steps(settings: ModelSettings, num_crops: int) -> list[Transform]:
    """At most one transform of the views; none where the network resizes whole frames.

    Raises:
        ValueError: several crops of frames that are squashed to a square.
    """
    if settings.resize == "network":
        return []
    if settings.resize == "linear":
        return [ResizeShortSide(settings.short_side)]
    side, square = settings.short_side, settings.resize == "square"
    if square and num_crops != 1:
        raise ValueError(f"frames squashed to a square have one crop, got num_crops={num_crops}")
    crop = settings.crop_size if num_crops == 1 else None
    interpolation = "bilinear" if square else settings.resize
    return [ResizeAsProcessor((side, side) if square else side, crop, interpolation)]


def pack_step(settings: ModelSettings, num_crops: int) -> PackVideo:
    """Cuts the crops."""
    return PackVideo(settings.crop_size, num_crops, whole=settings.resize == "network")
