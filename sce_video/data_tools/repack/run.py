"""A whole data set, over processes and machines, to be broken off and gone on with."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sce_video.data_tools.process_pool import GuardedPool, Outcome
from sce_video.data_tools.repack.journal import Journal
from sce_video.data_tools.repack.lock import run_lock
from sce_video.data_tools.repack.owners import (
    check_foreign,
    check_owners,
    check_results,
    check_sources,
    is_ours,
)
from sce_video.data_tools.repack.plan import Item, Plan, Shard
from sce_video.data_tools.repack.report import build_report, write_results
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.standing import Standing
from sce_video.data_tools.repack.temporaries import new_token, remove_temporaries, temporary_path
from sce_video.data_tools.repack.work import Job, repack_file

PARTS = ".repack"  # folder of the journals, and of the reports of shards
_LONGEST = 1e6  # seconds that the operating system can wait for
_Progress = Callable[[int, int, bool], None]


class StorageError(RuntimeError):
    """Outputs cannot be written; no fault of the videos."""


@dataclass(frozen=True)
class Options:
    """How a run goes about it; none of this changes what a good output is like.

    Attributes:
        workers: Processes.
        threads: Of the encoder in each.
        timeout: Seconds a file may take.
        min_psnr: dB below which an output is refused.
        shard: Which part of the files.
        force: Make all files again, also where something else has their name.
    """

    workers: int = 1
    threads: int = 1
    timeout: float = 1800.0
    min_psnr: float = 30.0
    shard: Shard = field(default_factory=Shard)
    force: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 < self.timeout <= _LONGEST:
            raise ValueError(
                f"timeout must be seconds above 0, at most {_LONGEST:,.0f}, got {self.timeout}"
            )
        if not 0 <= self.min_psnr <= 100:
            raise ValueError(f"min_psnr must lie in [0, 100] dB, got {self.min_psnr}")


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        report: Figures, see :func:`~sce_video.data_tools.repack.report.build_report`; of all files
            if ``complete``, else of the shard.
        written: Lists and reports.
        complete: All files of the data set are done or have failed.
        missing: Files that no shard has come to yet.
        failed: Of the files of this run.
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

    An output is made under a hidden name, verified, and then renamed; what became of it goes to a
    journal. It is done if the journal says so for these settings and the source's present size and
    time of change, and it still has the size it had; a source that is away for now has not changed.
    Files that failed are tried again.

    Args:
        plan: The data set.
        destination: Output folder.
        settings: What the outputs are to be like.
        options: Of the run.
        on_progress: Called with (files done, files in all, the last one has failed).
        work: What a process does; for tests.

    Raises:
        ValueError: Something would be written over that is no result of this source, or another
            run is writing to the folder.
        StorageError: Outputs cannot be written.
    """
    options = options or Options()
    folder, shard = Path(destination), options.shard
    check_results(plan, folder, options.force)
    check_sources(plan, folder)
    with run_lock(folder / PARTS, plan.base, shard.count):
        name = f"{plan.base}journal{shard.suffix}.jsonl"
        with Journal(folder / PARTS, name) as journal:
            run = _Run(plan, folder, settings, options, journal)
            report = run.all_files(on_progress, work)
            if shard.count == 1:
                written = write_results(folder, plan, run.mine, report)
                return Result(report, written, True, 0, report["failed"])
            report = {"shard": f"{shard.number}/{shard.count}", **report}
            written = write_results(folder / PARTS, plan, run.mine, report, shard.suffix)
        whole = merge(plan, destination, settings, options)
    if whole.complete:
        return Result(whole.report, written + whole.written, True, 0, report["failed"])
    return Result(report, written, False, whole.missing, report["failed"])


def merge(plan: Plan, destination: str, settings: Settings, options: Options) -> Result:
    """Write list and report of all files, if all shards are through.

    Returns:
        The result; not ``complete``, and nothing written, while files are missing.

    Raises:
        ValueError: A list or report of something else would be written over.
    """
    folder = Path(destination)
    check_results(plan, folder, options.force)
    with Journal(folder / PARTS, None) as journal:
        standing = Standing(plan, folder, journal, settings, options.min_psnr)
        missing = [
            item
            for item in plan.items
            if not standing.is_done(item) and not standing.has_failed(item)
        ]
        if missing:
            return Result({}, [], False, len(missing), 0)
        report = build_report(plan, plan.items, journal.entries, _facts(standing))
        written = write_results(folder, plan, plan.items, report)
        return Result(report, written, True, 0, report["failed"])


def _facts(standing: Standing) -> dict[str, Any]:
    return {
        "source": standing.plan.source,
        "source_path": os.path.realpath(standing.plan.source),
        "entries": standing.plan.digest,
        "destination": str(standing.folder),
        "settings": standing.settings.as_dict(),
        "away": len(standing.away),
    }


