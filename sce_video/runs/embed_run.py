"""``sce-video embed``, which writes the features of many videos to one file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.named_files import check_exists, check_out, check_run, check_videos
from sce_video.datasets.sources import listed_extensions
from sce_video.engine.recipes import find_recipe
from sce_video.options.features import EmbedOptions
from sce_video.utils.files import output_file
from sce_video.utils.run_files import RANDOM, newest_checkpoint


@dataclass(frozen=True)
class EmbedResult:
    """Result of an embedding.

    Attributes:
        out: Path of the file.
        windows: Division of the videos into windows; None for whole videos.
        count: Number of windows; None for whole videos, which the log counts.
        problems: Sentences about videos that could not be embedded. It is empty for whole videos,
            because the file lists their failures.
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
    # Import these only here, because wrong names must be reported before torch is imported.
    from sce_video.inference.encoders.encoder_folder import run_of_model, run_of_weights
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs import configs, launch
    from sce_video.utils.distributed import leave_process_group

    checkpoint = options.checkpoint
    if checkpoint != RANDOM:
        # A model of transformers is converted to a run in the cache.
        # Only a file that the user names can be a state dict of torchvision.
        converted = None if options.config else run_of_weights(checkpoint)
        checkpoint = converted or newest_checkpoint(run_of_model(checkpoint))
    with output_file(options.out) as out:
        cfg = configs.extraction_config(
            options.config or stored_test(checkpoint),
            checkpoint,
            out,
            part=options.part,
            data_root=options.videos,
            ann_file=options.ann_file,
            dataset=options.dataset,
            extensions=listed_extensions(options.all_files),
            backend=options.backend,
            cfg_options=options.cfg_options,
            launcher=options.launcher,
            processes={
                "workers": options.workers,
                "ray": options.ray,
                "processes_per_gpu": options.processes_per_gpu,
            },
        )
        launch.run_test(cfg)
    leave_process_group()
    return EmbedResult(options.out)


def _check_files(options: EmbedOptions, windows: Windows | None) -> None:
    """Raise an error if files are missing or the source is not valid."""
    check_out(options.out)
    if options.config is not None:
        find_recipe(options.config)
    if options.videos is not None:
        if options.config is None and (windows is None or os.path.isdir(options.videos)):
            check_videos(options.videos, listed_extensions(options.all_files), options.dataset)
        else:  # a config may also read images
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
