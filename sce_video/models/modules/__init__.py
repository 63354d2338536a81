"""Modules that several methods and models share."""

from sce_video.models.modules.queue import KeyQueue, queue_warnings, uneven_queue_warnings
from sce_video.models.modules.roi_align import roi_align
from sce_video.models.modules.target_encoder import StepGenerator, TargetEncoder, check_momentum

__all__ = [
    "KeyQueue",
    "StepGenerator",
    "TargetEncoder",
    "check_momentum",
    "queue_warnings",
    "roi_align",
    "uneven_queue_warnings",
]
