"""``sce-video index``: build, update or check the index of a folder or table of videos."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.labelled import LabelledVideos, read_labelled
from sce_video.datasets.named_files import check_out, check_run, check_videos
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, video_of
from sce_video.find.feature_columns import write_feature_column
from sce_video.find.reading import find_store, read_index
from sce_video.options.features import IndexOptions
from sce_video.utils.command import printable, progress_bar
from sce_video.utils.cores import usable_cores
from sce_video.utils.own_parts import imported_classes

if TYPE_CHECKING:
    from sce_video.find.index import IndexReport
    from sce_video.find.store import VideoIndex
    from sce_video.inference.model import VideoModel
    from sce_video.inference.network_input import ViewOptions

#: Number of decoding processes for each GPU, unless more are requested.
_PER_GPU = 8
#: Extensions of lists and CSV files.
_LISTS = (".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class IndexResult:
    """Result of building, updating or checking an index.

    Attributes:
        out: Folder of the index.
        report: Numbers of videos and their failures; None if the index was only checked.
        repeated: Sentences about videos that the list contains more than once.
        column: Number of features in the column of the table of videos; None without ``column``.
        checked: File or table whose content was checked; None if the index was built.
        damaged: Sentences about damaged files of the index.
    """

    out: str
    report: IndexReport | None
    repeated: list[str] = field(default_factory=list)
    column: int | None = None
    checked: Path | None = None
    damaged: list[str] = field(default_factory=list)


def index(options: IndexOptions) -> IndexResult:
    """Build or update an index, or check its files if ``check_only`` is set.

    Raises:
        FileNotFoundError: If a given file or folder is missing.
        ValueError: If the videos are not of a supported kind, an option does not match the index,
            or no video can be read.
    """
    store = find_store(Path(options.out))
    if options.check_only:
        if store is None:
            raise ValueError(
                f"there is no index in {options.out}. Give the folder of an index with --out"
            )
        return IndexResult(options.out, None, checked=store.file, damaged=store.check())
    source = _checked_source(options)
    stored = None
    if not options.rebuild and store is not None:
        stored = read_index(options.out, root=options.videos)
    # Import this only here, so that wrong names are reported before torch loads.
    from sce_video.find.index import build_index

    windows = None if stored is None else stored.windows
    if options.windows is not None:
        windows = Windows.of_texts(options.windows, options.stride, options.shots)
    dataset = options.dataset
    if dataset is None and stored is not None:
        dataset = _known_dataset(stored)
    if options.column is not None and windows is not None:
        raise ValueError(
            f"--column writes one feature per video, but {options.out} is an index of windows. "
            "Remove --column"
        )
    with progress_bar("embedding") as count:
        report = build_index(
            *(_network(options, stored), source, options.out, _views(options, stored)),
            rebuild=options.rebuild,
            retry_failed=options.retry_failed,
            ray=options.ray,
            processes_per_gpu=options.processes_per_gpu,
            table=options.table,
            approximate=options.approximate,
            extensions=listed_extensions(options.all_files),
            windows=windows,
            dataset=dataset,
            on_video=lambda done, total, reason: count(total, bool(reason)),
        )
    repeated = []
    if isinstance(source, LabelledVideos):
        repeated = source.repeated("; its first label counts")
    written = None
    if options.column is not None:
        made = read_index(options.out, root=options.videos)
        features = made.paths, made.features, made.header
        written = write_feature_column(made.root, options.column, *features)
    return IndexResult(options.out, report, repeated, written)


def _known_dataset(stored: VideoIndex) -> str | None:
    """Return the dataset that listed the videos of an index; None for an index of all videos.

    Raises:
        ValueError: If no imported module has registered it.
    """
    from sce_video.find.index_network import advise_index_imports

    name = stored.header.dataset
    if name is not None and name not in imported_classes("dataset"):
        raise ValueError(
            f"the index {stored.folder} lists its videos with the dataset {name:.100}, which no "
            f"imported module has registered. {advise_index_imports(stored)}"
        )
    return name


def _checked_source(options: IndexOptions) -> str | LabelledVideos:
    """Return the folder or table, or the videos that a list or CSV file contains.

    Raises:
        FileNotFoundError: If a table or a checkpoint is missing.
        ValueError: If the videos are not of a supported kind, or no network is given.
    """
    check_out(options.out)
    videos, data_root = options.videos, options.data_root
    if options.dataset is not None:
        check_videos(videos, dataset=options.dataset)
    is_list = os.path.isfile(videos) and not videos.lower().endswith(VIDEO_EXTENSIONS)
    if is_list and options.windows is not None:
        raise ValueError(f"--windows divides whole videos, but {videos} lists segments")
    if not is_list and data_root is not None and (os.path.isdir(videos) or is_table(videos)):
        raise ValueError(
            f"--data-root needs a list or a CSV file, but {videos} is neither. Remove --data-root"
        )
    if not is_list and (data_root is not None or videos.lower().endswith(_LISTS)):
        raise ValueError(
            f"there is no list or CSV file {videos!r}. If it was moved, give its new path, and "
            "the folder of its videos with --data-root"
        )
    if not is_list and options.dataset is None:
        check_videos(videos, listed_extensions(options.all_files))
    if options.checkpoint is not None:
        check_run(options.checkpoint)
    elif options.rebuild or find_store(Path(options.out)) is None:
        why = (
            "--rebuild ignores the old index" if options.rebuild else f"{options.out} has no index"
        )
        raise ValueError(f"give --checkpoint, because {why}")
    if not is_list:
        return videos
    listed = read_labelled(videos, data_root, fewest=1)
    _tell_outside(listed)
    return listed


def _tell_outside(listed: LabelledVideos) -> None:
    """Print how many videos are outside the root, because the search page cannot show them."""
    root = os.path.realpath(listed.root)
    files = {os.path.normpath(video_of(os.path.join(root, path))) for path in listed.paths()}
    outside = sorted(f for f in files if os.path.relpath(f, root).split(os.sep)[0] == "..")
    if outside:
        above = os.path.commonpath([root, *outside])
        text = (
            f"the search page will not show {len(outside)} of {len(files)} videos in "
            f"{listed.source}, because they are outside {root} (the first is {outside[0]}). Give "
            f"--data-root {above}, and paths that are absolute or relative to that folder"
        )
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)


def _network(options: IndexOptions, stored: VideoIndex | None) -> VideoModel:
    """Return the given network, or the network of the existing index."""
    from sce_video.find.index_network import IndexNetwork, model_of_index
    from sce_video.inference.model import load_model

    if options.checkpoint is not None:
        return load_model(options.checkpoint, options.config, options.device)
    assert stored is not None  # checked by _checked_source
    return model_of_index(stored, IndexNetwork(config=options.config, device=options.device))


def _views(options: IndexOptions, stored: VideoIndex | None) -> ViewOptions:
    """Return the requested number of views, or the number in the existing index."""
    from sce_video.inference.network_input import ViewOptions

    views = ViewOptions() if stored is None else stored.options
    return replace(
        views,
        num_clips=views.num_clips if options.clips is None else options.clips,
        num_crops=views.num_crops if options.crops is None else options.crops,
        max_views=options.max_views,
        timeout=options.timeout,
        num_workers=_workers(options) if options.workers is None else options.workers,
    )


def _workers(options: IndexOptions) -> int:
    """Return the default number of processes; 0 means all cores of a cluster."""
    if options.ray is not None:
        return 0
    import torch

    from sce_video.inference.model import select_device

    if select_device(options.device).type != "cuda":
        return usable_cores()
    gpus = 1 if ":" in (options.device or "") else torch.cuda.device_count()
    return min(usable_cores(), _PER_GPU * gpus)
