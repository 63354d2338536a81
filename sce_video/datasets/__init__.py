"""From files to batches: lists and folders, clip sampling, decoding, uint8 crops, collating."""

from typing import TYPE_CHECKING

from sce_video.utils.imports import lazy_names

if TYPE_CHECKING:
    from sce_video.datasets import transforms
    from sce_video.datasets.ava import AVADataset, read_key_frames
    from sce_video.datasets.image_datasets import ImageArrayDataset, ImageDataset
    from sce_video.datasets.lance_video_dataset import LanceVideoDataset
    from sce_video.datasets.loading.batches import (
        BadFileReport,
        WorkerCrashError,
        batches_without_crashes,
        collate_boxes,
        collate_views,
        report_worker_crashes,
    )
    from sce_video.datasets.readers import VideoReader, backend_importable, open_reader
    from sce_video.datasets.readers.base import (
        FrameCountError,
        TooManyBadFilesError,
        VideoDecodeError,
    )
    from sce_video.datasets.samplers import ResumableSampler
    from sce_video.datasets.sources import (
        dataset_settings,
        is_elsewhere,
        list_videos,
        open_video,
        scan_folder,
        video_exists,
    )
    from sce_video.datasets.video_dataset import SampleRequest, VideoDataset, mix_seed, run_pipeline
    from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VideoList, read_annotation_list

__all__ = [
    "IMAGE_EXTENSIONS",
    "AVADataset",
    "BadFileReport",
    "FrameCountError",
    "ImageArrayDataset",
    "ImageDataset",
    "LanceVideoDataset",
    "ResumableSampler",
    "SampleRequest",
    "TooManyBadFilesError",
    "VideoDataset",
    "VideoDecodeError",
    "VideoList",
    "VideoReader",
    "WorkerCrashError",
    "backend_importable",
    "batches_without_crashes",
    "collate_boxes",
    "collate_views",
    "dataset_settings",
    "is_elsewhere",
    "list_videos",
    "mix_seed",
    "open_reader",
    "open_video",
    "read_annotation_list",
    "read_key_frames",
    "report_worker_crashes",
    "run_pipeline",
    "scan_folder",
    "transforms",
    "video_exists",
]

__getattr__ = lazy_names(__name__, __file__)
