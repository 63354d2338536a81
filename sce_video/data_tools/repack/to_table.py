"""Repack into a table of videos: every video is encoded by the process that writes its row."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sce_video.data_tools.repack.encode import Job, repack_file
from sce_video.data_tools.repack.plan import RepackOptions, Settings, inside, name_outputs
from sce_video.data_tools.tables.fill import Progress, RowMaker, fill_table, row_sources
from sce_video.data_tools.tables.video_row import RowSource, failed_row, row_identity, video_row
from sce_video.data_tools.tables.writer import ImportOptions, ImportResult
from sce_video.datasets.video_list import VideoList
from sce_video.jobs import ItemError, StorageError

#: Facts about the encoding that a row keeps, beside the settings.
_FACTS = ("crf", "psnr", "psnr_luma", "frames_not_shown", "source_frames", "source_promised")
_BATCH_FILES, _BATCH_BYTES = 64, 256 * 2**20  # which a killed process costs at most
_BATCHES_PER_WORKER = 8


@dataclass(frozen=True)
class EncodedRow:
    """Makes the row of a video by encoding it, with other ``work`` in tests."""

    settings: Settings
    options: RepackOptions
    work: Callable[[Job], dict[str, Any]] = repack_file

    def __call__(self, source: RowSource) -> dict[str, Any]:
        """The row: that of the repacked file, but for the columns on the source and ``settings``.

        Raises:
            StorageError: The temporary file cannot be written.
        """
        identity = row_identity(source)
        with _temporary_file() as path:
            try:
                facts = self.work(Job(source.file, path, self.settings, self.options))
            except StorageError as error:
                name = f"a temporary file in {tempfile.gettempdir()} (TMPDIR)"
                raise StorageError(str(error).replace(path, name)) from error
            except ItemError as error:
                return failed_row(source, str(error))
            pixels = self.options.max_pixels
            row = video_row(replace(source, file=path, timeout=None, max_pixels=pixels))
        if row_identity(source) != identity:
            return {**identity, "failure": "changed while it was being read"}
        made = {"repack": self.settings.as_dict(), **{name: facts[name] for name in _FACTS}}
        return {**row, **identity, "failure": row["failure"], "settings": json.dumps(made)}

    def is_current(self, text: str) -> bool:
        """Whether a row with this text in ``settings`` is good enough."""
        try:
            made = json.loads(text)
            good = min(made["psnr"], made["psnr_luma"]) >= self.options.min_psnr
            return bool(made["repack"] == self.settings.as_dict() and good)
        except (ValueError, TypeError, LookupError, RecursionError):
            return False  # of a file that was imported, or of another program


@contextlib.contextmanager
def _temporary_file() -> Iterator[str]:
    """Path of a file that is gone when this process ends, however it does."""
    if os.path.isdir("/proc/self/fd"):
        with tempfile.TemporaryFile() as file:  # without a name in its folder
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
            yield file.name


def repack_to_table(
    videos: VideoList,
    root: str,
    table: str,
    settings: Settings,
    options: RepackOptions | None = None,
    *,
    on_progress: Progress | None = None,
    work: Callable[[Job], dict[str, Any]] = repack_file,
) -> ImportResult:
    """Encode the videos that have no row yet, or one of another state of the file or settings.

    The rows are those of :func:`repack` and ``import_videos`` of its outputs: the paths are those
    of the outputs, ``a.mp4`` for ``a.avi``. Files that failed are tried again.

    Args:
        videos: Paths, relative to ``root``, and labels.
        root: Folder of the videos.
        table: Path or URI; made if there is none.
        settings: Settings of the streams.
        options: Options of the run.
        on_progress: Called with (files done, all files, whether the last one failed).
        work: Function that encodes; for tests.

    Raises:
        UserError: See :func:`~sce_video.data_tools.tables.fill_table`.
        ValueError: A path lies outside of the root, is listed with two labels, or two videos would
            have the same path.
    """
    options = options or RepackOptions()
    paths = [inside(videos.path(i), root) for i in range(len(videos))]
    names = name_outputs(sorted(set(paths)))
    inner = VideoList.from_paths(paths, videos.labels.tolist(), videos.classes)
    sources = row_sources(inner, root, name=names.__getitem__)
    encode = EncodedRow(settings, options, work)
    maker = RowMaker(
        encode,
        encode.is_current,
        cpus=options.threads,
        most_files=_BATCH_FILES,
        most_bytes=_BATCH_BYTES,
        batches_per_worker=_BATCHES_PER_WORKER,
    )
    how = ImportOptions(
        workers=options.workers,
        timeout=options.timeout,
        retry_failed=True,
        force=options.force,
        ray=options.ray,
    )
    return fill_table(table, sources, maker, how, on_progress)
