"""Hooks of the training loop."""

from sce_video.engine.hooks.alarms import AlarmHook, ChanceLevelHook
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.hooks.checkpoint import CheckpointHook, MirrorHook
from sce_video.engine.hooks.progress import (
    BadFileHook,
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
