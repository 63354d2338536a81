"""Stores of an index: a file (``features.npz``) or a Lance table with the same interface.

An update reads and writes an :class:`IndexStore`. Its method ``open`` returns the
:class:`VideoIndex` that a search reads. For tables, see :mod:`sce_video.find.table_store`.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.video_list import split_segment
from sce_video.inference.features import Features, write_features
from sce_video.inference.npz_files import (
    CheckedArray,
    RowStream,
    as_integers,
    as_matrix,
    read_failures,
    read_npz,
)
from sce_video.utils.files import write_json

# Import this only where needed, because a search for an indexed video needs NumPy only.
if TYPE_CHECKING:
    from sce_video.inference.network_input import ViewOptions
    from sce_video.jobs import State

# Names in the folder of an index, which contains either the file or the table
FEATURES = "features.npz"
TABLE = "features.lance"
DESCRIPTION = "index.json"
#: Version of the file for an index of videos
_VERSION = 2
#: Version of the file for an index of windows, whose rows are not videos
_VERSION_OF_WINDOWS = 3
#: Largest number of clips per video, because an untrusted index may state any number
_MAX_CLIPS = 10_000
#: Number of paths compared at a time to find out whether they are sorted
_CHECKED_ROWS = 1 << 16
#: Number of rows read from the file or table at a time
READ_ROWS = 16384
#: Number of features from which an index is whitened. Fewer do not determine a covariance.
FEWEST_WHITENED = 100
#: Largest number of features for the covariance, taken at equal steps over the index
_MOST_WHITENED = 8192
#: Smallest number added to the variances, which makes a covariance of zeros invertible
_TINY = 1e-12


class FileState(NamedTuple):
    """Size and modification time of a file, which show whether it has changed.

    Attributes:
        size: Size in bytes; -1 if there is no file.
        mtime_ns: Modification time in nanoseconds; -1 if there is no file.
    """

    size: int
    mtime_ns: int

    @property
    def source(self) -> State:
        """State in the form that jobs record; None if there is no file."""
        return None if self.size < 0 else self._asdict()


NO_FILE = FileState(-1, -1)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """State of an indexed file at the time of embedding, and the source of its features.

    An update keeps a record for every file, so a record must not contain the features. The job
    provides them as :class:`~sce_video.inference.features.Features`, which are read only when they
    are written.

    Attributes:
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.
        feature: (D,) float32, or (W, D) for windows, or a function that reads them; None if the
            file cannot be decoded.
        reason: Reason why the file or some of its windows cannot be decoded; empty if they can.
        spans: (W, 2) float64 start and end of each window in seconds; None without windows.
    """

    size: int
    mtime_ns: int
    feature: np.ndarray | Callable[[], np.ndarray] | None
    reason: str = ""
    spans: np.ndarray | None = None

    @property
    def state(self) -> FileState:
        """Size and modification time."""
        return FileState(self.size, self.mtime_ns)

    @property
    def count(self) -> int:
        """Number of index rows: 1, or the number of windows; 0 if the file failed."""
        if self.feature is None:
            return 0
        return 1 if self.spans is None else len(self.spans)

    def read(self) -> np.ndarray:
        """Return the features (n, D) float32 of a file that has some."""
        assert self.feature is not None
        return np.atleast_2d(self.feature() if callable(self.feature) else self.feature)

    def entry(self, path: str) -> dict[str, str | int]:
        """Return the entry of the file in ``index.json``."""
        return {"path": path, **self.state._asdict()}


@dataclass(frozen=True)
class IndexHeader:
    """Videos, network and views from which an index was made.

    Attributes:
        root: Absolute path of the indexed folder or table of videos.
        checkpoint: Path or URL of the weights.
        sha256: SHA-256 of the weights file.
        model: Settings of the network. They are checked when it is built.
        num_clips: Number of clips per video or window.
        num_crops: Number of crops per clip.
        windows: Division of videos into windows; None if a row is a whole video or a segment.
        listed_in: File that lists the videos or segments; None for a folder or table.
        dataset: User-defined class that lists the videos of the folder; None for all videos.
        imports: The user's own modules that registered network and dataset.
    """

    root: str
    checkpoint: str
    sha256: str
    model: dict[str, Any]
    num_clips: int
    num_crops: int
    windows: Windows | None = None
    listed_in: str | None = None
    dataset: str | None = None
    imports: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that are equal for all rows of an index, as JSON data."""
        return {
            "model": self.model,
            "num_clips": self.num_clips,
            "num_crops": self.num_crops,
            **({} if self.windows is None else {"windows": self.windows.to_dict()}),
            **({} if self.listed_in is None else {"list": self.listed_in}),
            **({} if self.dataset is None else {"dataset": self.dataset}),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        checkpoint = {"path": self.checkpoint, "sha256": self.sha256}
        imports = {"imports": list(self.imports)} if self.imports else {}
        return {"root": self.root, "checkpoint": checkpoint, "settings": self.settings, **imports}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> IndexHeader:
        """Read the header of an index, which may be untrusted.

        Raises:
            KeyError, TypeError, ValueError: If it is not a header.
        """
        settings, checkpoint = entry["settings"], entry["checkpoint"]
        clips, crops = settings["num_clips"], settings["num_crops"]
        if type(clips) is not int or not 1 <= clips <= _MAX_CLIPS or crops not in (1, 3):
            raise ValueError(f"{clips!r:.40} clips x {crops!r:.40} crops are not valid")
        if not isinstance(settings["model"], dict):
            raise ValueError("settings['model'] must be a dict")
        windows, listed_in = settings.get("windows"), settings.get("list")
        if not isinstance(listed_in, str | None):
            raise ValueError(f"settings['list'] must be a path, got {listed_in!r:.40}")
        dataset, imports = settings.get("dataset"), entry.get("imports", [])
        if not isinstance(dataset, str | None):
            raise ValueError(f"settings['dataset'] must be a name, got {dataset!r:.40}")
        if not isinstance(imports, list) or not all(isinstance(name, str) for name in imports):
            raise ValueError(f"imports must be names of modules, got {imports!r:.40}")
        return cls(
            root=str(entry["root"]),
            checkpoint=str(checkpoint["path"]),
            sha256=str(checkpoint["sha256"]),
            model=settings["model"],
            num_clips=clips,
            num_crops=crops,
            windows=None if windows is None else Windows.from_dict(windows),
            listed_in=listed_in,
            dataset=dataset,
            imports=tuple(imports),
        )


class Matrix(Protocol):
    """Matrix (N, D) float32 with readable rows: an array, or a column of a table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (N, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Whitening:
    """Linear map after which the features of an index vary equally in every direction.

    The cosine of two features is dominated by the few directions in which all features of a network
    vary most. After whitening, it measures how unusual a common property is, without any label.
    Features ``x`` become ``(x - mean) @ matrix`` with ``mean`` (D,) and ``matrix`` (D, D) float64.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Map features (..., D) to (..., D) float64."""
        return (features.astype(np.float64) - self.mean) @ self.matrix


def fit_whitening(features: Matrix) -> Whitening:
    """Fit the whitening of features (N, D).

    With the features' covariance C and R = C + tr(C)/D I, the matrix is the inverse of R's Cholesky
    factor. Any other square root of the inverse of R gives the same cosines. The mean variance is
    added in every direction, because compression and window starts cause small differences.

    Raises:
        ValueError: If a feature contains NaN or infinity.
    """
    count, size = features.shape
    taken = np.unique(np.linspace(0, count - 1, min(count, _MOST_WHITENED)).astype(np.int64))
    rows = np.asarray(features[taken], dtype=np.float64)
    mean = rows.mean(axis=0)
    rows -= mean
    covariance = rows.T @ rows / len(rows)
    if not np.isfinite(covariance).all():
        raise ValueError("a feature contains NaN or infinity. Build the index from scratch")
    covariance[np.diag_indices(size)] += max(np.trace(covariance) / size, _TINY)
    return Whitening(mean, np.linalg.inv(np.linalg.cholesky(covariance)).T)


class VideoIndex:
    """Index that is opened for search. Each row is a video or a window of a video.

    Arrays with an entry per row are memory-mapped or read when they are used. An index of millions
    of videos therefore opens immediately.

    Args:
        folder: Folder of the index, or table of videos.
        header: Videos, network and views from which the index was made.
        failed: Records, by path, of files that cannot be decoded completely.
        shape: (N, D), number of rows and size of the features.

    Attributes:
        root: Absolute path of the indexed folder of videos.
        windows: Division of videos into windows; None if a row is a whole video or a segment.
        listed_in: File that lists its videos or segments; None for a folder or table.
        indexed: Number of rows in a vector index; None without one.
        stamp: Numbers that change whenever the stored index changes.
    """

    indexed: int | None = None
    stamp: tuple[int, ...] = ()

    def __init__(
        self,
        folder: str | Path,
        header: IndexHeader,
        failed: dict[str, FileRecord] | None = None,
        shape: tuple[int, ...] = (0, 1),
    ) -> None:
        self.folder, self.header, self.failed, self.shape = folder, header, failed or {}, shape
        self.root = header.root
        self.windows = header.windows
        self.listed_in = header.listed_in

    def __len__(self) -> int:
        return self.shape[0]

    def _column(self, name: str) -> np.ndarray:
        """Return ``paths``, ``sizes``, ``mtimes``, ``starts`` or ``ends``, (N,)."""
        raise NotImplementedError

    @cached_property
    def features(self) -> Matrix:
        """Features (N, D) float32. Do not change them, because search drops changed pages, too."""
        raise NotImplementedError

    @cached_property
    def mean(self) -> np.ndarray:
        """Mean (D,) float64 of the features."""
        total = np.zeros(self.shape[1])
        for _, block in self.blocks(READ_ROWS):
            total += block.sum(axis=0, dtype=np.float64)
        return total / max(1, len(self))

    @cached_property
    def path_array(self) -> np.ndarray:
        """Paths (N,) relative to ``root``. A file is repeated for each of its windows."""
        return self._column("paths")

    @cached_property
    def paths(self) -> list[str]:
        """All N paths relative to ``root``. Use :meth:`path` to get a single one."""
        return self.path_array.tolist()

    @cached_property
    def sizes(self) -> np.ndarray:
        """Sizes (N,) int64 of the files in bytes."""
        return self._column("sizes")

    @cached_property
    def mtimes(self) -> np.ndarray:
        """Modification times (N,) int64 in nanoseconds."""
        return self._column("mtimes")

    @cached_property
    def spans(self) -> np.ndarray | None:
        """Start and end (N, 2) float64 of the windows in seconds; None without windows."""
        if self.windows is None:
            return None
        return np.stack([self._column("starts"), self._column("ends")], axis=1)

    @cached_property
    def whitening(self) -> Whitening:
        """Whitening fitted to at most 8192 features."""
        return fit_whitening(self.features)

    @property
    def whitens(self) -> bool:
        """Whether searches whiten features by default, which requires enough windows."""
        return self.windows is not None and len(self) >= FEWEST_WHITENED

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Path and reason of each file that cannot be decoded."""
        # A file that has a row is only damaged, or lacks some of its windows.
        some = set(self.paths) if self.failed else set()
        return [(path, r.reason) for path, r in self.failed.items() if path not in some]

    @property
    def options(self) -> ViewOptions:
        """Clips and crops of the videos."""
        from sce_video.inference.network_input import ViewOptions

        return ViewOptions(num_clips=self.header.num_clips, num_crops=self.header.num_crops)

    def paths_of(self, rows: np.ndarray) -> list[str]:
        """Return the paths of the given rows, in the given order."""
        return self.path_array[rows].tolist()

    def path(self, row: int) -> str:
        """Return the path of a row, relative to ``root``."""
        return self.paths_of(np.array([row]))[0]

    def rows(self, path: str) -> list[int]:
        """Return all rows of a path, which are its windows; empty if it is not in the index."""
        raise NotImplementedError

    def row(self, path: str) -> int | None:
        """Return the first row of a path relative to ``root``; None if it is not in the index."""
        return next(iter(self.rows(path)), None)

    def file(self, path: str) -> str:
        """Return the absolute path of a video of the index."""
        return os.path.join(self.root, path)

    def place(self, path: str) -> tuple[str, float | None, float | None]:
        """Return video, start and end in seconds of a listed segment; otherwise file and None."""
        file = self.file(path)
        return (None if self.listed_in is None else split_segment(file)) or (file, None, None)

    def is_unchanged(self, row: int, file: str | os.PathLike) -> bool:
        """Return whether a file has not changed since it was embedded as this row."""
        status = os.stat(file)
        return bool((self.sizes[row], self.mtimes[row]) == (status.st_size, status.st_mtime_ns))

    def blocks(self, count: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first row and the features of consecutive blocks of ``count`` rows."""
        for start in range(0, len(self), count):
            yield start, self.features[start : start + count]

    def nearest(
        self, query: np.ndarray, k: int, kept: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the rows and features of about k similar rows with the vector index.

        Args:
            query: (D,) feature.
            k: Number of rows.
            kept: (N,) bool mask of rows that may be found; None for all.
        """
        raise NotImplementedError


class IndexStore(ABC):
    """File or table of an index in its folder, which need not exist."""

    #: Whether ``index.json`` lists the files with a feature. A table lists them itself.
    listed: ClassVar[bool] = True

    def __init__(self, file: Path) -> None:
        self.file = file

    @abstractmethod
    def open(self) -> VideoIndex:
        """Open the index for search; raise ValueError if the file does not contain an index."""

    @abstractmethod
    def read(self) -> tuple[IndexHeader, dict[str, FileRecord]]:
        """Read the header and the records, sorted by path, with the errors of :meth:`open`."""

    @abstractmethod
    def write(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Store the header and the records, by path relative to ``root``."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the file. If it is not an index, raise ValueError and remove nothing."""

    @abstractmethod
    def check(self) -> list[str]:
        """Read all files of the index, and return a sentence for each damaged one."""

    def make_vector_index(self, wanted: bool) -> None:
        """Create or extend a vector index, if the store supports it and it is worth the time."""
        return  # A file index has no vector index.

    def describe(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Write ``index.json``: everything except the features, for people and other programs."""
        # Write row by row, because the text of all rows takes more memory than the index.
        good = ((path, r) for path, r in records.items() if r.feature is not None)
        files = (
            r.entry(path) | ({} if r.spans is None else {"windows": r.count}) for path, r in good
        )
        bad = ((path, r) for path, r in records.items() if r.feature is None or r.reason)
        content = {
            "version": _VERSION,
            **header.to_dict(),
            "decoder": f"av {importlib.metadata.version('av')}",
            "videos": sum(r.feature is not None for r in records.values()),
            **({"files": files} if self.listed else {}),
            "failures": (r.entry(path) | {"reason": r.reason} for path, r in bad),
        }
        write_json(self.file.with_name(DESCRIPTION), content)


class NpzIndex(VideoIndex):
    """Index in a feature file, with large arrays memory-mapped."""

    features: np.ndarray | CheckedArray

    def __init__(
        self,
        folder: Path,
        arrays: Mapping[str, Any],
        header: IndexHeader,
        failed: dict[str, FileRecord],
    ) -> None:
        self._arrays, self.features, self.mean = arrays, arrays["features"], arrays["mean"]
        super().__init__(folder, header, failed, self.features.shape)

    def _column(self, name: str) -> np.ndarray:
        column = self._arrays[name]
        return column.whole() if isinstance(column, CheckedArray) else column

    @cached_property
    def order(self) -> np.ndarray | None:
        """(N,) rows sorted by path, then by start; None if the paths are sorted already."""
        # Indexes of other programs may have any order.
        blocks = range(0, len(self), _CHECKED_ROWS)
        # Include the next block's first path, to compare it with the last path of this block.
        parts = (self.path_array[begin : begin + _CHECKED_ROWS + 1] for begin in blocks)
        if all((part[1:] >= part[:-1]).all() for part in parts):
            return None
        starts = np.arange(len(self)) if self.spans is None else self.spans[:, 0]
        return np.lexsort((starts, self.path_array))

    def rows(self, path: str) -> list[int]:
        if len(path) > self.path_array.dtype.itemsize // 4:  # no path of the index is so long
            return []
        first, end = (
            int(np.searchsorted(self.path_array, path, side, sorter=self.order))
            for side in ("left", "right")
        )
        return list(range(first, end)) if self.order is None else self.order[first:end].tolist()

    def blocks(self, count: int) -> Iterator[tuple[int, np.ndarray]]:
        mapping: Any = self.features.base
        while isinstance(mapping, np.ndarray):
            mapping = mapping.base
        for block in super().blocks(count):
            yield block
            # Otherwise all pages of the file would count as memory of the process in the end.
            if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                mapping.madvise(mmap.MADV_DONTNEED)


class FileStore(IndexStore):
    """Store as an ``.npz`` file of features, with the header and the state of every file.

    Its arrays are ``features`` (N, D) float32, ``mean`` (D,) float64, ``paths`` (N,) text,
    ``sizes`` (bytes) and ``mtimes`` (nanoseconds), both (N,) int64, and for windows ``starts`` and
    ``ends`` (N,) float64 in seconds. The provenance contains ``index``: version, root, checkpoint,
    settings, and size and time of the failed files.
    """

    def open(self) -> NpzIndex:
        """Open the index without reading its features, which are read when they are used."""
        status = os.stat(self.file)
        names = ("features", "paths")
        arrays, provenance = read_npz(self.file, "the file of an index", names, names)
        try:
            entry = provenance["index"]
            known = (_VERSION, _VERSION_OF_WINDOWS)
            if entry["version"] not in known:
                raise ValueError(f"version {entry['version']} is unknown, only {known} can be read")
            features = arrays["features"]
            if features.ndim != 2 or features.dtype != np.float32:
                features = as_matrix(self.file, np.asarray(features), "features")
            count, size = features.shape
            mean = np.asarray(arrays["mean"], dtype=np.float64)
            if mean.shape != (size,):
                raise ValueError(f"the mean has shape {mean.shape}, but features have size {size}")
            paths = arrays["paths"]
            if paths.shape != (count,) or paths.dtype.kind != "U":
                raise ValueError(f"{count} features do not match 'paths' {paths.shape}")
            states = zip(read_failures(self.file, provenance), entry["failed"], strict=True)
            failed = {
                path: FileRecord(int(size), int(mtime), None, reason)
                for (path, reason), (size, mtime) in states
            }
            columns = {"features": features, "mean": mean, "paths": paths}
            for name in ("sizes", "mtimes"):
                columns[name] = as_integers(self.file, arrays[name], name, count)
            header = IndexHeader.from_dict(entry)
            if header.windows is not None:
                starts, ends = (np.asarray(arrays[n], dtype=np.float64) for n in ("starts", "ends"))
                if not starts.shape == ends.shape == (count,):
                    raise ValueError(f"{count} features, {starts.shape} starts, {ends.shape} ends")
                if not (np.isfinite(ends).all() and (starts >= 0).all() and (starts < ends).all()):
                    raise ValueError("windows do not end after their starts")
                columns |= {"starts": starts, "ends": ends}
            index = NpzIndex(self.file.parent, columns, header, failed)
            index.stamp = status.st_size, status.st_mtime_ns
            return index
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{self.file} is not the file of an index: {error!r:.500}") from error

    def check(self) -> list[str]:
        try:
            read_npz(self.file, "the file of an index", ("features", "paths"))
        except ValueError as error:
            return [str(error)]
        return []

    def read(self) -> tuple[IndexHeader, dict[str, FileRecord]]:
        """Read header and records. Raises ValueError also if a feature is not finite."""
        stored = self.open()
        if len(stored):
            # Only updates come here, and they need torch anyway.
            import torch

            from sce_video.evaluation.functional.neighbours import check_features

            check_features(
                torch.from_numpy(np.asarray(stored.features)), f"{self.file}: 'features'"
            )
        records = dict(stored.failed)
        order, spans = stored.order, stored.spans
        paths = stored.path_array if order is None else stored.path_array[order]
        firsts = np.flatnonzero(np.append(True, paths[1:] != paths[:-1]))[: len(stored)]
        for first, last in zip(firsts, [*firsts[1:], len(stored)], strict=False):
            # A slice remains a view of the file, which need not be kept in memory.
            rows: slice | np.ndarray = slice(first, last) if order is None else order[first:last]
            path = str(paths[first])
            records[path] = FileRecord(
                size=int(stored.sizes[rows][0]),
                mtime_ns=int(stored.mtimes[rows][0]),
                feature=stored.features[rows],
                reason="" if path not in records else records[path].reason,
                spans=None if spans is None else spans[rows],
            )
        return stored.header, dict(sorted(records.items()))

    def write(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Replace the file. Features are read one by one while they are written."""
        good = {path: r for path, r in records.items() if r.feature is not None}
        failed = {path: r for path, r in records.items() if r.feature is None or r.reason}
        counts = np.array([r.count for r in good.values()], dtype=np.int64)
        size = next((r.read().shape[-1] for r in good.values()), 1)
        shape = int(counts.sum()), size
        mean = np.zeros(size)

        def rows() -> Iterator[np.ndarray]:
            for record in good.values():
                for row in record.read():
                    mean[:] += row
                    yield row
            mean[:] /= max(1, shape[0])

        # The mean is complete when it is written, because the features are written before it.
        others = {"mean": mean}
        for name, field in (("sizes", "size"), ("mtimes", "mtime_ns")):
            values = np.array([getattr(r, field) for r in good.values()], dtype=np.int64)
            others[name] = np.repeat(values, counts)
        spans = [np.empty((0, 2)), *(r.spans for r in good.values() if r.spans is not None)]
        provenance = {
            "checkpoint": header.to_dict()["checkpoint"],
            "clips": header.num_clips,
            "crops": header.num_crops,
            "decoder": "av",
            "decoder_version": importlib.metadata.version("av"),
            "num_views": header.num_clips * header.num_crops,
            "index": {
                "version": _VERSION if header.windows is None else _VERSION_OF_WINDOWS,
                **header.to_dict(),
                "failed": [r.state for r in failed.values()],
            },
        }
        features = Features(
            values=np.empty((0, size), np.float32),
            paths=[path for path, r in good.items() for _ in range(r.count)],
            spans=None if header.windows is None else np.concatenate(spans),
            failures=[(path, r.reason) for path, r in failed.items()],
            provenance=provenance,
            others=others,
        )
        stream = RowStream(shape, np.dtype(np.float32), rows())
        write_features(self.file, features, stream=stream)

    def remove(self) -> None:
        self.open()
        self.file.unlink()
