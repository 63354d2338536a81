"""Runner, loops, hooks, optimisers and schedules."""

from sce_video.engine.hooks import (
    BadFileHook,
    LogReductionHook,
    OptimizerStepHook,
    ProgressHook,
    ScheduleHook,
)
from sce_video.engine.optim_wrapper import MixedPrecisionOptimWrapper
from sce_video.engine.optimizers import LARS
from sce_video.engine.runner import VideoRunner
from sce_video.engine.train_loop import ResumableTrainLoop

__all__ = [
    "LARS",
    "BadFileHook",
    "LogReductionHook",
    "MixedPrecisionOptimWrapper",
    "OptimizerStepHook",
    "ProgressHook",
    "ResumableTrainLoop",
    "ScheduleHook",
    "VideoRunner",
]
