"""Hooks of the training loop."""

from sce_video.engine.hooks.alarms import AlarmHook, ChanceLevelHook
from sce_video.engine.hooks.bad_files import BadFileHook
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.hooks.checkpoint import CheckpointHook
from sce_video.engine.hooks.mirror import MirrorHook
from sce_video.engine.hooks.progress import (
    LoggerHook,
    LogReductionHook,
    OptimizerStepHook,
    ProgressHook,
)
from sce_video.engine.hooks.screen import ScreenProgressHook
from sce_video.engine.schedules import ScheduleHook

__all__ = [
    "AlarmHook",
    "BadFileHook",
    "BudgetHook",
    "ChanceLevelHook",
    "CheckpointHook",
    "LogReductionHook",
    "LoggerHook",
    "MirrorHook",
    "OptimizerStepHook",
    "ProgressHook",
    "ScheduleHook",
    "ScreenProgressHook",
]
