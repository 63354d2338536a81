"""What the samples of a batch need is read before the first is made, and for the batch after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from sce_video.datasets.samplers import SampleRequest
from sce_video.datasets.tables.table_rows import RowData, TableRows

Rows = dict[int, RowData]


class ReadAhead:
    """Reads rows for batches of samples.

    Reading a batch takes three rounds of requests: frame indexes, where the rows lie, packets. From
    object storage those of the next batch are read while the samples of this one are decoded, so
    that their latency is not waited for.

    Args:
        source: The rows.
        row_of: Row number of a request.
        needed: Positions of the packets that some requests need, by row, from their frame indexes.
    """

    def __init__(
        self,
        source: TableRows,
        row_of: Callable[[SampleRequest], int],
        needed: Callable[[Sequence[SampleRequest], Rows], Mapping[int, np.ndarray]],
    ) -> None:
        self._source = source
        self._row_of = row_of
        self._needed = needed
        self._next: tuple[Sequence[SampleRequest], Future[Rows]] | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_next": None}

    def read(self, requests: Sequence[SampleRequest], following: Sequence[SampleRequest]) -> Rows:
        """What was read for a batch, packets of which may be under way; by row.

        Args:
            requests: The batch.
            following: The one that this process makes next, where that is known.

        Raises:
            TableError, VideoDecodeError: See :meth:`TableRows.read_indexes`.
        """
        if self._pid != os.getpid():
            self._next, self._pid = None, os.getpid()
        before, self._next = self._next, None
        if before is not None and before[0] == requests:
            found = before[1].result()
        else:
            found = self._start(requests)
        if following and self._source.reads_beside:
            self._next = following, self._source.threads.submit(self._start, following)
        return found

    def _start(self, requests: Sequence[SampleRequest]) -> Rows:
        found = self._source.read_indexes([self._row_of(request) for request in requests])
        self._source.start_reading(self._needed(requests, found), found)
        return found
