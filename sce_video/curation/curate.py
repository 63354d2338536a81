"""``sce-video curate``: from videos or features to lists, a report and a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.named_files import check_exists, check_out, check_run, check_videos
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.options.find import CurateOptions
from sce_video.utils.command import progress_bar
from sce_video.utils.cores import usable_cores

if TYPE_CHECKING:
    from sce_video.curation.selection import Curation
    from sce_video.curation.write import CurationReport

#: Name of the index folder in the results folder.
_INDEX = "index"
#: Name of the page in the results folder.
_PAGE = "curation.html"
#: Name of the file in the results folder with earlier decisions of a reader.
_DECISIONS = "decisions.csv"


@dataclass(frozen=True)
class CurateResult:
    """Result of a curation.

    Attributes:
        found: Groups, outliers, clusters and subset.
        report: Summary of the written files.
        page: Path of the page; None if it was not written.
    """

    found: Curation
    report: CurationReport
    page: Path | None


def curate(options: CurateOptions) -> CurateResult:
    """Find near-duplicates, outliers, clusters and a diverse subset, and write lists and a page.

    Raises:
        FileNotFoundError: If a given file or folder is missing.
        ValueError: If the source cannot be used, or the features of all videos are equal.
    """
    _check_files(options)
    # Import these modules only now, so that wrong names are reported before torch loads.
    from sce_video.curation.curation_page import write_curation_page
    from sce_video.curation.selection import curate_videos, read_decisions
    from sce_video.curation.write import check_curated_folder, write_curation
    from sce_video.find.reading import read_videos

    check_curated_folder(options.out, options.keep, options.overwrite)
    out, source = Path(options.out), options.source
    file = options.decisions or out / _DECISIONS
    decisions = read_decisions(file) if os.path.exists(file) else None
    if options.checkpoint is not None:
        source = _embed(options, options.checkpoint, out / _INDEX)
    videos = read_videos(source, options.labels, options.classes, options.column)
    # Create the folder only now that the source has been read, so that a wrong source leaves no
    # empty folder.
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        bars: dict[str, Callable[[int, bool], None]] = {}

        def count(what: str, total: int, failed: bool) -> None:
            if what not in bars:
                stack.close()  # finish the previous bar
                bars[what] = stack.enter_context(progress_bar(what))
            bars[what](total, failed)

        found = curate_videos(videos, options, decisions=decisions, folder=out, on_video=count)
    report = write_curation(found, out, options.keep, options.overwrite)
    page = None if options.no_page else out / _PAGE
    if page is not None:
        write_curation_page(page, found, report)
    return CurateResult(found, report, page)


def _check_files(options: CurateOptions) -> None:
    """Raise an error if a file is missing, or the source is not of a supported kind."""
    check_out(options.out)
    check_exists(options.labels, "file")
    check_exists(options.decisions, "file")
    check_exists(options.classes, "file")
    source = options.source
    has_index = any(Path(source, name).exists() for name in ("features.npz", "features.lance"))
    folder = os.path.isdir(source) and not is_table(source)
    if options.checkpoint is None:
        if folder and not has_index:
            raise ValueError(
                f"{source} is not an index. Give the folder of an index, or add --checkpoint RUN "
                "to embed the videos in it"
            )
        check_exists(source, "index, feature file or table")
        return
    if folder and has_index:
        raise ValueError(
            f"{source} is an index, which already contains features. Remove --checkpoint"
        )
    check_videos(source, listed_extensions(options.all_files), options.dataset)
    check_run(options.checkpoint)


def _embed(options: CurateOptions, checkpoint: str, folder: Path) -> str:
    """Embed a folder or a table of videos, and return the folder of the index."""
    from sce_video.find.index import build_index
    from sce_video.inference.embed import ViewOptions
    from sce_video.inference.model import load_model

    model = load_model(checkpoint, options.config, options.device)
    workers = usable_cores() if options.workers is None else options.workers
    with progress_bar("embedding") as count:
        build_index(
            *(model, options.source, str(folder), ViewOptions(num_workers=workers)),
            extensions=listed_extensions(options.all_files),
            dataset=options.dataset,
            on_video=lambda done, total, reason: count(total, bool(reason)),
        )
    return str(folder)
