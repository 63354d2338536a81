"""How rows are written to a table, what a run has done, and that in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sce_video.utils.printable import printable_utf8
from sce_video.utils.shard import Shard

_SHOWN_FAILURES = 20
_MAX_TIMEOUT = 1e6  # seconds, which timers of all systems accept


@dataclass(frozen=True)
class ImportOptions:
    """How a run works; none of this changes the content of a row.

    Attributes:
        workers: Number of processes; None for all cores, of the cluster with ``ray``.
        timeout: Seconds that a file may take.
        retry_failed: Also try files again whose row holds a failure.
        force: Write the rows of all files again.
        ray: Address of a Ray cluster to run on; None for this machine.
        shard: Part of the files.
        storage_options: Of the object store.
        commit_seconds: Rows are committed at least this often, seconds.
    """

    workers: int | None = 1
    timeout: float = 60.0
    retry_failed: bool = False
    force: bool = False
    ray: str | None = None
    shard: Shard = field(default_factory=Shard)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    commit_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 < self.timeout <= _MAX_TIMEOUT:
            raise ValueError(
                f"timeout must be seconds above 0, at most {_MAX_TIMEOUT:,.0f}, got {self.timeout}"
            )


@dataclass
class ImportResult:
    """What a run has done.

    Attributes:
        files: Videos of the data set, or of the shard.
        known: Rows that were in the table already and are up to date.
        imported: Rows written, with those of failed files.
        failures: (path, reason) of the failed files of this run.
        away: Files that do not exist now; their rows, if they have any, stay.
        failed_before: Known rows that hold a failure.
        relabelled: Known rows whose label or class was changed.
        source_bytes: Of the files of the rows written that hold a stream.
        stream_bytes: Of these streams.
    """

    files: int
    known: int = 0
    imported: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    away: int = 0
    failed_before: int = 0
    relabelled: int = 0
    source_bytes: int = 0
    stream_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Whether every file has a row with a stream."""
        return not self.failures and not self.failed_before


def summarize(result: ImportResult, table: str, done: str = "imported") -> str:
    """Lines for the terminal; ``done`` says what was done to the files."""
    good = result.imported - len(result.failures)
    lines = [
        f"{result.files:,} files: {good:,} {done}, {result.known:,} up to date, "
        f"{len(result.failures):,} failed"
    ]
    if good:
        sizes = (f"{size / 1e6:,.1f} MB" for size in (result.source_bytes, result.stream_bytes))
        lines.append("  size: {} -> {}".format(*sizes))
    if result.relabelled:
        lines.append(f"  {result.relabelled:,} of these have another label now")
    if result.failed_before:
        lines.append(f"  {result.failed_before} failed before and are unchanged (--retry-failed)")
    if result.away:
        lines.append(f"  {result.away} do not exist now; rows that they had stay")
    shown = result.failures[:_SHOWN_FAILURES]
    lines += [printable_utf8(f"  {path}: {reason}") for path, reason in shown]
    if len(result.failures) > _SHOWN_FAILURES:
        lines.append(f"  and {len(result.failures) - _SHOWN_FAILURES} more, in the table")
    return "\n".join([*lines, printable_utf8(f"table: {table}")])
