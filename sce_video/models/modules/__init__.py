"""Modules that the algorithms share."""

from sce_video.models.modules.pooling import average_pool, map_tokens, represent
from sce_video.models.modules.prototypes import Prototypes
from sce_video.models.modules.query_sum import sum_over_queries
from sce_video.models.modules.queue import KeyQueue, queue_warnings, uneven_queue_warnings
from sce_video.models.modules.roi_align import roi_align
from sce_video.models.modules.step_generator import StepGenerator
from sce_video.models.modules.target_encoder import TargetEncoder, check_momentum

__all__ = [
    "KeyQueue",
    "Prototypes",
    "StepGenerator",
    "TargetEncoder",
    "average_pool",
    "check_momentum",
    "map_tokens",
    "queue_warnings",
    "represent",
    "roi_align",
    "sum_over_queries",
    "uneven_queue_warnings",
]
