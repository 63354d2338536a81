"""A whole data set, over processes and machines, to be broken off and gone on with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av

from sce_video.datasets.guarded_pool import GuardedPool, Outcome
from sce_video.datasets.repack.journal import Journal
from sce_video.datasets.repack.plan import Item, Plan, Shard
from sce_video.datasets.repack.report import build_report, write_results
from sce_video.datasets.repack.settings import Settings
from sce_video.datasets.repack.work import COMMENT, Job, repack_file

PARTS = ".repack"  # folder of the journals, and of the reports of shards
_TEMPORARY = ".repack-tmp"


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
        if not self.timeout > 0:
            raise ValueError(f"timeout must be positive seconds, got {self.timeout}")
        if not 0 <= self.min_psnr <= 100:
            raise ValueError(f"min_psnr must lie in [0, 100] dB, got {self.min_psnr}")


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        report: Figures, see :func:`~sce_video.datasets.repack.report.build_report`; of all files
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
    on_progress: Callable[[int, int, bool], None] | None = None,
    work: Callable[[Job], dict[str, Any]] = repack_file,
) -> Result:
    """Repack all files that are not done yet, and write the lists.

    An output is made under a hidden name, verified, and then renamed; what became of it goes to a
    journal. It is done if the journal says so for these settings and the source's present size and
    time of change, and it still has the size it had. Files that failed are tried again.

    Args:
        plan: The data set.
        destination: Output folder.
        settings: What the outputs are to be like.
        options: Of the run.
        on_progress: Called with (files done, files in all, the last one has failed).
        work: What a process does; for tests.

    Raises:
        ValueError: A file that repack did not make has the name of an output.
        StorageError: Outputs cannot be written.
    """
    options = options or Options()
    begin = time.monotonic()
    folder = Path(destination)
    base = f"{plan.name}." if plan.name else ""
    mine = [item for item in plan.items if options.shard.holds(item.output)]
    with Journal(folder / PARTS, f"{base}journal{options.shard.suffix}.jsonl") as journal:
        _check_owners(plan, journal)
        _remove_temporaries(mine, folder)
        todo = [
            item
            for item in mine
            if options.force or not _is_done(item, plan, folder, journal, settings, options)
        ]
        if not options.force:
            _check_foreign(todo, folder, journal)
        run = _Run(plan, folder, settings, options, journal)
        try:
            run.process(todo, len(mine), on_progress, work)
        finally:
            _remove_temporaries(todo, folder)
        skipped = len(mine) - len(todo)
        facts = _facts(plan, folder, settings, time.monotonic() - begin, skipped)
        report = build_report(plan, mine, journal.entries, facts)
        if options.shard.count == 1:
            written = write_results(folder, plan, mine, report)
            return Result(report, written, True, 0, report["failed"])
        facts["shard"] = f"{options.shard.number}/{options.shard.count}"
        report = {"shard": facts["shard"], **report}
        written = write_results(folder / PARTS, plan, mine, report, options.shard.suffix)
    whole = merge(plan, destination, settings, options)
    if whole.complete:
        return Result(whole.report, written + whole.written, True, 0, report["failed"])
    return Result(report, written, False, whole.missing, report["failed"])


def merge(plan: Plan, destination: str, settings: Settings, options: Options) -> Result:
    """Write list and report of all files, if all shards are through.

    Returns:
        The result; not ``complete``, and nothing written, while files are missing.
    """
    folder = Path(destination)
    with Journal(folder / PARTS, None) as journal:
        missing = [
            item
            for item in plan.items
            if not _is_done(item, plan, folder, journal, settings, options)
            and not _has_failed(item, plan, journal, settings)
        ]
        if missing:
            return Result({}, [], False, len(missing), 0)
        facts = _facts(plan, folder, settings, None, 0)
        report = build_report(plan, plan.items, journal.entries, facts)
        written = write_results(folder, plan, plan.items, report)
        return Result(report, written, True, 0, report["failed"])


def _facts(
    plan: Plan, folder: Path, settings: Settings, elapsed: float | None, skipped: int
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "source": plan.source,
        "destination": str(folder),
        "settings": settings.as_dict(),
    }
    if elapsed is not None:
        facts["elapsed_seconds"] = round(elapsed, 3)
        facts["done_before"] = skipped
    return facts


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
        self.states: dict[str, dict[str, Any]] = {}

    def process(
        self,
        todo: list[Item],
        total: int,
        on_progress: Callable[[int, int, bool], None] | None,
        work: Callable[[Job], dict[str, Any]],
    ) -> None:
        """Repack files and note what becomes of them."""
        tell = on_progress or (lambda done, total, failed: None)
        done = total - len(todo)
        tell(done, total, False)
        present = []
        for item in todo:
            state = source_state(os.path.join(self.plan.root, item.path))
            if state is None:
                done += 1
                self._note(item, {}, {"status": "failed", "kind": "missing", "reason": _GONE})
                tell(done, total, True)
                continue
            self.states[item.path] = state
            present.append(item)
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
            preload=("sce_video.datasets.repack.work",),
        )
        for item, outcome in pool.run((item, self._job(item)) for item in present):
            done += 1
            tell(done, total, self._finish(item, outcome))

    def _job(self, item: Item) -> Job:
        return Job(
            source=os.path.join(self.plan.root, item.path),
            temporary=str(temporary_path(self.folder, item)),
            settings=self.settings,
            min_psnr=self.options.min_psnr,
            threads=self.options.threads,
        )

    def _finish(self, item: Item, outcome: Outcome) -> bool:
        """Rename the output and note it; True if there is none."""
        state = self.states[item.path]
        final = self.folder / item.output
        facts = _facts_of(outcome)
        if facts["status"] == "storage":
            raise StorageError(facts["reason"])
        if (
            facts["status"] == "done"
            and source_state(os.path.join(self.plan.root, item.path)) != state
        ):
            facts = {"status": "failed", "kind": "bad", "reason": "changed while it was read"}
        try:
            if facts["status"] == "done":
                os.replace(temporary_path(self.folder, item), final)
            else:
                temporary_path(self.folder, item).unlink(missing_ok=True)
                final.unlink(missing_ok=True)  # of an earlier run
        except OSError as error:
            raise StorageError(f"cannot write {final}: {error.strerror}") from error
        self._note(item, state, facts)
        return facts["status"] != "done"

    def _note(self, item: Item, state: dict[str, Any], facts: dict[str, Any]) -> None:
        entry = {"path": item.path, "output": item.output, **state}
        entry["settings"] = self.settings.as_dict()
        try:
            self.journal.add({**entry, **facts})
        except OSError as error:
            raise StorageError(f"cannot write the journal: {error}") from error


_GONE = "there is no such file"


def source_state(path: str) -> dict[str, Any] | None:
    """Size and time of change of a file, None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def temporary_path(folder: Path, item: Item) -> Path:
    """Hidden, beside the output; of this process, since one that was killed may leave a worker
    behind that still writes."""
    output = folder / item.output
    return output.with_name(f".{output.name}.{os.getpid()}{_TEMPORARY}")


