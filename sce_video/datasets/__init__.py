"""Files to batches: lists and folders, clip sampling, decoding, uint8 crops, collating."""

from sce_video.utils.imports import lazy_names

#: The public names and their modules.
_MODULES = {
    "IMAGE_EXTENSIONS": "video_list",
    "AVADataset": "ava",
    "BadFileReport": "loading.failures",
    "FrameCountError": "readers.base",
    "ImageArrayDataset": "image_datasets",
    "ImageDataset": "image_datasets",
    "LanceVideoDataset": "lance_video_dataset",
    "ResumableSampler": "samplers",
    "SampleRequest": "video_dataset",
    "TooManyBadFilesError": "readers.base",
    "VideoDataset": "video_dataset",
    "VideoDecodeError": "readers.base",
    "VideoList": "video_list",
    "VideoReader": "readers",
    "WorkerCrashError": "loading.failures",
    "backend_importable": "readers",
    "batches_without_crashes": "loading.failures",
    "collate_boxes": "loading.batches",
    "collate_views": "loading.batches",
    "dataset_settings": "sources",
    "is_elsewhere": "sources",
    "list_videos": "sources",
    "mix_seed": "video_dataset",
    "open_reader": "readers",
    "open_video": "sources",
    "read_annotation_list": "video_list",
    "read_key_frames": "ava",
    "report_worker_crashes": "loading.failures",
    "run_pipeline": "pipeline",
    "scan_folder": "sources",
    "video_exists": "sources",
}
__all__ = [*_MODULES, "transforms"]

__getattr__ = lazy_names(__name__, _MODULES)
