"""Runner, training loop, hooks, optimisers, schedules and checkpoints."""

from sce_video.engine.hooks import (
    BadFileHook,
    ChanceLevelHook,
    CheckpointHook,
    LoggerHook,
    LogReductionHook,
    OptimizerStepHook,
    ProgressHook,
    ScheduleHook,
)
from sce_video.engine.log_processor import MeanLogProcessor
from sce_video.engine.logs import LocalVisBackend, TensorboardVisBackend, Visualizer
from sce_video.engine.optim_wrapper import MixedPrecisionOptimWrapper
from sce_video.engine.optimizers import LARS, NoNormDecayConstructor
from sce_video.engine.runner import VideoRunner
from sce_video.engine.train_loop import ResumableTrainLoop, TrainingStepError

__all__ = [
    "LARS",
    "BadFileHook",
    "ChanceLevelHook",
    "CheckpointHook",
    "LocalVisBackend",
    "LogReductionHook",
    "LoggerHook",
    "MeanLogProcessor",
    "MixedPrecisionOptimWrapper",
    "NoNormDecayConstructor",
    "OptimizerStepHook",
    "ProgressHook",
    "ResumableTrainLoop",
    "ScheduleHook",
    "TensorboardVisBackend",
    "TrainingStepError",
    "VideoRunner",
    "Visualizer",
]
