"""Repack a whole data set over processes and machines; an interrupted run can be resumed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sce_video.data_tools.journal import Journal
from sce_video.data_tools.process_pool import Outcome, process_items
from sce_video.data_tools.repack.file_status import FileStatus, open_journal
from sce_video.data_tools.repack.lock import run_lock
from sce_video.data_tools.repack.overwrite_checks import (
    check_origins,
    check_outputs,
    check_results,
    check_sources,
    is_ours,
)
from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.data_tools.repack.report import build_report, write_results
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.temporaries import new_token, remove_temporaries, temporary_path
from sce_video.data_tools.repack.work import Job, repack_file
from sce_video.datasets.readers.limits import MAX_PIXELS
from sce_video.utils.errors import UserError
from sce_video.utils.shard import Shard

PARTS = ".repack"  # folder of the journals, locks, and reports of shards
_MAX_TIMEOUT = 1e6  # seconds, which timers of all systems accept
_Progress = Callable[[int, int, bool], None]


class StorageError(UserError, RuntimeError):
    """Outputs cannot be written, because of the disk and not because of a video."""


@dataclass(frozen=True)
class Options:
    """How a run works; none of this changes the content of a good output.

    Attributes:
        workers: Number of processes.
        threads: Threads of the encoder in each process.
        timeout: Seconds a file may take.
        min_psnr: An output with fewer dB fails.
        max_pixels: A file with larger frames (height x width) fails.
        shard: Part of the files to repack.
        force: Repack all files again and replace other files at their paths.
    """

    workers: int = 1
    threads: int = 1
    timeout: float = 1800.0
    min_psnr: float = 30.0
    max_pixels: int = MAX_PIXELS
    shard: Shard = field(default_factory=Shard)
    force: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError(
                f"timeout must be seconds above 0, at most {_MAX_TIMEOUT:,.0f}, got {self.timeout}"
            )
        if not 0 <= self.min_psnr <= 100:
            raise ValueError(f"min_psnr must lie in [0, 100] dB, got {self.min_psnr}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1, got {self.max_pixels}")


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

    An output is written to a hidden path, verified, renamed, and recorded in the journal. A file
    is done if the journal says so for these settings and for the present size and modification
    time of the source, and the output has the recorded size. A source that does not exist now
    counts as unchanged. Files that failed are repacked again.

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
    with run_lock(folder / PARTS, plan.base, shard.count):
        name = f"{plan.base}journal{shard.suffix}.jsonl"
        with open_journal(folder / PARTS, name) as journal:
            run = _Run(plan, folder, settings, options, journal)
            report = run.repack_all(on_progress, work)
            if shard.count == 1:
                written = write_results(folder, plan, run.items, report)
                return Result(report, written, True, 0, report["failed"])
            report = {"shard": f"{shard.number}/{shard.count}", **report}
            written = write_results(folder / PARTS, plan, run.items, report, shard.suffix)
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
    with open_journal(folder / PARTS, None) as journal:
        status = FileStatus(plan, folder, journal, settings, options.min_psnr)
        missing = [
            item for item in plan.items if not status.is_done(item) and not status.has_failed(item)
        ]
        if missing:
            return Result({}, [], False, len(missing), 0)
        report = build_report(plan, plan.items, journal.entries, _run_facts(status))
        written = write_results(folder, plan, plan.items, report)
        return Result(report, written, True, 0, report["failed"])


def _run_facts(status: FileStatus) -> dict[str, Any]:
    return {
        "source": status.plan.source,
        "source_path": os.path.realpath(status.plan.source),
        "entries": status.plan.digest,
        "destination": str(status.folder),
        "settings": status.settings.as_dict(),
        "away": len(status.away),
    }


class _Run:
    """State that the steps of a run share."""

    def __init__(
        self, plan: Plan, folder: Path, settings: Settings, options: Options, journal: Journal
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.settings = settings
        self.options = options
        self.journal = journal
        self.items = [item for item in plan.items if options.shard.holds(item.output)]
        self.status = FileStatus(plan, folder, journal, settings, options.min_psnr)
        self.source_states: dict[str, dict[str, Any]] = {}
        self._token = new_token()

    def repack_all(
        self, on_progress: _Progress | None, work: Callable[[Job], dict[str, Any]]
    ) -> dict[str, Any]:
        """Repack the files of this shard that are not done; the report about the shard."""
        begin = time.monotonic()
        force = self.options.force
        check_origins(self.plan, self.items, self.status, force)
        remove_temporaries(self.folder / item.output for item in self.items)
        todo = [item for item in self.items if force or not self.status.is_done(item)]
        check_outputs(todo, self.folder, self.journal, force)
        try:
            self._process(todo, on_progress or (lambda done, total, failed: None), work)
        finally:
            remove_temporaries(self.folder / item.output for item in todo)
        facts = {
            **_run_facts(self.status),
            "elapsed_seconds": round(time.monotonic() - begin, 3),
            "done_before": len(self.items) - len(todo),
        }
        return build_report(self.plan, self.items, self.journal.entries, facts)

    def _process(
        self, todo: list[Item], on_progress: _Progress, work: Callable[[Job], dict[str, Any]]
    ) -> None:
        """Repack files and record the results."""
        total = len(self.items)
        done = total - len(todo)
        on_progress(done, total, False)
        present = []
        for item in todo:
            if self._can_begin(item):
                present.append(item)
                continue
            done += 1
            on_progress(done, total, self.journal.entries[item.path]["status"] != "done")
        if not present:
            return
        try:
            for parent in {(self.folder / item.output).parent for item in present}:
                parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make a folder: {error}") from error
        outcomes = process_items(
            work,
            ((item, self._job(item)) for item in present),
            workers=min(self.options.workers, len(present)),
            timeout=self.options.timeout,
            preload=("sce_video.data_tools.repack.work",),
        )
        with closing(outcomes):  # all workers have ended before temporary files are removed
            for item, outcome in outcomes:
                done += 1
                on_progress(done, total, self._finish(item, outcome))

    def _can_begin(self, item: Item) -> bool:
        """Whether the source exists and the output's name is valid; if not, it is recorded."""
        state = self.status.source(item)
        if state is None:
            if not self.status.is_away(item):  # with --force
                self._record(item, {}, {"status": "failed", "kind": "missing", "reason": _NO_FILE})
            return False
        if _name_too_long(self.folder / item.output):
            self._record(item, state, {"status": "failed", "kind": "name", "reason": _TOO_LONG})
            return False
        self.source_states[item.path] = state
        return True

    def _job(self, item: Item) -> Job:
        return Job(
            source=os.path.join(self.plan.root, item.path),
            temporary=str(self._temporary(item)),
            settings=self.settings,
            min_psnr=self.options.min_psnr,
            threads=self.options.threads,
            max_pixels=self.options.max_pixels,
        )

    def _temporary(self, item: Item) -> Path:
        return temporary_path(self.folder / item.output, self._token)

    def _finish(self, item: Item, outcome: Outcome) -> bool:
        """Rename the output and record the result; True if the file failed."""
        state = self.source_states[item.path]
        final = self.folder / item.output
        facts = _facts_of(outcome)
        if facts["status"] == "storage":
            raise StorageError(facts["reason"])
        if facts["status"] == "done" and self.status.source(item) != state:
            facts = {"status": "failed", "kind": "bad", "reason": "changed while it was being read"}
        try:
            if facts["status"] == "done":
                os.replace(self._temporary(item), final)
            else:
                self._temporary(item).unlink(missing_ok=True)
                if self.status.is_away(item):  # with --force; the source vanished during the run
                    return False
                if os.path.lexists(final) and is_ours(item, self.folder, self.journal):
                    final.unlink(missing_ok=True)  # the output of an earlier run
        except OSError as error:
            raise StorageError(f"cannot write {final}: {error.strerror}") from error
        self._record(item, state, facts)
        return facts["status"] != "done"

    def _record(self, item: Item, state: dict[str, Any], facts: dict[str, Any]) -> None:
        entry = {"path": item.path, "output": item.output, "root": self.status.root, **state}
        entry["settings"] = self.settings.as_dict()
        try:
            self.journal.add({**entry, **facts})
        except OSError as error:
            raise StorageError(f"cannot write the journal: {error}") from error


_NO_FILE = "there is no such file"
_TOO_LONG = "the name of its output is too long for the file system"


def _name_too_long(path: Path) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def _facts_of(outcome: Outcome) -> dict[str, Any]:
    if outcome.fault is None:
        return outcome.value
    if outcome.fault == "timeout":
        return {"status": "failed", "kind": "timeout", "reason": f"{outcome.detail} (--timeout)"}
    return {"status": "failed", "kind": "crash", "reason": outcome.detail}
