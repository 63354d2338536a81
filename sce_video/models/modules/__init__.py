"""Parts that algorithms share."""

from sce_video.models.modules.queue import KeyQueue
from sce_video.models.modules.target_encoder import TargetEncoder

__all__ = ["KeyQueue", "TargetEncoder"]
