"""Write rows to a table. Any number of processes write fragments, and one commits them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sce_video.data_tools.video_row import VideoRow
from sce_video.datasets.tables.reader_process import open_dataset
from sce_video.datasets.tables.row_columns import STREAM, check_format, schema
from sce_video.datasets.tables.table import (
    TableError,
    cannot,
    client_options,
    dataset_arguments,
    import_lance,
    is_remote,
)
from sce_video.utils.command import printable_utf8, shown_failures

_STORAGE_VERSION = "2.2"  # first file version of Lance that supports our kind of blob column
_LANCE_FOLDERS = {"data", "_versions", "_transactions", "_deletions", "_indices"}
_LANCE_ERRORS = (OSError, RuntimeError, ValueError)
_MOST_CONFLICTS = 50  # maximum number of retries when other processes commit at the same time
_COMMIT_LIMIT = timedelta(minutes=2)
_MOST_REMOVED = 10_000  # maximum number of rows that one statement removes
_MOST_RELABELLED = 64  # maximum number of rows per update, which copies them with their streams


@contextlib.contextmanager
def _explained(what: str, table: str) -> Iterator[None]:
    """Turn errors of Lance into a TableError that names the table."""
    try:
        yield
    except TableError:
        raise
    except _LANCE_ERRORS as error:
        raise TableError(cannot(what, table, error)) from error


def write_rows(table: str, rows: Iterable[VideoRow]) -> list[str]:
    """Write rows to new files of a table. The rows belong to the table once they are committed.

    Many processes may call this function at the same time. Only one row is in memory at a time.

    Args:
        table: Path or URI of a table that :class:`TableWriter` has created.
        rows: Rows from :func:`~sce_video.data_tools.video_row.video_row`.

    Returns:
        JSON of each new fragment, for :meth:`TableWriter.commit`.

    Raises:
        TableError: If the files cannot be written.
        Exception: If ``rows`` raises it.
    """
    lance = import_lance()
    import pyarrow as pa

    columns = schema()
    stopped: list[Exception] = []  # an error that ``rows`` raised, which Lance would wrap

    def batches() -> Iterator[Any]:
        """Yield a record batch for each row, because a stream may take 2 GiB."""
        try:
            for row in rows:
                arrays = [
                    lance.blob_array([row.stream])
                    if field.name == STREAM
                    else pa.array([getattr(row, field.name)], type=field.type)
                    for field in columns
                ]
                yield pa.record_batch(arrays, schema=columns)
        except Exception as error:
            stopped.append(error)
            raise

    try:
        fragments = lance.fragment.write_fragments(
            pa.RecordBatchReader.from_batches(columns, batches()),
            table,
            schema=columns,
            mode="append",
            data_storage_version=_STORAGE_VERSION,
            storage_options=client_options(table),
        )
    except _LANCE_ERRORS as error:
        if stopped:
            raise stopped[0] from error
        raise TableError(cannot("write to", table, error)) from error
    return [json.dumps(fragment.to_json()) for fragment in fragments]


class TableWriter:
    """Writer that commits rows to a table and creates the table if it does not exist.

    If the process is killed, the table stays in the state of the last commit. Files that were
    written since then do not belong to it. Other processes may commit at the same time.

    Args:
        table: Path or URI of the table.

    Raises:
        TableError: If the table cannot be opened or created, is another table, or is damaged.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self._opened = self._open_or_make()
        self._shared = False
        check_format(table, self._opened.schema.metadata or {})

    def _open_or_make(self) -> Any:
        table = self.table
        if not is_remote(table) and os.path.isdir(table):
            others = set(os.listdir(table)) - _LANCE_FOLDERS
            if others and "_versions" not in os.listdir(table):
                raise TableError(
                    f"{table!r} is a folder with other files, for example {min(others)!r}. Choose "
                    "another path"
                )
        elif not is_remote(table) and os.path.lexists(table):
            raise TableError(f"{table!r} exists but is not a table. Choose another path")
        try:
            return self._open()
        except _LANCE_ERRORS as error:
            reason = str(error).lower()
            if "not found" not in reason or "nosuchbucket" in reason:
                raise TableError(cannot("open", table, error)) from error
        try:
            files = list(self._files().list("data"))  # a new table would hide rows in these files
            if not files:
                return import_lance().write_dataset(
                    schema().empty_table(),
                    table,
                    mode="create",
                    data_storage_version=_STORAGE_VERSION,
                    enable_stable_row_ids=True,
                    storage_options=client_options(table),
                )
            problem = (
                f"{table!r} contains files of rows ({files[0]}), but no manifest that lists the "
                "files of the table. Restore its folder _versions, or choose another path"
            )
        except _LANCE_ERRORS as error:
            problem = cannot("make", table, error)
        with contextlib.suppress(*_LANCE_ERRORS):
            return self._open()  # another process may have made the table in the meantime
        raise TableError(problem)

    def _open(self) -> Any:
        return open_dataset(import_lance(), dataset_arguments(self.table))

    def _files(self) -> Any:
        import_lance()
        from lance.file import LanceFileSession

        return LanceFileSession(self.table, client_options(self.table))

    def states(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches with some columns and ``_rowid`` of all committed rows.

        Raises:
            TableError: If the rows cannot be read.
        """
        with _explained("read the rows of", self.table):
            self._opened.checkout_latest()
            self._shared = False
            yield from self._opened.to_batches(columns=list(columns), with_row_id=True)

    def commit(self, fragments: Sequence[str], replaced: Sequence[int] = ()) -> None:
        """Add rows to the table, then remove the rows that they replace.

        If the process is killed in between, the table contains both rows of a path. Readers use the
        newer row, and the next run removes the older row.

        Args:
            fragments: Fragments from :func:`write_rows`.
            replaced: ``_rowid`` of rows to remove. They may have been removed already.

        Raises:
            TableError: If the table cannot be written. It then does not contain the new rows.
        """
        with _explained("write to", self.table):
            if fragments:
                self._append(fragments)
            for numbers in _lists_of(replaced, _MOST_REMOVED):
                with self._noticing_others():
                    self._opened.delete(f"_rowid IN ({numbers})", conflict_retries=_MOST_CONFLICTS)

    def _append(self, fragments: Sequence[str]) -> None:
        """Commit new files, after checking that they are in the table that this process sees."""
        lance, files = import_lance(), self._files()
        parsed = [lance.fragment.FragmentMetadata.from_json(text) for text in fragments]
        for name in (file.path for fragment in parsed for file in fragment.files):
            if not files.contains(f"data/{name}"):
                self._open()  # raises a better error if the table itself is gone
                raise TableError(
                    f"{name}, which a worker has written, is not in {self.table!r}: all machines "
                    "must reach the same storage under this name (a shared disk, AWS_ENDPOINT_URL)"
                )
        with self._noticing_others():
            self._opened = lance.LanceDataset.commit(
                self.table,
                lance.LanceOperation.Append(parsed),
                read_version=self._opened.version,
                storage_options=client_options(self.table),
                max_retries=_MOST_CONFLICTS,
                commit_timeout=_COMMIT_LIMIT,
            )

    @contextlib.contextmanager
    def _noticing_others(self) -> Iterator[None]:
        """Record whether another process has committed before the commit in this block."""
        before = self._opened.version
        yield
        self._shared |= self._opened.version > before + 1

    def relabel(self, rows: Sequence[int], label: int, class_name: str | None) -> None:
        """Set the label and class of rows, which are given by their ``_rowid``.

        Raises:
            TableError: If the table cannot be written. Some rows may have been changed.
        """
        name = "NULL" if class_name is None else "'" + class_name.replace("'", "''") + "'"
        values = {"label": str(int(label)), "class_name": f"CAST({name} AS STRING)"}
        with _explained("write to", self.table):
            for numbers in _lists_of(rows, _MOST_RELABELLED):
                where = f"_rowid IN ({numbers})"
                with self._noticing_others():
                    self._opened.update(values, where, conflict_retries=_MOST_CONFLICTS)

    def is_shared(self) -> bool:
        """Return whether another process has committed since :meth:`states` was called last.

        Raises:
            TableError: If the table cannot be reached.
        """
        with _explained("open", self.table):
            return self._shared or self._opened.latest_version > self._opened.version


def _lists_of(rows: Sequence[int], most: int) -> Iterator[str]:
    """Yield SQL lists of at most ``most`` row ids."""
    for begin in range(0, len(rows), most):
        yield ", ".join(str(int(number)) for number in rows[begin : begin + most])


@dataclass
class ImportResult:
    """Result of filling a table.

    Attributes:
        files: Number of files.
        known: Number of files whose row was up to date.
        imported: Number of rows that were written, including rows of failed files.
        failures: Path and reason of each file that failed in this run.
        away: Number of files that are missing now. Their rows stay.
        failed_before: Number of known rows that contain a failure.
        relabelled: Number of known rows whose label or class was changed.
        source_bytes: Total size of the files whose streams were written, in bytes.
        stream_bytes: Total size of these streams in bytes.
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
        """Return whether every file has a row with a stream."""
        return not self.failures and not self.failed_before


def describe_import(result: ImportResult, table: str, done: str = "imported") -> str:
    """Describe the result for the terminal. ``done`` says what was done with the files."""
    good = result.imported - len(result.failures)
    lines = [
        f"{result.files:,} files: {good:,} {done}, {result.known:,} up to date, "
        f"{len(result.failures):,} failed"
    ]
    if good:
        sizes = (f"{size / 1e6:,.1f} MB" for size in (result.source_bytes, result.stream_bytes))
        lines.append("  size: {} -> {}".format(*sizes))
    if result.relabelled:
        lines.append(f"  {result.relabelled:,} of them have a new label")
    if result.failed_before:
        lines.append(f"  {result.failed_before} failed before and are unchanged (--retry-failed)")
    if result.away:
        lines.append(f"  {result.away} are missing now. Their rows stay in the table")
    lines += shown_failures(result.failures, ", in the table")
    return "\n".join([*lines, printable_utf8(f"table: {table}")])
