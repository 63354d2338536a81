"""Hooks of the training loop."""

from sce_video.engine.hooks.bad_files import BadFileHook
from sce_video.engine.hooks.online_judge import OnlineJudgeHook
from sce_video.engine.hooks.progress import LogReductionHook, ProgressHook
from sce_video.engine.hooks.schedule import ScheduleHook
from sce_video.engine.hooks.target_update import TargetUpdateHook

__all__ = [
    "BadFileHook",
    "LogReductionHook",
    "OnlineJudgeHook",
    "ProgressHook",
    "ScheduleHook",
    "TargetUpdateHook",
]
