"""Import repacked files into a table."""

from __future__ import annotations

import os
from collections.abc import Callable

from sce_video.data_tools.tables.fill_table import Progress, RowMaker, fill_table
from sce_video.data_tools.tables.video_row import RowSource, video_row
from sce_video.data_tools.tables.writer import ImportOptions, ImportResult
from sce_video.datasets.tables.rows import table_path
from sce_video.datasets.video_list import VideoList


def import_videos(
    videos: VideoList,
    root: str,
    table: str,
    options: ImportOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> ImportResult:
    """Write a row for each repacked video that has none yet; see :func:`fill_table`.

    Args:
        videos: Paths and labels.
        root: Folder the paths are relative to.
        table: Path or URI; made if there is none.
        options: Options of the run.
        on_progress: Called with (files done, all files, whether the last one failed).

    Raises:
        UserError: See :func:`fill_table`.
        ValueError: A path is listed with two labels.
    """
    options = options or ImportOptions()
    sources = row_sources(videos, root, timeout=options.timeout)
    return fill_table(table, sources, RowMaker(video_row, _no_settings), options, on_progress)


def _no_settings(settings: str) -> bool:
    """Whether a row was imported, and not encoded by ``repack --to``."""
    return not settings


def row_sources(
    videos: VideoList,
    root: str,
    *,
    timeout: float | None = None,
    name: Callable[[str], str] = str,
) -> list[RowSource]:
    """One source for each path, in the order of the list.

    Args:
        videos: Paths and labels.
        root: Folder the paths are relative to.
        timeout: Seconds that reading a file may take.
        name: Path in the table of a path of the list.

    Raises:
        ValueError: A path is listed with two labels.
    """
    folder = os.path.abspath(root)  # other machines have other current folders
    found: dict[str, RowSource] = {}
    for index in range(len(videos)):
        path, label = videos.path(index), int(videos.labels[index])
        class_name = videos.classes[label] if videos.classes and label >= 0 else None
        source = RowSource(
            os.path.join(folder, path),
            name(path),
            -1 if class_name else label,
            class_name,
            timeout=timeout,
        )
        if found.setdefault(table_path(source.path), source) != source:
            raise ValueError(f"{path!r} is listed twice, with different labels")
    return list(found.values())
