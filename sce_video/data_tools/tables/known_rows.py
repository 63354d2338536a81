"""The states of the rows of a table, of which there may be a hundred million, in flat arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

#: Columns that are read of every row.
COLUMNS = ("path", "source_size", "source_mtime_ns", "label", "class_name", "settings", "failure")
#: Of a row: two halves of the hash of its path, row id, size and modification time of its file,
#: number of its label, and two flags: 45 bytes.
_FIELDS = {
    "high": np.uint64, "low": np.uint64, "row_id": np.uint64, "size": np.int64, "time": np.int64,
    "label": np.int32, "flags": np.uint8,
}  # fmt: skip
_FAILED, _CURRENT = 1, 2
Label = tuple[int, str | None]


class KnownRow(NamedTuple):
    """State of a row.

    Attributes:
        row_id: Of the table.
        source: Size and modification time (ns) of its file then.
        label: Label and class name.
        failed: Whether it holds a failure.
        is_current: Whether its settings are those of this run; a failure is.
    """

    row_id: int
    source: tuple[int, int]
    label: Label
    failed: bool
    is_current: bool


class KnownRows:
    """The newest row of each path, found by the 128-bit hash of the path.

    Row ids ascend in the order of commits, and stay what they are when the table is compacted: all
    drivers take the same row for the newest.

    Args:
        batches: Record batches of :data:`COLUMNS` and ``_rowid``, in any order.
        is_current: Whether a row with this text in ``settings`` need not be made again.

    Attributes:
        older: ``_rowid`` of the rows of which there is a newer one with the same path.
    """

    def __init__(self, batches: Iterable[Any], is_current: Callable[[str], bool] = bool) -> None:
        numbers: dict[Label, int] = {}
        parts = [_arrays(batch, numbers, is_current) for batch in batches]
        self._labels = list(numbers)
        self._columns = {
            name: np.concatenate([part.pop(name) for part in parts] or [np.empty(0, kind)])
            for name, kind in _FIELDS.items()
        }
        high, low, row_id = (self._columns[name] for name in ("high", "low", "row_id"))
        order = np.lexsort((row_id, low, high))
        same = np.zeros(len(order), dtype=bool)  # as the next one
        same[:-1] = (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
        self.older: list[int] = row_id[order[same]].tolist()
        newest = order[~same]
        for name, column in self._columns.items():
            self._columns[name] = column[newest]

    def __len__(self) -> int:
        return len(self._columns["high"])

    def get(self, path: str) -> KnownRow | None:
        """The newest row of a path as the table has it; None without one."""
        columns = self._columns
        high, low = _hash(path)
        begin, end = (columns["high"].searchsorted(np.uint64(high), side) for side in _SIDES)
        found = begin + np.flatnonzero(columns["low"][begin:end] == np.uint64(low))
        if len(found) == 0:
            return None
        row_id, size, time, label, flags = (int(columns[name][found[0]]) for name in _VALUES)
        return KnownRow(
            row_id,
            (size, time),
            self._labels[label],
            bool(flags & _FAILED),
            bool(flags & _CURRENT),
        )


_SIDES: tuple[Any, ...] = ("left", "right")
_VALUES = ("row_id", "size", "time", "label", "flags")


def _arrays(
    batch: Any, numbers: dict[Label, int], is_current: Callable[[str], bool]
) -> dict[str, np.ndarray]:
    """The fields of the rows of a batch; new labels get the next number."""
    hashes = np.array([_hash(path) for path in batch["path"].to_pylist()], dtype=np.uint64)
    hashes = hashes.reshape(-1, 2)
    labels = zip(batch["label"].to_pylist(), batch["class_name"].to_pylist(), strict=True)
    states = zip(batch["settings"].to_pylist(), batch["failure"].to_pylist(), strict=True)
    found = {
        "high": hashes[:, 0],
        "low": hashes[:, 1],
        "row_id": batch["_rowid"].to_numpy(),
        "size": batch["source_size"].to_numpy(),
        "time": batch["source_mtime_ns"].to_numpy(),
        "label": [numbers.setdefault(label, len(numbers)) for label in labels],
        "flags": [
            _FAILED | _CURRENT if failure else _CURRENT * is_current(settings)
            for settings, failure in states
        ],
    }
    return {name: np.array(found[name], dtype=kind) for name, kind in _FIELDS.items()}


def _hash(path: str) -> tuple[int, int]:
    """128 bits, so that two of a hundred million paths share them with a chance of 1e-23."""
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
