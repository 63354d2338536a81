"""Hooks of the training loop."""

from sce_video.engine.hooks.alarms import AlarmHook, ChanceLevelHook
from sce_video.engine.hooks.bad_files import BadFileHook
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.hooks.checkpoint import CheckpointHook
from sce_video.engine.hooks.logger import LoggerHook
from sce_video.engine.hooks.mirror import MirrorHook
from sce_video.engine.hooks.optimizer_step import OptimizerStepHook
from sce_video.engine.hooks.progress import LogReductionHook, ProgressHook
from sce_video.engine.hooks.schedule import ScheduleHook
from sce_video.engine.hooks.screen import ScreenProgressHook

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
