"""Repack a whole data set over processes and machines; an interrupted run can be resumed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.job import RepackJob
from sce_video.data_tools.repack.overwrite_checks import (
    check_origins,
    check_outputs,
    check_results,
    check_sources,
)
from sce_video.data_tools.repack.plan import Plan
from sce_video.data_tools.repack.report import build_report, write_results
from sce_video.data_tools.repack.settings import Options, Settings
from sce_video.data_tools.repack.work import Job, repack_file
from sce_video.jobs import Item, Record, RecordStore, Workers, is_current, run_job
from sce_video.jobs.shards import SharedFolder

PARTS = ".repack"  # folder of the records, and of reports of shards
_Progress = Callable[[int, int, bool], None]


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        report: From :func:`~sce_video.data_tools.repack.report.build_report`, about all files if
            ``complete``, else about the shard.
        written: Paths of lists and reports.
        complete: Whether all files of the data set are done or have failed.
        missing: Number of files that no shard has processed yet.
        failed: Number of files of this run that failed.
    """

    report: dict[str, Any]
    written: list[Path]
    complete: bool
    missing: int
    failed: int


def repack(
    plan: Plan,
    destination: str,
    settings: Settings,
    options: Options | None = None,
    *,
    on_progress: _Progress | None = None,
    work: Callable[[Job], dict[str, Any]] = repack_file,
) -> Result:
    """Repack all files that are not done yet, and write the lists.

    A file is done if it has a record with these settings and the present size and modification time
    of the source, and the output has the recorded size. A source that does not exist now counts as
    unchanged. Files that failed are repacked again.

    Args:
        plan: The data set.
        destination: Output folder.
        settings: Settings of the outputs.
        options: Options of the run.
        on_progress: Called with (files done, all files, whether the last one failed).
        work: Function that a process calls; for tests.

    Raises:
        ValueError: A file that was not made from this source would be overwritten, or another run
            is writing to the folder.
        StorageError: Outputs cannot be written.
    """
    options = options or Options()
    folder, shard = Path(destination), options.shard
    check_results(plan, folder, options.force)
    check_sources(plan, folder)
    job = _job(plan, folder, settings, options, work)
    items = job.items(file for file in plan.items if shard.holds(file.output))
    outputs = {item.output for item in items}
    stores = SharedFolder(folder / PARTS, job.name, plan.base)
    with stores.open(shard, lambda record: record.output in outputs) as store:
        facts = _repack_due(plan, job, items, store, options, on_progress)
        facts = {**_facts(plan, destination, job, facts.pop("away")), **facts}
        report = build_report(plan, items, store.get, facts)
    if shard.count == 1:
        written = write_results(folder, plan, items, report)
        return Result(report, written, True, 0, report["failed"])
    report = {"shard": f"{shard.number}/{shard.count}", **report}
    written = write_results(folder / PARTS, plan, items, report, shard.suffix)
    merged = merge(plan, destination, settings, options)
    if merged.complete:
        return Result(merged.report, written + merged.written, True, 0, report["failed"])
    return Result(report, written, False, merged.missing, report["failed"])


def merge(plan: Plan, destination: str, settings: Settings, options: Options) -> Result:
    """Write list and report of all files, if all shards have finished.

    Returns:
        The result; while files are missing it is not ``complete`` and nothing is written.

    Raises:
        ValueError: A list or report of another source would be overwritten.
    """
    folder = Path(destination)
    check_results(plan, folder, options.force)
    job = _job(plan, folder, settings, options)
    items = job.items(plan.items)
    outputs = {item.output for item in items}
    with SharedFolder(folder / PARTS, job.name).joint(lambda r: r.output in outputs) as store:
        missing = [
            item
            for item in items
            if not is_current(job, item, store) and not job.has_failed(item, store.get(item.key))
        ]
        if missing:
            return Result({}, [], False, len(missing), 0)
        away = sum(item.source is None and is_current(job, item, store) for item in items)
        report = build_report(plan, items, store.get, _facts(plan, destination, job, away))
    written = write_results(folder, plan, items, report)
    return Result(report, written, True, 0, report["failed"])


def _job(
    plan: Plan,
    folder: Path,
    settings: Settings,
    options: Options,
    work: Callable[[Job], dict[str, Any]] = repack_file,
) -> RepackJob:
    return RepackJob(
        plan.root,
        folder,
        settings,
        min_psnr=options.min_psnr,
        threads=options.threads,
        max_pixels=options.max_pixels,
        work=work,
    )


def _facts(plan: Plan, destination: str, job: RepackJob, away: int) -> dict[str, Any]:
    """Facts about a run, for its report."""
    return {
        "source": plan.source,
        "source_path": os.path.realpath(plan.source),
        "entries": plan.digest,
        "destination": destination,
        "settings": dict(job.settings),
        "away": away,
    }


def _repack_due(
    plan: Plan,
    job: RepackJob,
    items: list[Item],
    store: RecordStore,
    options: Options,
    on_progress: _Progress | None,
) -> dict[str, Any]:
    """Repack the files of a shard that are not done.

    Returns:
        ``away``, the number of finished files whose source does not exist now;
        ``elapsed_seconds``; and ``done_before``, the number of files that were done.
    """
    begin = time.monotonic()
    check_origins(plan, job, items, store, options.force)
    todo, away = [], set()
    for item in items:
        current = is_current(job, item, store)
        if options.force or not current:
            todo.append(item)
        elif item.source is None:
            away.add(item.key)
    check_outputs(todo, job, store, options.force)
    report = on_progress or (lambda done, total, failed: None)
    done = before = len(items) - len(todo)
    report(done, len(items), False)

    def count(item: Item, record: Record | None) -> None:
        nonlocal done
        done += 1
        if record is None:
            away.add(item.key)
        report(done, len(items), record is not None and not record.done)

    if todo:
        workers = Workers(options.workers, options.timeout, options.ray).at_most(len(todo))
        run_job(job, todo, store, workers, count, force=options.force)
    elapsed = round(time.monotonic() - begin, 3)
    return {"away": len(away), "elapsed_seconds": elapsed, "done_before": before}