def _remove_temporaries(items: list[Item], folder: Path) -> None:
    """Remove what this or a killed run left of some files."""
    names: dict[Path, set[str]] = {}
    for item in items:
        output = folder / item.output
        names.setdefault(output.parent, set()).add(output.name)
    for parent, outputs in names.items():
        if not parent.is_dir():
            continue
        for entry in os.scandir(parent):
            if entry.name.endswith(_TEMPORARY) and entry.name.startswith("."):
                output_name = entry.name[1 : -len(_TEMPORARY)].rpartition(".")[0]
                if output_name in outputs:
                    Path(entry.path).unlink(missing_ok=True)


def _facts_of(outcome: Outcome) -> dict[str, Any]:
    if outcome.fault is None:
        return outcome.value
    if outcome.fault == "timeout":
        return {"status": "failed", "kind": "timeout", "reason": f"{outcome.detail} (--timeout)"}
    return {"status": "failed", "kind": "crash", "reason": outcome.detail}


def _is_done(
    item: Item, plan: Plan, folder: Path, journal: Journal, settings: Settings, options: Options
) -> bool:
    entry = journal.entries.get(item.path)
    if entry is None or entry["status"] != "done" or entry["settings"] != settings.as_dict():
        return False
    if entry["output"] != item.output or min(entry["psnr"], entry["psnr_luma"]) < options.min_psnr:
        return False
    state = source_state(os.path.join(plan.root, item.path))
    if state is None or any(entry.get(name) != value for name, value in state.items()):
        return False
    output = source_state(str(folder / item.output))
    return output is not None and output["size"] == entry["bytes"]


def _has_failed(item: Item, plan: Plan, journal: Journal, settings: Settings) -> bool:
    entry = journal.entries.get(item.path)
    if entry is None or entry["status"] != "failed" or entry["settings"] != settings.as_dict():
        return False
    state = source_state(os.path.join(plan.root, item.path)) or {}
    return {name: entry[name] for name in ("size", "mtime_ns") if name in entry} == state


def _check_owners(plan: Plan, journal: Journal) -> None:
    """Two lists may share a folder, but not a name in it."""
    wanted = {item.output: item.path for item in plan.items}
    for entry in journal.entries.values():
        path = wanted.get(entry["output"])
        if entry["status"] == "done" and path is not None and path != entry["path"]:
            raise ValueError(
                f"{entry['output']!r} in the output folder was made from {entry['path']!r}, now "
                f"it would be made from {path!r}: choose another output folder"
            )


def _check_foreign(todo: list[Item], folder: Path, journal: Journal) -> None:
    """Refuse to write over what repack did not make."""
    for item in todo:
        entry = journal.entries.get(item.path)
        output = folder / item.output
        if (entry is None or entry["output"] != item.output) and os.path.lexists(output):
            if not _is_ours(output):
                raise ValueError(
                    f"{output} is there and repack did not make it: choose another output folder, "
                    "or replace such files with --force"
                )


def _is_ours(path: Path) -> bool:
    try:
        with av.open(str(path), metadata_errors="ignore") as container:
            return container.metadata.get("comment", "").startswith(COMMENT)
    except (av.FFmpegError, OSError, ValueError):
        return False
