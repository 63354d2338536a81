"""Files of an index: records in an ``.npz`` file, and the description."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.datasets.windows import Windows
from sce_video.evaluation.features import (
    RowStream,
    as_integers,
    as_matrix,
    read_failures,
    read_npz,
    text_stream,
    write_npz,
)
from sce_video.evaluation.functional.neighbours import check_features
from sce_video.utils.files import write_json

FEATURES, DESCRIPTION = "features.npz", "index.json"
_VERSION, _VERSION_OF_WINDOWS = 2, 3
_MAX_CLIPS = 10_000  # of a video
_CHECKED_ROWS = 1 << 16  # at a time


#: A feature, or what reads it.
Stored = np.ndarray | Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """State of an indexed file when it was embedded, and its feature.

    Attributes:
        size: Bytes.
        mtime_ns: Modification time, nanoseconds.
        feature: (D,) float32, or (W, D) of its windows, or what reads it from where it is stored,
            so that memory need not hold the features of all files; None if the file cannot be
            decoded.
        reason: Why it, or some of its windows, cannot be decoded; empty if they can.
        spans: (W, 2) float64, start and end of each window in seconds; None without windows.
    """

    size: int
    mtime_ns: int
    feature: Stored | None
    reason: str = ""
    spans: np.ndarray | None = None

    @property
    def count(self) -> int:
        """Rows of an index that are this file: 1, or as many as it has windows; 0 if it failed."""
        if self.feature is None:
            return 0
        return 1 if self.spans is None else len(self.spans)

    def read(self) -> np.ndarray:
        """(D,) or (W, D) float32, of a file that has a feature."""
        assert self.feature is not None
        return self.feature() if callable(self.feature) else self.feature

    def read_rows(self) -> np.ndarray:
        """(W, D), the rows of an index that are this file; W is 1 without windows."""
        feature = self.read()
        return feature.reshape(-1, feature.shape[-1])

    def same_file(self, state: tuple[int, int]) -> bool:
        """Whether size and modification time are still these."""
        return (self.size, self.mtime_ns) == state


@dataclass(frozen=True, eq=False)
class StoredRecords:
    """Content of a file of :func:`write_records`; large arrays are memory-mapped.

    Attributes:
        header: ``root``, ``checkpoint`` and ``settings`` of the index.
        paths: (N,) text, relative to ``root``, of the files with a feature; of windows each file as
            often as it has windows. :func:`write_records` writes them sorted.
        features: (N, D) float32, not to be changed: search drops mapped pages, changed ones too.
        mean: (D,) float64, the mean of the features.
        sizes: (N,) int64, bytes of the files.
        mtimes: (N,) int64, modification times in nanoseconds.
        failed: Records of the files that cannot be decoded, or not all of them, by path.
        spans: (N, 2) float64, start and end of the windows in seconds; None without windows.
    """

    header: dict[str, Any]
    paths: np.ndarray
    features: np.ndarray
    mean: np.ndarray
    sizes: np.ndarray
    mtimes: np.ndarray
    failed: dict[str, FileRecord]
    spans: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.features)

    def paths_of(self, rows: np.ndarray) -> list[str]:
        """Paths of some rows."""
        return self.paths[rows].tolist()

    def spans_of(self, rows: np.ndarray) -> np.ndarray | None:
        """(n, 2) of some rows; None without windows."""
        return None if self.spans is None else self.spans[rows]

    @cached_property
    def order(self) -> np.ndarray | None:
        """(N,) rows by path, then by start; None where the paths are sorted: other programs write
        indexes too."""
        blocks = range(0, len(self.paths), _CHECKED_ROWS)
        parts = (self.paths[begin : begin + _CHECKED_ROWS + 1] for begin in blocks)
        if all((part[1:] >= part[:-1]).all() for part in parts):
            return None
        starts = np.arange(len(self)) if self.spans is None else self.spans[:, 0]
        return np.lexsort((starts, self.paths))

    def rows(self, path: str) -> list[int]:
        """All rows of a path: its windows."""
        if len(path) > self.paths.dtype.itemsize // 4:  # longer than all paths of the index
            return []
        first, end = (
            int(np.searchsorted(self.paths, path, side, sorter=self.order))
            for side in ("left", "right")
        )
        return list(range(first, end)) if self.order is None else self.order[first:end].tolist()

    def row(self, path: str) -> int | None:
        """Row of a path, the first of several; None if it has none."""
        return next(iter(self.rows(path)), None)


def write_records(file: Path, header: dict[str, Any], records: dict[str, FileRecord]) -> None:
    """Write a feature file that also holds the header and the state of every file.

    The features are read one by one while they are written.

    Args:
        file: The ``.npz`` file.
        header: ``root``, ``checkpoint`` and ``settings`` of the index.
        records: By path relative to ``root``.
    """
    good = [path for path, r in records.items() if r.feature is not None]
    failed = {path: r for path, r in records.items() if r.feature is None or r.reason}
    counts = np.array([records[path].count for path in good], dtype=np.int64)
    total, size = int(counts.sum()), records[good[0]].read().shape[-1] if good else 1
    mean = np.zeros(size)
    rows = _adding(mean, (row for path in good for row in records[path].read_rows()), total)
    settings = header["settings"]
    windows = settings.get("windows") is not None
    paths = [path for path, count in zip(good, counts, strict=True) for _ in range(count)]
    arrays: dict[str, np.ndarray | RowStream] = {
        "features": RowStream((total, size), np.dtype(np.float32), rows),
        "paths": text_stream(paths),
        "mean": mean,  # complete when the features are written, which are before it
        "sizes": np.repeat(np.array([records[p].size for p in good], dtype=np.int64), counts),
        "mtimes": np.repeat(np.array([records[p].mtime_ns for p in good], dtype=np.int64), counts),
    }
    if windows:
        spans = [r.spans for r in records.values() if r.feature is not None and r.spans is not None]
        both = np.concatenate(spans) if spans else np.empty((0, 2))
        arrays |= {"starts": both[:, 0].copy(), "ends": both[:, 1].copy()}
    provenance = {
        "checkpoint": header["checkpoint"],
        "clips": settings["num_clips"],
        "crops": settings["num_crops"],
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
        "num_views": settings["num_clips"] * settings["num_crops"],
        "failures": [(path, r.reason) for path, r in failed.items()],
        "index": {
            "version": _VERSION_OF_WINDOWS if windows else _VERSION,
            **header,
            "failed": [(r.size, r.mtime_ns) for r in failed.values()],
        },
    }
    write_npz(file, arrays, provenance)


def _adding(mean: np.ndarray, rows: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
    """Yield ``count`` rows; afterwards ``mean``, (D,) float64 of zeros before, is their mean."""
    for row in rows:
        mean += row
        yield row
    mean /= max(1, count)


def read_stored(file: Path) -> StoredRecords:
    """What :func:`write_records` wrote; the features are not read before they are used.

    Raises:
        ValueError: the file was not written by :func:`write_records`.
    """
    arrays, provenance = read_npz(file, "the file of an index", ("features", "paths"))
    try:
        entry = provenance["index"]
        known = (_VERSION, _VERSION_OF_WINDOWS)
        if entry["version"] not in known:
            raise ValueError(f"version {entry['version']} is unknown, only {known} can be read")
        features = as_matrix(file, arrays["features"], "features")
        count, size = features.shape
        mean = np.asarray(arrays["mean"], dtype=np.float64)
        if mean.shape != (size,):
            raise ValueError(f"a mean of shape {mean.shape} for features of size {size}")
        if arrays["paths"].shape != (count,) or arrays["paths"].dtype.kind != "U":
            raise ValueError(f"{count} features do not match 'paths' {arrays['paths'].shape}")
        failed = zip(read_failures(file, provenance), entry["failed"], strict=True)
        return StoredRecords(
            header=checked_header(entry),
            paths=arrays["paths"],
            features=features,
            mean=mean,
            sizes=as_integers(file, arrays["sizes"], "sizes", count),
            mtimes=as_integers(file, arrays["mtimes"], "mtimes", count),
            failed={
                path: FileRecord(int(size), int(mtime), None, reason)
                for (path, reason), (size, mtime) in failed
            },
            spans=_read_spans(arrays, count) if entry["version"] == _VERSION_OF_WINDOWS else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{file} is not the file of an index: {error!r:.500}") from error


def _read_spans(arrays: dict[str, np.ndarray], count: int) -> np.ndarray:
    """(N, 2), starts and ends of windows; ValueError for anything else."""
    starts, ends = (np.asarray(arrays[name], dtype=np.float64) for name in ("starts", "ends"))
    if starts.shape != (count,) or ends.shape != (count,):
        raise ValueError(f"{count} features do not match {starts.shape} starts, {ends.shape} ends")
    if not (np.isfinite(ends).all() and (0 <= starts).all() and (starts < ends).all()):
        raise ValueError("windows do not end after their starts")
    return np.stack([starts, ends], axis=1)


def checked_header(entry: dict[str, Any]) -> dict[str, Any]:
    """``root``, ``checkpoint`` and ``settings`` of the stored entry of an index.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    return {
        "root": str(entry["root"]),
        "checkpoint": {key: str(entry["checkpoint"][key]) for key in ("path", "sha256")},
        "settings": _checked_settings(entry["settings"]),
    }


