"""``sce-video embed``, which writes the features of many videos to one file."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.named_files import check_exists, check_out, check_run, check_videos
from sce_video.datasets.sources import dataset_settings, listed_extensions
from sce_video.engine.recipes import find_recipe
from sce_video.options.features import EmbedOptions
from sce_video.utils.files import output_file
from sce_video.utils.records import at
from sce_video.utils.run_files import RANDOM, newest_checkpoint

if TYPE_CHECKING:
    from mmengine.config import Config

#: Dataset class that reads a table
_TABLE = "LanceVideoDataset"
#: Settings of this class that do not determine which videos are read
_OF_TABLE = frozenset(("type", "storage_options", "block_size"))


@dataclass(frozen=True)
class EmbedResult:
    """Result of an embedding.

    Attributes:
        out: Path of the file.
        windows: Division of the videos into windows; None for whole videos.
        count: Number of windows; None for whole videos, whose number is in the log.
        problems: Sentences about videos that could not be embedded; empty for whole videos, whose
            failures are listed in the file.
    """

    out: str
    windows: Windows | None = None
    count: int | None = None
    problems: list[str] = field(default_factory=list)


def embed(options: EmbedOptions) -> EmbedResult:
    """Write the features of videos, or of their windows, to a file.

    Raises:
        FileNotFoundError: If a named file or folder is missing.
        ValueError: If the source is not valid, or the checkpoint does not match the config.
    """
    windows = None
    if options.windows is not None:
        windows = Windows.of_texts(options.windows, options.stride, options.shots)
    _check_files(options, windows)
    if windows is not None:
        return _embed_windows(options, windows)
    # Imported here, so that wrong names are reported before torch loads.
    from sce_video.inference.encoders.encoder_folder import run_of_model, run_of_weights
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs.launch import run_test
    from sce_video.utils.distributed import leave_process_group

    checkpoint = options.checkpoint
    if checkpoint != RANDOM:
        # A transformers model is converted to a run in the cache. A torchvision state dict is
        # expected only if the user names its file.
        converted = None if options.config else run_of_weights(checkpoint)
        checkpoint = converted or newest_checkpoint(run_of_model(checkpoint))
    config = options.config or stored_test(checkpoint)
    with output_file(options.out) as out:
        run_test(extraction_config(options, config, checkpoint, out))
    leave_process_group()
    return EmbedResult(options.out)


def extraction_config(
    options: EmbedOptions, config: str | Config, checkpoint: str, out: Path
) -> Config:
    """Build the checked config that embeds a dataset with a checkpoint's backbone.

    Args:
        options: Options of the command.
        config: Config file of a pretraining, linear evaluation, finetuning or retrieval run, whose
            backbone, normalisation and test pipeline are used; or a config, as in
            :func:`~sce_video.runs.configs.testing_config`.
        checkpoint: File that contains this backbone, or "random".
        out: The .npz file to write, on this machine.

    Raises:
        FileNotFoundError: If the config does not exist.
        ValueError: If :func:`~sce_video.runs.configs.testing_config` refuses the arguments, or the
            config has no data of ``options.part``.
    """
    from sce_video.engine.config.load import load_config
    from sce_video.runs.configs import testing_config

    given = {name: getattr(options, name) for name in ("backend", "cfg_options", "launcher")}
    cfg = testing_config(config, checkpoint, **given)
    parts = {
        "test": cfg.test_dataloader,
        "bank": at(cfg, "test_cfg.gallery_dataloader"),
        # Read the file again, because the test config no longer contains the training data.
        "train": at(load_config(config, options.cfg_options), "train_dataloader"),
    }
    found = parts[options.part]
    if found is None:
        raise ValueError(f"the config has no {options.part} data to embed. Use --part test")
    loader = copy.deepcopy(cfg.test_dataloader)
    for key in ("data_root", "ann_file"):
        loader.dataset[key] = at(found.dataset, key)
    if at(found.dataset, "type") == _TABLE:
        loader.dataset.update({key: found.dataset[key] for key in _OF_TABLE & set(found.dataset)})
    if options.videos is not None or options.ann_file is not None:
        _use_own_videos(cfg, loader, options)
    loader.dataset.on_error = "skip"  # failures are counted and listed with the features
    cfg.test_dataloader = loader
    preprocessor = at(cfg, "model.data_preprocessor") or at(cfg, "data_preprocessor") or {}
    kept = {k: preprocessor[k] for k in ("mean", "std", "channels_last") if k in preprocessor}
    # Remove this preprocessor, because the runner would pass it to the encoder below, which has its
    # own.
    cfg.data_preprocessor = None
    cfg.model = {
        "type": "Encoder",
        "backbone": cfg.model.backbone,
        "data_preprocessor": {"type": "VideoDataPreprocessor", **kept},
    }
    out = out.resolve()
    processes = {name: getattr(options, name) for name in ("workers", "ray", "processes_per_gpu")}
    cfg.test_cfg = {"type": "FeatureExtractionLoop", "out": str(out), **processes}
    cfg.test_evaluator = []
    cfg.visualizer = None  # there are no metrics to plot
    cfg.work_dir = str(out.parent / f"{out.stem}_logs")
    return cfg


def _use_own_videos(cfg: Config, loader: Any, options: EmbedOptions) -> None:
    """Replace the recipe's data in a config and its loader by the user's data, in place."""
    dataset, root = loader.dataset, options.videos
    dataset.ann_file = options.ann_file
    if root is not None:
        dataset.update(dataset_settings(root, listed_extensions(options.all_files)))
    if options.dataset is not None:
        # Start from a new dict, because the user's class may not accept all arguments of the
        # config's class.
        pipeline = at(dataset, "pipeline") or []
        loader.dataset = {"type": options.dataset, "data_root": root, "pipeline": pipeline}
    # The user's videos do not belong to the recipe's benchmark. A transfer benchmark is kept,
    # because it names no dataset.
    cfg.split = None
    if at(cfg, "benchmark.dataset") is not None:
        cfg.benchmark = None


def _check_files(options: EmbedOptions, windows: Windows | None) -> None:
    """Raise an error if files are missing or the source is not valid."""
    check_out(options.out)
    if options.config is not None:
        find_recipe(options.config)
    if options.videos is not None:
        if options.config is None and (windows is None or os.path.isdir(options.videos)):
            check_videos(options.videos, listed_extensions(options.all_files), options.dataset)
        else:  # with a config, the data may also be images
            check_exists(options.videos, "video, folder or table")
    if options.ann_file is not None:
        if not Path(options.videos or "", options.ann_file).exists():
            check_exists(options.ann_file, "file or folder")
    if options.checkpoint != RANDOM or options.config is None:
        check_run(options.checkpoint)


def _embed_windows(options: EmbedOptions, windows: Windows) -> EmbedResult:
    """Embed the windows of videos."""
    from sce_video.inference.embed_file import embed_to_file
    from sce_video.inference.model import load_model
    from sce_video.inference.network_input import ViewOptions

    assert options.videos is not None
    model = load_model(options.checkpoint, options.config, options.device)
    views = ViewOptions(
        num_clips=options.clips, num_crops=options.crops, num_workers=options.workers or 0
    )
    with output_file(options.out) as out:
        found = embed_to_file(
            *(model, options.videos, out, windows, views),
            extensions=listed_extensions(options.all_files),
            dataset=options.dataset,
            ray=options.ray,
            processes_per_gpu=options.processes_per_gpu,
        )
    problems = [f"{path}: {why}" for path, why in [*found.failures, *found.incomplete]]
    return EmbedResult(options.out, windows, len(found), problems)
