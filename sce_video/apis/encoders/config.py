"""The config of an encoder of others: network, normalisation, evaluation of labelled videos."""

from __future__ import annotations

import copy
from typing import Any

from sce_video.apis.encoders.processor import ProcessorSettings

_CLIPS = 4  # of a video, as in sce-video embed and index


def encoder_config(backbone: dict[str, Any], settings: ProcessorSettings) -> dict[str, Any]:
    """A config for ``sce-video embed``, ``index`` and ``evaluate``."""
    pipeline = evaluation_pipeline(settings)
    dataset = {"type": "VideoDataset", "data_root": "data/videos", "pipeline": pipeline}
    loader: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 2,
        "dataset": {**dataset, "on_error": "raise"},
    }
    gallery = copy.deepcopy(loader)
    gallery["dataset"]["on_error"] = "skip"
    return {
        "default_scope": "sce_video",
        "runner_type": "VideoRunner",
        "randomness": {"seed": 0},
        "env_cfg": {
            "cudnn_benchmark": True,
            "mp_cfg": {"mp_start_method": "fork", "opencv_num_threads": 0},
            "dist_cfg": {"backend": "nccl"},
        },
        "default_hooks": {"logger": {"type": "LoggerHook"}},
        "log_processor": {"type": "MeanLogProcessor", "window_size": 20, "by_epoch": True},
        "load_from": None,
        "resume": False,
        "model": {"type": "Encoder", "backbone": backbone},
        "data_preprocessor": {
            "type": "VideoDataPreprocessor",
            "mean": settings.mean,
            "std": settings.std,
        },
        "test_dataloader": loader,
        "test_evaluator": [
            {"type": "KNN", "k": 20},
            {"type": "LinearProbe"},
            {"type": "Retrieval", "ks": (1, 5, 10)},
            {"type": "FeatureStatistics"},
        ],
        "test_cfg": {"type": "MultiViewTestLoop", "gallery_dataloader": gallery},
    }


def evaluation_pipeline(
    settings: ProcessorSettings, in_float: bool = True, num_clips: int = _CLIPS
) -> list[dict[str, Any]]:
    """Steps from a file to the clips of a video, as the processor makes them.

    Args:
        settings: Of the processor.
        in_float: False rounds frames after resizing, also where the processor does not.
        num_clips: Of a video.
    """
    if settings.clip_duration is None:
        clip: dict[str, Any] = {"type": "CenterSegmentClip", "num_frames": settings.num_frames}
    else:
        clip = {
            "type": "UniformClips",
            "clip_duration": settings.clip_duration,
            "num_frames": settings.num_frames,
            "num_clips": num_clips,
        }
    whole = settings.in_float and in_float
    side = settings.short_side
    resize = {
        "type": "ResizeAsProcessor",
        "size": (side, side) if settings.square else side,
        "crop": None if settings.square else settings.crop_size,
        "interpolation": settings.interpolation,
    }
    pack = {"type": "PackVideo", "crop_size": settings.crop_size, "num_crops": 1}
    return [
        {"type": "OpenVideo"},
        clip,
        {"type": "DecodeSharedFrames"},
        *([] if whole else [resize]),
        {**pack, "whole": True} if whole else pack,
    ]
