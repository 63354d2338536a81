"""Augmentation of views in batches, on their device (CPU or GPU)."""

from sce_video.models.augmentation.apply import augment, plan
from sce_video.models.augmentation.blur import BLUR_KERNEL, gaussian_blur
from sce_video.models.augmentation.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    rgb_to_grey,
    solarise,
    to_grey,
)
from sce_video.models.augmentation.geometry import flip_horizontal
from sce_video.models.augmentation.parameters import (
    ViewAugmentation,
    ViewParameters,
    build_view,
    draw_parameters,
    named_view,
)

__all__ = [
    "BLUR_KERNEL",
    "ViewAugmentation",
    "ViewParameters",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "augment",
    "build_view",
    "draw_parameters",
    "flip_horizontal",
    "gaussian_blur",
    "named_view",
    "plan",
    "rgb_to_grey",
    "solarise",
    "to_grey",
]