class _Run:
    """What the steps of a run share."""

    def __init__(
        self, plan: Plan, folder: Path, settings: Settings, options: Options, journal: Journal
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.settings = settings
        self.options = options
        self.journal = journal
        self.mine = [item for item in plan.items if options.shard.holds(item.output)]
        self.standing = Standing(plan, folder, journal, settings, options.min_psnr)
        self.states: dict[str, dict[str, Any]] = {}
        self._token = new_token()

    def all_files(
        self, on_progress: _Progress | None, work: Callable[[Job], dict[str, Any]]
    ) -> dict[str, Any]:
        """Repack what is not done of this part of the files; returns the report about them."""
        begin = time.monotonic()
        force = self.options.force
        check_owners(self.plan, self.mine, self.standing, force)
        remove_temporaries(self.folder / item.output for item in self.mine)
        todo = [item for item in self.mine if force or not self.standing.is_done(item)]
        check_foreign(todo, self.folder, self.journal, force)
        try:
            self._process(todo, on_progress or (lambda done, total, failed: None), work)
        finally:
            remove_temporaries(self.folder / item.output for item in todo)
        facts = {
            **_facts(self.standing),
            "elapsed_seconds": round(time.monotonic() - begin, 3),
            "done_before": len(self.mine) - len(todo),
        }
        return build_report(self.plan, self.mine, self.journal.entries, facts)

    def _process(
        self, todo: list[Item], tell: _Progress, work: Callable[[Job], dict[str, Any]]
    ) -> None:
        """Repack files and note what becomes of them."""
        total = len(self.mine)
        done = total - len(todo)
        tell(done, total, False)
        present = []
        for item in todo:
            if self._can_begin(item):
                present.append(item)
                continue
            done += 1
            tell(done, total, self.journal.entries[item.path]["status"] != "done")
        if not present:
            return
        try:
            for parent in {(self.folder / item.output).parent for item in present}:
                parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make a folder: {error}") from error
        pool = GuardedPool(
            work,
            workers=min(self.options.workers, len(present)),
            timeout=self.options.timeout,
            preload=("sce_video.data_tools.repack.work",),
        )
        for item, outcome in pool.run((item, self._job(item)) for item in present):
            done += 1
            tell(done, total, self._finish(item, outcome))

    def _can_begin(self, item: Item) -> bool:
        """Whether there is a source to read and a name to write to; else it is noted."""
        state = self.standing.source(item)
        if state is None:
            if not self.standing.is_away(item):  # with --force
                self._note(item, {}, {"status": "failed", "kind": "missing", "reason": _GONE})
            return False
        if _name_too_long(self.folder / item.output):
            self._note(item, state, {"status": "failed", "kind": "name", "reason": _TOO_LONG})
            return False
        self.states[item.path] = state
        return True

    def _job(self, item: Item) -> Job:
        return Job(
            source=os.path.join(self.plan.root, item.path),
            temporary=str(self._temporary(item)),
            settings=self.settings,
            min_psnr=self.options.min_psnr,
            threads=self.options.threads,
        )

    def _temporary(self, item: Item) -> Path:
        return temporary_path(self.folder / item.output, self._token)

    def _finish(self, item: Item, outcome: Outcome) -> bool:
        """Rename the output and note it; True if there is none."""
        state = self.states[item.path]
        final = self.folder / item.output
        facts = _facts_of(outcome)
        if facts["status"] == "storage":
            raise StorageError(facts["reason"])
        if facts["status"] == "done" and self.standing.source(item) != state:
            facts = {"status": "failed", "kind": "bad", "reason": "changed while it was read"}
        try:
            if facts["status"] == "done":
                os.replace(self._temporary(item), final)
            else:
                self._temporary(item).unlink(missing_ok=True)
                if self.standing.is_away(item):  # with --force, and gone since the run began
                    return False
                if os.path.lexists(final) and is_ours(item, self.folder, self.journal):
                    final.unlink(missing_ok=True)  # of an earlier run
        except OSError as error:
            raise StorageError(f"cannot write {final}: {error.strerror}") from error
        self._note(item, state, facts)
        return facts["status"] != "done"

    def _note(self, item: Item, state: dict[str, Any], facts: dict[str, Any]) -> None:
        entry = {"path": item.path, "output": item.output, "root": self.standing.root, **state}
        entry["settings"] = self.settings.as_dict()
        try:
            self.journal.add({**entry, **facts})
        except OSError as error:
            raise StorageError(f"cannot write the journal: {error}") from error


_GONE = "there is no such file"
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
