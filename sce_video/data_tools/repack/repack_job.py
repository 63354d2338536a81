"""Repack a dataset on several processes and machines. An interrupted run can be resumed.

In an output folder, every video becomes a file. In a table, every video becomes a row, which the
process that writes the row encodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sce_video import jobs
from sce_video.data_tools.listed_videos import listed_videos
from sce_video.data_tools.repack.encode import COMMENT, repack_file
from sce_video.data_tools.repack.plan import (
    EncoderLimits,
    PlannedFile,
    RepackPlan,
    Settings,
    inside,
    make_plan,
    name_outputs,
    plan_segments,
)
from sce_video.data_tools.repack.repack_report import (
    RepackReport,
    RepackRun,
    repack_report,
    result_paths,
    write_results,
)
from sce_video.data_tools.table_fill import Progress, RowMaker, fill_table, row_sources
from sce_video.data_tools.table_writer import ImportResult
from sce_video.data_tools.video_row import RowSource, VideoRow, unread_row, video_row
from sce_video.datasets.named_files import check_exists
from sce_video.datasets.readers.av_file import open_container
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.sources import listed_extensions
from sce_video.datasets.video_list import VideoList
from sce_video.options.declare import chosen
from sce_video.options.prepare import RepackOptions
from sce_video.utils.command import file_progress
from sce_video.utils.files import read_json


@dataclass(frozen=True)
class RepackResult:
    """Result of ``sce-video repack``, which writes either files or rows.

    Attributes:
        written: Paths of the lists and reports that were written.
        report: Sizes, times, PSNR and failures of the files; None if rows were written.
        rows: Counts and failures of the rows; None if files were written.
    """

    written: list[Path]
    report: RepackReport | None
    rows: ImportResult | None

    @property
    def complete(self) -> bool:
        """Return whether every video was repacked."""
        return not self.report.failed if self.report else bool(self.rows and self.rows.complete)


def repack(options: RepackOptions) -> RepackResult:
    """Re-encode videos into a folder or a table, with lists and a report.

    Raises:
        ValueError: If the source or the destination is of the wrong kind, or if a file that was not
            made from this source would be overwritten.
        StorageError: If outputs cannot be written.
    """
    source, out = options.source, options.destination
    if out is not None and os.path.exists(out) and not os.path.isdir(out):
        raise ValueError(f"DST {out!r} exists but is not a folder")
    settings, limits = chosen(Settings, options), chosen(EncoderLimits, options)
    workers = jobs.Workers(options.workers, options.timeout, options.ray)
    show = file_progress("repack", "repacking")
    endings = options.endings or listed_extensions(options.all_files)
    with jobs.resumable():
        if source.endswith(".csv"):
            check_exists(source, "table of segments")
            check_exists(options.data_root, "folder")
            plan = plan_segments(source, options.data_root)
        else:
            listed = listed_videos(source, options.data_root, endings)
            if out is None:
                assert options.to is not None  # RepackOptions.check ensures this
                rows = repack_to_table(
                    *(listed.videos, listed.root, options.to, settings, limits, workers),
                    force=options.force,
                    on_progress=show,
                )
                return RepackResult([], None, rows)
            plan = make_plan(source, out, listed)
        assert out is not None  # a table of segments has no other destination
        report, written = repack_files(
            *(plan, out, settings, limits, workers), force=options.force, on_progress=show
        )
    return RepackResult(written, report, None)


class RepackJob(jobs.BatchJob):
    """Job that re-encodes one file with :func:`repack_file`.

    A record also contains the ``root`` of the sources, because files in different folders may have
    the same path.
    """

    name = "repack"

    def __init__(
        self, root: str | Path, folder: str | Path, settings: Settings, limits: EncoderLimits
    ) -> None:
        self.folder = os.path.abspath(folder)  # the current folder may differ between machines
        self.settings = settings.as_dict()
        self.root = os.path.realpath(root)
        self.cpus = limits.threads
        self._sources = os.path.abspath(root)
        self._encoding = settings
        self._limits = limits

    def items(self, files: Iterable[PlannedFile]) -> list[jobs.Item]:
        """Return an item for each file, with the present state of its source."""
        state = cache(jobs.file_state)  # a video may have hundreds of segments
        return [
            jobs.Item(file.key, state(os.path.join(self._sources, file.path)), file, file.output)
            for file in files
        ]

    def process(self, item: jobs.Item) -> dict[str, Any]:
        """Return the facts of :func:`repack_file`."""
        source, span = os.path.join(self._sources, item.argument.path), item.argument.span
        facts = repack_file(source, item.temporary, self._encoding, self._limits, span)
        return {**facts.as_record(), "root": self.root}

    def source(self, item: jobs.Item) -> jobs.State:
        """Return the size and modification time of the source."""
        return jobs.file_state(os.path.join(self._sources, item.argument.path))

    def holds(self, item: jobs.Item, record: jobs.Record) -> bool:
        """Return whether the output is good. If the source is gone, also compare the root."""
        facts = record.facts
        if not record.done or min(facts["psnr"], facts["psnr_luma"]) < self._limits.min_psnr:
            return False
        return item.source is not None or facts["root"] == self.root

    def made_output(self, item: jobs.Item, record: jobs.Record | None) -> bool:
        """Return whether repack wrote the output, according to its record or its comment."""
        if super().made_output(item, record):
            return True
        assert item.output is not None
        try:
            # The records may be lost, but the comment is in the file itself.
            with open_container(os.path.join(self.folder, item.output)) as container:
                return container.metadata.get("comment", "").startswith(COMMENT)
        except VideoDecodeError:
            return False


def check_results(plan: RepackPlan, folder: Path, force: bool) -> None:
    """Raise ValueError if lists or reports of another source would be overwritten.

    The existing report names its source. The source is the same if it has the same path or the same
    entries, because the machines of a cluster may mount a list at different paths.
    """
    paths = result_paths(folder, plan)
    for path in paths:
        if os.path.isdir(path):
            raise ValueError(
                f"{path} is a folder, but a list or report with this name has to be written. "
                "Remove it or choose another output folder"
            )
    existing = [path for path in paths if os.path.lexists(path)]
    if force or not existing:
        return
    what, report = "repack did not make it", None
    with contextlib.suppress(OSError, ValueError):
        report = read_json(paths[0])
    keys = {"source", "source_path", "entries", "settings"}
    if isinstance(report, dict) and keys <= report.keys():
        same_path = report["source_path"] == os.path.realpath(plan.source)
        if same_path or report["entries"] == plan.digest:
            return
        what = f"was made from {report['source']!r}"
    raise ValueError(
        f"{existing[-1]} exists and {what}, not from {plan.source!r}. Choose another output "
        "folder, move the file away, or replace it with --force"
    )


def check_sources(plan: RepackPlan, folder: Path) -> None:
    """Raise ValueError if an output would overwrite a source."""
    real_folder: Callable[[str], str] = cache(os.path.realpath)  # there are only a few folders

    def location(path: str) -> str:
        parent, name = os.path.split(path)
        return os.path.join(real_folder(parent), name)

    outputs = {location(os.path.join(folder, item.output)) for item in plan.items}
    for item in plan.items:
        source = os.path.join(plan.root, item.path)
        linked = os.path.realpath(source) if os.path.islink(source) else source
        if not outputs.isdisjoint((location(source), linked)):
            raise ValueError(
                f"an output would overwrite {source!r}, which is a source. Choose another output "
                "folder"
            )


def check_outputs(
    items: list[jobs.Item],
    todo: list[jobs.Item],
    job: RepackJob,
    store: jobs.RecordStore,
    force: bool,
) -> None:
    """Raise ValueError if files would be overwritten that were not made from these sources.

    Two lists may share an output folder. However, their outputs must have different names, even
    with ``force``.
    """
    wanted = {item.output: item.key for item in items}
    for output, made_from in store.outputs():
        path = wanted.get(output, made_from)
        if path != made_from:
            raise ValueError(
                f"{output!r} in the output folder was made from {made_from!r}, but would now be "
                f"made from {path!r}. Choose another output folder"
            )
    # Two roots may contain different files with the same path, which would share one output.
    for item in [] if force else items:
        record = store.get(item.key)
        if record is None or not record.done or record.facts["root"] == job.root:
            continue
        # Machines may mount the same root at different paths, so identify a file by its state.
        if item.source is not None and item.source != record.source:
            raise ValueError(
                f"{item.output!r} in the output folder was made from {item.key!r} in "
                f"{record.facts['root']!r}, but {job.root!r} contains a different file of this "
                "name. Choose another output folder, or replace such files with --force"
            )
    for item in todo:
        output = os.path.join(job.folder, item.output or "")
        if os.path.isdir(output):
            raise ValueError(
                f"{output} is a folder, but an output with this name has to be written. Remove it "
                "or choose another output folder"
            )
        there = os.path.lexists(output) and not force
        if there and not job.made_output(item, store.get(item.key)):
            raise ValueError(
                f"{output} already exists and was not created by repack. Choose another output "
                "folder, or overwrite existing files with --force"
            )


RECORDS = os.path.join(".repack", "records.sqlite")  # in the output folder


def repack_files(
    plan: RepackPlan,
    destination: str,
    settings: Settings,
    limits: EncoderLimits,
    workers: jobs.Workers | None = None,
    *,
    force: bool = False,
    on_progress: Progress | None = None,
) -> tuple[RepackReport, list[Path]]:
    """Repack all files that are not done, and write the lists.

    A file is done if its record contains these settings and the present size and modification time
    of the source, and if the output has the recorded size. A source that is missing now counts as
    unchanged. Files that failed are tried again.

    Args:
        plan: Plan of the dataset.
        destination: Output folder.
        settings: Settings of the outputs.
        limits: Limits of the work on one file.
        workers: Processes or cluster. None runs one process on this machine.
        force: Whether to repack all files again and to replace files that repack did not make.
        on_progress: Called with (files done, all files, whether the last one failed).

    Returns:
        The report from :func:`repack_report`, and the paths of the written files.

    Raises:
        ValueError: If a file that was not made from this source would be overwritten, or if another
            run is writing to the folder.
        StorageError: If outputs cannot be written.
    """
    folder = Path(destination)
    check_results(plan, folder, force)
    check_sources(plan, folder)
    job = RepackJob(plan.root, folder, settings, limits)
    items = job.items(plan.items)
    show = on_progress or (lambda done, total, failed: None)
    begin = time.monotonic()
    with jobs.RecordStore(folder / RECORDS, job.name) as store:
        current = {item.key for item in items if jobs.is_current(job, item, store)}
        todo = [item for item in items if force or item.key not in current]
        kept = [item for item in items if not force and item.key in current]
        away = {item.key for item in kept if item.source is None}
        check_outputs(items, todo, job, store, force)
        done = len(kept)
        show(done, len(items), False)

        def count(item: jobs.Item, record: jobs.Record | None) -> None:
            nonlocal done
            done += 1
            if record is None:
                away.add(item.key)
            show(done, len(items), record is not None and not record.done)

        if todo:
            workers = workers or jobs.Workers(1, RepackOptions.timeout)
            jobs.run_job(job, todo, store, workers.at_most(len(todo)), count, force=force)
        run = RepackRun(
            source=plan.source,
            source_path=os.path.realpath(plan.source),
            entries=plan.digest,
            destination=destination,
            settings=dict(job.settings),
            away=len(away),
            elapsed_seconds=round(time.monotonic() - begin, 3),
            done_before=len(kept),
        )
        report = repack_report(items, store.get, run)
    return report, write_results(folder, plan, items, report)


# -- into a table -----------------------------------------------------------------------------

#: Facts about the encoding that a row contains in addition to the settings.
_FACTS = ("crf", "psnr", "psnr_luma", "frames_not_shown", "source_frames", "source_promised")


class EncodedRow(RowMaker):
    """Maker of a row that encodes the video first."""

    most_files, most_bytes = 64, 256 * 2**20  # at most this much is lost if the process is killed
    batches_per_worker = 8

    def __init__(self, settings: Settings, limits: EncoderLimits) -> None:
        self.cpus = limits.threads
        self._settings, self._limits = settings, limits

    def make(self, source: RowSource) -> VideoRow:
        """Make the row of the repacked file, with the state of the source and ``settings``.

        Raises:
            StorageError: If the temporary file cannot be written.
        """
        unread = unread_row(source)
        with _temporary_file() as path:
            try:
                facts = repack_file(source.file, path, self._settings, self._limits)
            except jobs.StorageError as error:
                name = f"a temporary file in {tempfile.gettempdir()} (TMPDIR)"
                raise jobs.StorageError(str(error).replace(path, name)) from error
            except jobs.ItemError as error:
                return replace(unread, failure=str(error) or "unknown")
            pixels = self._limits.max_pixels
            # A file that this process has just written is read without a separate limit.
            row = video_row(replace(source, file=path, timeout=None, max_pixels=pixels))
        if unread_row(source) != unread:
            return replace(unread, failure="changed while it was being read")
        known = facts.as_record()
        made = {"repack": self._settings.as_dict(), **{name: known[name] for name in _FACTS}}
        return replace(
            row,
            source_size=unread.source_size,
            source_mtime_ns=unread.source_mtime_ns,
            settings=json.dumps(made),
        )

    def is_current(self, settings: str) -> bool:
        """Return whether a row with these ``settings`` has the encoding and a sufficient PSNR."""
        try:
            made = json.loads(settings)
            good = min(made["psnr"], made["psnr_luma"]) >= self._limits.min_psnr
            return bool(made["repack"] == self._settings.as_dict() and good)
        except (ValueError, TypeError, LookupError, RecursionError):
            return False  # imported, or written by another program


@contextlib.contextmanager
def _temporary_file() -> Iterator[str]:
    """Yield the path of a temporary file that is removed even if the process is killed."""
    if os.path.isdir("/proc/self/fd"):
        with tempfile.TemporaryFile() as file:  # this file has no name in its folder
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
            yield file.name


def repack_to_table(
    videos: VideoList,
    root: str,
    table: str,
    settings: Settings,
    limits: EncoderLimits,
    workers: jobs.Workers | None = None,
    *,
    force: bool = False,
    on_progress: Progress | None = None,
) -> ImportResult:
    """Encode the videos that have no row, or whose file or settings differ from their row.

    The rows are the same as if the outputs of :func:`repack_files` were imported. Their paths are
    the paths of these outputs, such as ``a.mp4`` for ``a.avi``. Files that failed are tried again.

    Args:
        videos: Paths, relative to ``root``, and labels.
        root: Folder of the videos.
        table: Path or URI of the table. It is created if it does not exist.
        settings: Settings of the streams.
        limits: Limits of the work on one file.
        workers: Processes or cluster. None runs one process on this machine.
        force: Whether to make all rows again.
        on_progress: Called with (files done, all files, whether the last one failed).

    Raises:
        UserError: If the processes cannot start, or the cluster is lost.
        ValueError: If a path lies outside the root, a path is listed with two labels, or two videos
            would have the same path in the table.
    """
    paths = [inside(videos.path(i), root) for i in range(len(videos))]
    names = name_outputs(sorted(set(paths)))
    inner = VideoList.from_paths(paths, videos.labels.tolist(), videos.classes)
    sources = row_sources(inner, root, name=names.__getitem__)
    return fill_table(
        table,
        sources,
        EncodedRow(settings, limits),
        workers or jobs.Workers(1, RepackOptions.timeout),
        retry_failed=True,
        force=force,
        on_progress=on_progress,
    )
