"""Writing rows as a batch job: an item is a batch of files, its record what commits their rows."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sce_video.data_tools.tables.video_row import RowSource
from sce_video.data_tools.tables.writer import Row, write_rows
from sce_video.datasets.tables.storage import TableError
from sce_video.jobs import BatchJob, Item, StorageError
from sce_video.utils.errors import MissingPackageError

_GRACE = 2.0  # seconds for a reader that watches the time itself to return


class RowsJob(BatchJob):
    """Writes the rows of some files to new files of a table, which the driver commits.

    Args:
        table: Path or URI of a table that exists.
        make_row: The row of a file; a function of its source alone, pickled.
        timeout: Seconds that a file may take; a process that takes longer is ended, which fails its
            batch with the kind ``timeout``.
        storage_options: Of the object store.
        cpus: Cores that a process takes.
    """

    name = "import"

    def __init__(
        self,
        table: str,
        make_row: Callable[[RowSource], Row],
        *,
        timeout: float,
        storage_options: Mapping[str, str] | None = None,
        cpus: int = 1,
    ) -> None:
        self.cpus = cpus
        self._table = table
        self._make_row = make_row
        self._timeout = timeout
        self._storage_options = dict(storage_options or {})

    @staticmethod
    def items(batches: Iterable[tuple[RowSource, ...]]) -> Iterator[Item]:
        """An item for each batch."""
        for batch in batches:
            yield Item(batch[0].path, {"files": len(batch)}, batch)

    def process(self, item: Item) -> dict[str, Any]:
        """``fragments``: of :func:`write_rows`; ``failures``: [path, reason] of the rows without a
        stream; ``source_bytes`` and ``stream_bytes`` of the others.

        Raises:
            StorageError: The table, or a temporary file, cannot be written.
        """
        sources: tuple[RowSource, ...] = item.argument
        facts: dict[str, Any] = {"failures": [], "source_bytes": 0, "stream_bytes": 0}

        def rows() -> Iterator[Row]:
            for source in sources:
                with _time_limit(self._timeout + _GRACE):
                    row = self._make_row(source)
                if row["failure"]:
                    facts["failures"].append([source.path, row["failure"]])
                else:
                    facts["source_bytes"] += row["source_size"]
                    facts["stream_bytes"] += row["size"]
                yield row

        try:
            fragments = write_rows(self._table, rows(), self._storage_options)
        except (TableError, MissingPackageError) as error:
            raise StorageError(str(error)) from error
        return {"fragments": fragments, **facts}


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM after some time, whatever C code hangs."""
    before, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, before)
