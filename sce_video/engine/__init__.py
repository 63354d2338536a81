"""Runner, loops, hooks, optimisers and schedules."""

from sce_video.engine.detection_loop import DetectionTestLoop
from sce_video.engine.extraction_loop import FeatureExtractionLoop
from sce_video.engine.hooks import (
    BadFileHook,
    LogReductionHook,
    OnlineJudgeHook,
    ProgressHook,
    ScheduleHook,
    TargetUpdateHook,
)
from sce_video.engine.loops import ResumableTrainLoop
from sce_video.engine.optim_wrapper import MixedPrecisionOptimWrapper
from sce_video.engine.optimizers import LARS
from sce_video.engine.recognition_loop import RecognitionTestLoop, RecognitionValLoop
from sce_video.engine.runner import VideoRunner
from sce_video.engine.test_loop import RepresentationTestLoop

__all__ = [
    "LARS",
    "BadFileHook",
    "DetectionTestLoop",
    "FeatureExtractionLoop",
    "LogReductionHook",
    "MixedPrecisionOptimWrapper",
    "OnlineJudgeHook",
    "ProgressHook",
    "RecognitionTestLoop",
    "RecognitionValLoop",
    "RepresentationTestLoop",
    "ResumableTrainLoop",
    "ScheduleHook",
    "TargetUpdateHook",
    "VideoRunner",
]
