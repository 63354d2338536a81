"""Runner, training loop, hooks, optimisers, schedules and checkpoints."""

from sce_video.utils.imports import lazy_names

#: The public names and their modules.
_MODULES = {
    "LARS": "optimizers",
    "AlarmHook": "hooks.alarms",
    "BadFileHook": "hooks.progress",
    "BudgetHook": "hooks.budget",
    "ChanceLevelHook": "hooks.alarms",
    "CheckpointHook": "hooks.checkpoint_hook",
    "LogReductionHook": "hooks.progress",
    "LoggerHook": "hooks.progress",
    "MLflowVisBackend": "logs",
    "MeanLogProcessor": "logs",
    "MirrorHook": "hooks.checkpoint_hook",
    "MixedPrecisionOptimWrapper": "optimizers",
    "NoNormDecayConstructor": "optimizers",
    "OptimizerStepHook": "hooks.progress",
    "ProbeGridConstructor": "optimizers",
    "ProgressHook": "hooks.progress",
    "ResumableTrainLoop": "train_loop",
    "ScheduleHook": "schedules",
    "ScreenProgressHook": "logs",
    "TensorboardVisBackend": "logs",
    "TrainingStepError": "train_loop",
    "VideoRunner": "runner",
    "Visualizer": "logs",
    "WandbVisBackend": "logs",
}
__all__ = [*_MODULES]

__getattr__ = lazy_names(__name__, _MODULES)