def _checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A copy of the settings of an index; the network is checked when it is built."""
    num_clips, num_crops = settings["num_clips"], settings["num_crops"]
    if type(num_clips) is not int or not 1 <= num_clips <= _MAX_CLIPS or num_crops not in (1, 3):
        raise ValueError(f"{num_clips!r:.40} clips x {num_crops!r:.40} crops of a video")
    if not isinstance(settings["model"], dict):
        raise ValueError("no settings of a model")
    if settings.get("windows") is not None:
        Windows.from_dict(settings["windows"])
    return dict(settings)


def read_records(file: Path) -> tuple[dict[str, Any], dict[str, FileRecord]]:
    """Header and records (sorted by path) of a file that :func:`write_records` wrote.

    Raises:
        ValueError: the file was not written by :func:`write_records`, or a feature is not finite.
    """
    stored = read_stored(file)
    if len(stored.features):
        check_features(torch.from_numpy(stored.features), f"{file}: 'features'")
    records = dict(stored.failed)
    order = stored.order
    paths = stored.paths if order is None else stored.paths[order]
    firsts = np.flatnonzero(np.append(True, paths[1:] != paths[:-1]))
    for first, last in zip(firsts, [*firsts[1:], len(stored)], strict=True):
        if first == last:  # of an index without rows
            break
        rows: slice | np.ndarray = slice(first, last) if order is None else order[first:last]
        path, spans = str(paths[first]), stored.spans
        records[path] = FileRecord(
            size=int(stored.sizes[rows][0]),
            mtime_ns=int(stored.mtimes[rows][0]),
            feature=stored.features[rows][0] if spans is None else stored.features[rows],
            reason="" if path not in records else records[path].reason,
            spans=None if spans is None else spans[rows],
        )
    return stored.header, dict(sorted(records.items()))


def write_description(
    folder: Path, header: dict[str, Any], records: dict[str, FileRecord], listed: bool = True
) -> None:
    """Write ``index.json``: everything but the features, for people and other programs.

    Args:
        folder: Of the index.
        header: Of the index.
        records: By path.
        listed: Whether files are listed that have a feature; a table lists them itself.
    """
    good = [path for path, record in records.items() if record.feature is not None]
    files = [
        {
            "path": path,
            "size": records[path].size,
            "mtime_ns": records[path].mtime_ns,
            **_count_of_windows(records[path]),
        }
        for path in good
    ]
    write_json(
        folder / DESCRIPTION,
        {
            "version": _VERSION,
            **header,
            "decoder": f"av {importlib.metadata.version('av')}",
            "videos": len(good),
            **({"files": files} if listed else {}),
            "failures": [
                {"path": path, "size": r.size, "mtime_ns": r.mtime_ns, "reason": r.reason}
                for path, r in records.items()
                if r.feature is None or r.reason
            ],
        },
    )


def _count_of_windows(record: FileRecord) -> dict[str, int]:
    return {} if record.spans is None else {"windows": len(record.spans)}


def remove_index(folder: Path) -> None:
    """Remove the features.

    Raises:
        ValueError: ``features.npz`` is not the file of an index; nothing is removed.
    """
    file = folder / FEATURES
    if file.is_file():
        read_stored(file)
        file.unlink()
