"""Parts that algorithms share."""

from sce_video.models.modules.queue import KeyQueue
from sce_video.models.modules.roi_align import roi_align
from sce_video.models.modules.target_encoder import TargetEncoder

__all__ = ["KeyQueue", "TargetEncoder", "roi_align"]
