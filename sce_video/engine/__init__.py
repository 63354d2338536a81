"""Runner, training loop, hooks, optimisers, schedules and checkpoints."""

from typing import TYPE_CHECKING

from sce_video.utils.imports import lazy_names

if TYPE_CHECKING:
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
    from sce_video.engine.logs import (
        MeanLogProcessor,
        MLflowVisBackend,
        ScreenProgressHook,
        TensorboardVisBackend,
        Visualizer,
        WandbVisBackend,
    )
    from sce_video.engine.optimizers import (
        LARS,
        MixedPrecisionOptimWrapper,
        NoNormDecayConstructor,
        ProbeGridConstructor,
    )
    from sce_video.engine.runner import VideoRunner
    from sce_video.engine.schedules import ScheduleHook
    from sce_video.engine.train_loop import ResumableTrainLoop, TrainingStepError

__all__ = [
    "LARS",
    "AlarmHook",
    "BadFileHook",
    "BudgetHook",
    "ChanceLevelHook",
    "CheckpointHook",
    "LogReductionHook",
    "LoggerHook",
    "MLflowVisBackend",
    "MeanLogProcessor",
    "MirrorHook",
    "MixedPrecisionOptimWrapper",
    "NoNormDecayConstructor",
    "OptimizerStepHook",
    "ProbeGridConstructor",
    "ProgressHook",
    "ResumableTrainLoop",
    "ScheduleHook",
    "ScreenProgressHook",
    "TensorboardVisBackend",
    "TrainingStepError",
    "VideoRunner",
    "Visualizer",
    "WandbVisBackend",
]

__getattr__ = lazy_names(__name__, __file__)
