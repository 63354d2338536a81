"""Fill a table with a row for each file, on several processes and machines.

:func:`import_videos` adds repacked files, and ``repack --to`` adds files that it encodes. The table
itself shows which rows are missing, so an interrupted run needs no other record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sce_video import jobs
from sce_video.data_tools.listed_videos import listed_videos
from sce_video.data_tools.table_writer import ImportResult, TableWriter, write_rows
from sce_video.data_tools.video_row import RowSource, VideoRow, unread_row, video_row
from sce_video.datasets.sources import listed_extensions
from sce_video.datasets.tables.row_columns import table_path
from sce_video.datasets.tables.table import TableError, is_remote
from sce_video.datasets.video_list import VideoList
from sce_video.options.prepare import ImportOptions
from sce_video.utils.command import file_progress
from sce_video.utils.errors import MissingPackageError

#: Columns that are read from every row.
COLUMNS = ("path", "source_size", "source_mtime_ns", "label", "class_name", "settings", "failure")
#: State of a row in 29 bytes. The hash of its path takes another 16 bytes. ``label`` numbers the
#: different pairs of label and class name.
_ROW = np.dtype(
    [("row_id", "u8"), ("size", "i8"), ("time", "i8"), ("label", "i4"), ("flags", "u1")]
)
#: Flag of a row that contains a failure.
_FAILED = 1
#: Flag of a row that has the settings of this run.
_CURRENT = 2
Label = tuple[int, str | None]


class KnownRow(NamedTuple):
    """State of a row."""

    row_id: int  # row id in the table
    source: tuple[int, int]  # recorded size and modification time (ns) of its file
    label: Label  # label and class name
    failed: bool  # whether it contains a failure
    is_current: bool  # whether it has the settings of this run, always true for a failure


class KnownRows:
    """Newest row of each path, found by the 128-bit hash of the path.

    Row ids ascend in the order of commits and stay the same when the table is compacted. All
    drivers therefore consider the same row the newest.

    Args:
        batches: Record batches of :data:`COLUMNS` and ``_rowid``, in any order.
        is_current: Function that returns whether a row with the given ``settings`` is up to date.

    Attributes:
        older: ``_rowid`` of each row for which a newer one with the same path exists.
    """

    def __init__(self, batches: Iterable[Any], is_current: Callable[[str], bool] = bool) -> None:
        numbers: dict[Label, int] = {}
        hashes, rows = [np.empty(0, "S16")], [np.empty(0, _ROW)]
        for batch in batches:
            columns = {name: batch[name].to_pylist() for name in (*COLUMNS, "_rowid")}
            labels = zip(columns["label"], columns["class_name"], strict=True)
            flags = [
                _FAILED | _CURRENT if failure else _CURRENT * is_current(settings)
                for settings, failure in zip(columns["settings"], columns["failure"], strict=True)
            ]
            values = zip(
                columns["_rowid"],
                columns["source_size"],
                columns["source_mtime_ns"],
                [numbers.setdefault(label, len(numbers)) for label in labels],
                flags,
                strict=True,
            )
            hashes.append(np.array([_hash(path) for path in columns["path"]], dtype="S16"))
            rows.append(np.array(list(values), dtype=_ROW))
        self._labels = list(numbers)
        hashed, found = np.concatenate(hashes), np.concatenate(rows)
        del hashes, rows  # a third copy of a hundred million rows may not fit into memory
        order = np.lexsort((found["row_id"], hashed))
        hashed, found = hashed[order], found[order]
        last = np.append(hashed[1:] != hashed[:-1], len(hashed) > 0)[: len(hashed)]
        self.older: list[int] = found["row_id"][~last].tolist()
        self._hashes, self._rows = hashed[last], found[last]

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, path: str) -> KnownRow | None:
        """Return the newest row of a path; None if the table has none."""
        wanted = _hash(path)
        position = int(self._hashes.searchsorted(np.bytes_(wanted)))
        if position == len(self) or self._hashes[position] != wanted:
            return None
        row_id, size, time, label, flags = self._rows[position].tolist()
        failed, is_current = bool(flags & _FAILED), bool(flags & _CURRENT)
        return KnownRow(row_id, (size, time), self._labels[label], failed, is_current)


def _hash(path: str) -> bytes:
    """Return a 128-bit hash. Two of a hundred million paths share it with a chance of 1e-23."""
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return digest.rstrip(b"\0")  # numpy also drops trailing zero bytes


_GRACE = 2.0  # extra seconds, because readers check the time limit themselves and should end first


class RowMaker:
    """Maker of a row. This class makes the row of a repacked file.

    Attributes:
        cpus: Cores that making a row uses.
        most_files: Maximum number of files in a batch. Its rows become one fragment of the table.
        most_bytes: Maximum size of a batch's files in bytes.
        batches_per_worker: Minimum number of batches per worker for a small dataset.
    """

    cpus = 1
    most_files, most_bytes = 2000, 512 * 2**20
    batches_per_worker = 4

    def make(self, source: RowSource) -> VideoRow:
        """Return the row of a file, which depends only on its source."""
        return video_row(source)

    def is_current(self, settings: str) -> bool:
        """Return whether a row with these ``settings`` can stay in the table."""
        return not settings  # only rows of ``repack --to`` have settings


class RowsJob(jobs.BatchJob):
    """Job that writes the rows of some files to new files of a table, which the driver commits.

    Args:
        table: Path or URI of a table that exists.
        maker: Maker of the rows. It is pickled.
        timeout: Time limit for a file in seconds. A process that exceeds it is ended, and its batch
            fails with the kind ``timeout``.
    """

    name = "import"

    def __init__(self, table: str, maker: RowMaker, timeout: float) -> None:
        self.cpus = maker.cpus
        self._table, self._maker, self._timeout = table, maker, timeout

    def process(self, item: jobs.Item) -> dict[str, Any]:
        """Return the fragments, failures and sizes of a batch.

        ``fragments`` come from :func:`write_rows`. ``failures`` contains path and reason for each
        row without a stream. ``source_bytes`` and ``stream_bytes`` are sums over the other rows.

        Raises:
            jobs.StorageError: If the table or a temporary file cannot be written.
        """
        facts: dict[str, Any] = {"failures": [], "source_bytes": 0, "stream_bytes": 0}

        def rows() -> Iterator[VideoRow]:
            for source in item.argument:
                # SIGALRM ends this process even if C code hangs.
                before, _ = signal.setitimer(signal.ITIMER_REAL, self._timeout + _GRACE)
                try:
                    row = self._maker.make(source)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, before)
                if row.failure:
                    facts["failures"].append([source.path, row.failure])
                else:
                    facts["source_bytes"] += row.source_size
                    facts["stream_bytes"] += row.size or 0
                yield row

        try:
            fragments = write_rows(self._table, rows())
        except (TableError, MissingPackageError) as error:
            raise jobs.StorageError(str(error)) from error
        return {"fragments": fragments, **facts}


_COMMIT_SECONDS = 30.0  # rows are committed at least this often
_SUPPOSED_PROCESSES = 256  # assumed for a cluster, to choose the batch size
_LONGEST_BATCH = 3600.0  # time limit in seconds, unless one file may take longer
Progress = Callable[[int, int, bool], None]


def fill_table(
    table: str,
    sources: Sequence[RowSource],
    maker: RowMaker,
    workers: jobs.Workers,
    *,
    retry_failed: bool = False,
    force: bool = False,
    on_progress: Progress | None = None,
) -> ImportResult:
    """Write a row for each file that has no row, or whose row is out of date.

    A row is up to date if its file still has the recorded size and modification time, and ``maker``
    accepts its settings. Other rows are replaced. If only the label differs, only the label is
    changed. Rows of files that are not in ``sources`` stay. Several drivers may fill one table at
    the same time.

    Args:
        table: Path or URI of the table. It is created if it does not exist.
        sources: Files to add, each path once.
        maker: Maker of the rows.
        workers: Processes, and the time limit for a file.
        retry_failed: Whether to try files again whose rows contain a failure.
        force: Whether to make all rows again.
        on_progress: Called with (files done, all files, whether the last one failed).

    Raises:
        TableError: If this process cannot open, create or write the table.
        jobs.StorageError: If a worker cannot write the table. Finished rows are committed.
        UserError: If the processes cannot start, or the cluster is lost.
    """
    # Use an absolute path, because the current folder may differ between machines.
    writer = TableWriter(table if is_remote(table) else os.path.abspath(table))
    show = on_progress or (lambda done, total, failed: None)
    result = ImportResult(len(sources))
    _TableFill(writer, maker, workers, retry_failed, force, show, result).fill(sources)
    return result


@dataclass
class _TableFill:
    """State that the steps of :func:`fill_table` share."""

    _writer: TableWriter
    _maker: RowMaker
    _workers: jobs.Workers
    _retry_failed: bool
    _force: bool
    _on_progress: Progress
    _result: ImportResult
    _fragments: list[str] = field(default_factory=list)
    _failed: list[VideoRow] = field(default_factory=list)
    _replaced: list[int] = field(default_factory=list)
    _rows: KnownRows = field(default_factory=lambda: KnownRows(()))
    _relabelled: dict[Label, list[int]] = field(default_factory=dict)
    _again: list[RowSource] = field(default_factory=list)
    _done: int = 0
    _committed: float = field(default_factory=time.monotonic)

    def fill(self, sources: Sequence[RowSource]) -> None:
        """Write the rows that are not up to date."""
        self._read_states()
        todo = [source for source in sources if self._is_due(source)]
        for (label, class_name), rows in self._relabelled.items():
            self._writer.relabel(rows, label, class_name)
            self._result.relabelled += len(rows)
        self._done = len(sources) - len(todo)
        self._on_progress(self._done, len(sources), False)
        try:
            if todo:
                cores = _SUPPOSED_PROCESSES if self._workers.ray else jobs.usable_cores()
                processes = self._workers.count or cores
                self._process(_batches(todo, self._maker, processes))
                # Any file of a batch may have ended its process, so try them one by one.
                again, self._again = self._again, []
                self._process((source,) for source in again)
        except BaseException:
            with contextlib.suppress(TableError):  # the first error is more informative
                self._commit()  # keep finished rows, even after an interrupt
            raise
        self._commit()
        # If another driver has also written rows, keep only the newest row of each path. The driver
        # that ends last removes all duplicates.
        if self._writer.is_shared():
            self._read_states()
            self._commit()

    def _read_states(self) -> None:
        """Read the newest row of each path, and the older rows that must be removed."""
        self._rows = KnownRows(())  # frees the memory before new rows are read
        self._rows = KnownRows(self._writer.states(COLUMNS), self._maker.is_current)
        self._replaced += self._rows.older

    def _is_due(self, source: RowSource) -> bool:
        """Return whether the row of a file must be written."""
        known = self._rows.get(table_path(source.path))
        expected = unread_row(source)
        if expected.source_size < 0:  # the file no longer exists
            self._result.away += 1
            if known is not None:
                self._result.known += 1
                return False
        if known is None or self._force:
            return True
        if known.source != (expected.source_size, expected.source_mtime_ns):
            return True
        if not known.is_current or (known.failed and self._retry_failed):
            return True
        label = expected.label, expected.class_name
        if label != known.label:
            self._relabelled.setdefault(label, []).append(known.row_id)
        self._result.known += 1
        self._result.failed_before += known.failed
        return False

    def _process(self, batches: Iterator[tuple[RowSource, ...]]) -> None:
        """Let workers write the rows of batches."""
        timeout = self._workers.timeout
        job = RowsJob(self._writer.table, self._maker, timeout)
        # In the worker, every file has its own time limit. This limit covers everything else.
        limit = max(timeout, min(10 * timeout, _LONGEST_BATCH))
        workers = replace(self._workers, timeout=limit)
        items = (jobs.Item(batch[0].path, {"files": len(batch)}, batch) for batch in batches)
        with jobs.RecordStore(None, job.name) as store:
            jobs.run_job(job, items, store, workers, self._take)

    def _take(self, item: jobs.Item, record: jobs.Record | None) -> None:
        """Take over what a worker has written, and commit it from time to time."""
        assert record is not None
        sources: tuple[RowSource, ...] = item.argument
        facts, result = record.facts, self._result
        if record.done:
            self._fragments += facts["fragments"]
            failures = [(path, reason) for path, reason in facts["failures"]]
            result.source_bytes += facts["source_bytes"]
            result.stream_bytes += facts["stream_bytes"]
        elif len(sources) > 1:
            self._again += sources  # any of them may be at fault
            return
        else:
            limit = f"not done after {self._workers.timeout:g} s"
            failures = [(sources[0].path, limit if record.kind == "timeout" else record.reason)]
            reason = failures[0][1] or "unknown"
            self._failed.append(replace(unread_row(sources[0]), failure=reason))
        result.imported += len(sources)
        result.failures += failures
        failed = {path for path, _ in failures}
        for source in sources:
            known = self._rows.get(table_path(source.path))
            if known is not None:
                self._replaced.append(known.row_id)
            self._done += 1
            self._on_progress(self._done, result.files, source.path in failed)
        if time.monotonic() - self._committed >= _COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        if self._failed:
            self._fragments += write_rows(self._writer.table, self._failed)
        fragments, replaced = self._fragments, self._replaced
        self._fragments, self._failed, self._replaced = [], [], []
        self._writer.commit(fragments, replaced)
        self._committed = time.monotonic()


def _batches(
    todo: list[RowSource], maker: RowMaker, processes: int
) -> Iterator[tuple[RowSource, ...]]:
    """Yield batches of files, in order. There are enough batches for all processes."""
    shares = processes * maker.batches_per_worker
    sizes = [max(0, unread_row(source).source_size) for source in todo]
    most_bytes = min(maker.most_bytes, max(1, sum(sizes) // shares))
    most_files = min(maker.most_files, -(-len(todo) // shares))
    batch: list[RowSource] = []
    held = 0
    for source, size in zip(todo, sizes, strict=True):
        batch.append(source)
        held += size
        if held >= most_bytes or len(batch) == most_files:
            yield tuple(batch)
            batch, held = [], 0
    if batch:
        yield tuple(batch)


def import_videos(options: ImportOptions) -> ImportResult:
    """Write a row for each repacked video that has none yet.

    Raises:
        UserError: If the processes cannot start, or the cluster is lost.
        ValueError: If the list or folder does not exist, or a path is listed with two labels.
    """
    extensions = listed_extensions(options.all_files)
    listed = listed_videos(options.source, options.data_root, extensions)
    with jobs.resumable():
        return fill_table(
            options.table,
            row_sources(listed.videos, listed.root, timeout=options.timeout),
            RowMaker(),
            jobs.Workers(options.workers, options.timeout, options.ray),
            retry_failed=options.retry_failed,
            on_progress=file_progress("import", "importing"),
        )


def row_sources(
    videos: VideoList, root: str, *, timeout: float | None = None, name: Callable[[str], str] = str
) -> list[RowSource]:
    """Return one source for each path, in the order of the list.

    Args:
        videos: Paths, relative to ``root``, and labels.
        root: Folder of the videos.
        timeout: Time limit for reading a file in seconds. None sets no limit.
        name: Function that returns the path in the table for a path of the list.

    Raises:
        ValueError: If a path is listed with two labels.
    """
    folder = os.path.abspath(root)  # the current folder may differ between machines
    found: dict[str, RowSource] = {}
    for index in range(len(videos)):
        path, label = videos.path(index), int(videos.labels[index])
        class_name = videos.classes[label] if videos.classes and label >= 0 else None
        label = -1 if class_name else label
        source = RowSource(os.path.join(folder, path), name(path), label, class_name, timeout)
        if found.setdefault(table_path(source.path), source) != source:
            raise ValueError(f"{path!r} is listed twice, with different labels")
    return list(found.values())
