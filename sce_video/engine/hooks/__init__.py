"""Hooks of the training loop."""

from sce_video.engine.hooks.bad_files import BadFileHook
from sce_video.engine.hooks.chance_level import ChanceLevelHook
from sce_video.engine.hooks.checkpoint import CheckpointHook
from sce_video.engine.hooks.logger import LoggerHook
from sce_video.engine.hooks.optimizer_step import OptimizerStepHook
from sce_video.engine.hooks.progress import LogReductionHook, ProgressHook
from sce_video.engine.hooks.schedule import ScheduleHook

__all__ = [
    "BadFileHook",
    "ChanceLevelHook",
    "CheckpointHook",
    "LogReductionHook",
    "LoggerHook",
    "OptimizerStepHook",
    "ProgressHook",
    "ScheduleHook",
]
