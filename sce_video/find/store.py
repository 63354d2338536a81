"""Storage of an index, and its implementation as a file (``features.npz``).

An index has two views. A search opens a :class:`VideoIndex`, whose rows are the videos or windows
that can be found. An update reads and writes an :class:`IndexStore`, which contains a record for
every file of the indexed folder. :mod:`sce_video.find.table_store` implements both for Lance
tables, which hold more features than a file.
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

# Import this only for type checks, because a search for an indexed video needs only NumPy.
if TYPE_CHECKING:
    from sce_video.inference.network_input import ViewOptions
    from sce_video.jobs import State

#: File with the features in the folder of an index
FEATURES = "features.npz"
#: Table with the features in the folder of an index, which replaces the file
TABLE = "features.lance"
#: File that describes an index for people and other programs
DESCRIPTION = "index.json"
#: Format version of the file if its rows are videos
_VERSION = 2
#: Format version of the file if its rows are windows of videos
_VERSION_OF_WINDOWS = 3
#: Largest number of clips per video. An untrusted index may state any number.
_MAX_CLIPS = 10_000
#: Number of paths that are compared at a time to check that they are sorted
_CHECKED_ROWS = 1 << 16
#: Number of rows that are read from the file or table at a time
READ_ROWS = 16384
#: Minimum number of features for whitening. Fewer features do not determine a covariance matrix.
FEWEST_WHITENED = 100
#: Largest number of features for the covariance matrix, taken at equal steps from the index
_MOST_WHITENED = 8192
#: Smallest number that is added to the variances, so that a matrix of zeros can be inverted
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
        """The state as jobs record it; None if there is no file."""
        return None if self.size < 0 else self._asdict()


NO_FILE = FileState(-1, -1)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An indexed file: its state when it was embedded, and access to its features.

    An update keeps the records of all files in memory, so a record should refer to its features
    instead of containing them. They are read only when the index is written.

    Attributes:
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.
        feature: (D,) float32, or (W, D) for windows, or a function that reads them; None if the
            file cannot be decoded.
        reason: Why the file or some of its windows cannot be decoded; empty if nothing failed.
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
        """Return the features (n, D) float32; the file must have been decoded."""
        assert self.feature is not None
        return np.atleast_2d(self.feature() if callable(self.feature) else self.feature)

    def entry(self, path: str) -> dict[str, str | int]:
        """Return the entry of the file in ``index.json``."""
        return {"path": path, **self.state._asdict()}


@dataclass(frozen=True)
class IndexHeader:
    """Everything that the features of an index depend on, except the videos themselves.

    Attributes:
        root: Absolute path of the indexed folder or table of videos.
        checkpoint: Path or URL of the weights.
        sha256: SHA-256 of the weights file.
        model: Settings of the network, which are checked when it is built.
        num_clips: Number of clips per video or window.
        num_crops: Number of crops per clip.
        windows: Division of videos into windows; None if a row is a whole video or a segment.
        listed_in: File that lists the videos or segments; None for a folder or table.
        dataset: User-defined class that lists the videos of the folder; None for all videos.
        imports: The user's own modules that registered the network and the dataset.
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
        """Settings that all rows of the index share, as JSON data."""
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
        """Read the header of an untrusted index.

        Raises:
            KeyError, TypeError, ValueError: If the entry is not a header.
        """
        settings, checkpoint = entry["settings"], entry["checkpoint"]
        clips, crops = settings["num_clips"], settings["num_crops"]
        if type(clips) is not int or not 1 <= clips <= _MAX_CLIPS or crops not in (1, 3):
            raise ValueError(
                f"num_clips must be 1 to {_MAX_CLIPS} and num_crops 1 or 3, got {clips!r:.40} and "
                f"{crops!r:.40}"
            )
        if not isinstance(settings["model"], dict):
            raise ValueError("settings['model'] must be a dict")
        windows, listed_in = settings.get("windows"), settings.get("list")
        if not isinstance(listed_in, str | None):
            raise ValueError(f"settings['list'] must be a path, got {listed_in!r:.40}")
        dataset, imports = settings.get("dataset"), entry.get("imports", [])
        if not isinstance(dataset, str | None):
            raise ValueError(
                f"settings['dataset'] must be the name of a class, got {dataset!r:.40}"
            )
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
    """Matrix (N, D) float32 whose rows can be read: an array, or a column of a table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (N, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Whitening:
    """Linear map after which the features of an index vary equally in every direction.

    Without whitening, the few directions in which a network's features vary most dominate the
    cosine of two features. After whitening, two features are similar if they share a property that
    few others have. Features ``x`` become ``(x - mean) @ matrix``.

    Attributes:
        mean: (D,) float64.
        matrix: (D, D) float64.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Map features (..., D) to (..., D) float64."""
        return (features.astype(np.float64) - self.mean) @ self.matrix


def fit_whitening(features: Matrix) -> Whitening:
    """Fit the whitening of features (N, D).

    With the covariance matrix C of the features and R = C + tr(C)/D I, the whitening matrix is the
    transposed inverse of R's Cholesky factor. Any other square root of the inverse of R gives the
    same cosines. Adding the mean variance in every direction keeps the whitening from amplifying
    differences that only come from compression or from where a window starts.

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
        raise ValueError("a feature contains NaN or infinity. Build the index again (--rebuild)")
    covariance[np.diag_indices(size)] += max(np.trace(covariance) / size, _TINY)
    return Whitening(mean, np.linalg.inv(np.linalg.cholesky(covariance)).T)


class VideoIndex:
    """Index that was opened for search. Each row is a video, a segment or a window of a video.

    Arrays with an entry per row are memory-mapped, or read only when they are used, so even an
    index of millions of videos opens immediately.

    Args:
        folder: Folder of the index, or table of videos.
        header: Videos, network and views from which the index was made.
        failed: Records, by path, of files that cannot be decoded completely.
        shape: (N, D), number of rows and size of the features.

    Attributes:
        root: Absolute path of the indexed folder of videos.
        windows: Division of videos into windows; None if a row is a whole video or a segment.
        listed_in: File that lists the videos or segments; None for a folder or table.
        indexed: Number of rows in the vector index; None without a vector index.
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
        """Features (N, D) float32. They must not be modified, because a search may reread them."""
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
        """Whitening that was fitted to at most 8192 features."""
        return fit_whitening(self.features)

    @property
    def whitens(self) -> bool:
        """Whether searches whiten features by default, which requires enough windows."""
        return self.windows is not None and len(self) >= FEWEST_WHITENED

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Path and reason of each file that cannot be decoded."""
        # If a file has a row, it was decoded, even if it is damaged or some windows are missing.
        some = set(self.paths) if self.failed else set()
        return [(path, r.reason) for path, r in self.failed.items() if path not in some]

    @property
    def options(self) -> ViewOptions:
        """Number of clips and crops with which the videos were embedded."""
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
        """Return the file of a path, and start and end in seconds if it is a listed segment."""
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
        """Find about k similar rows with the vector index, and return rows and features.

        Args:
            query: (D,) feature.
            k: Number of rows.
            kept: (N,) bool mask of rows that may be found; None for all.
        """
        raise NotImplementedError


class IndexStore(ABC):
    """File or table that stores an index. It need not exist yet.

    Args:
        file: Path of the file or table in the folder of the index.
    """

    #: Whether ``index.json`` lists the files that have a feature. For a table, it does not.
    listed: ClassVar[bool] = True

    def __init__(self, file: Path) -> None:
        self.file = file

    @abstractmethod
    def open(self) -> VideoIndex:
        """Open the index for search; raise ValueError if the file does not contain an index."""

    @abstractmethod
    def read(self) -> tuple[IndexHeader, dict[str, FileRecord]]:
        """Read the header and the records, sorted by path; errors are as in :meth:`open`."""

    @abstractmethod
    def write(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Store the header, and the records by their path relative to ``root``."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the file. If it is not an index, raise ValueError and remove nothing."""

    @abstractmethod
    def check(self) -> list[str]:
        """Read all files of the index, and return a sentence for each damaged file."""

    def make_vector_index(self, wanted: bool) -> None:
        """Create or extend a vector index if the store supports it and it is worth the time."""
        return  # Only a table has a vector index.

    def describe(self, header: IndexHeader, records: Mapping[str, FileRecord]) -> None:
        """Write ``index.json``: everything except the features, for people and other programs."""
        # Generators write one entry at a time, because all entries take more memory than the index.
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
    """Index in a feature file. Large arrays are memory-mapped."""

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
        # An update writes sorted paths, but another program may have written the file.
        blocks = range(0, len(self), _CHECKED_ROWS)
        # Each part includes the first path of the next part, so that these two are compared, too.
        parts = (self.path_array[begin : begin + _CHECKED_ROWS + 1] for begin in blocks)
        if all((part[1:] >= part[:-1]).all() for part in parts):
            return None
        starts = np.arange(len(self)) if self.spans is None else self.spans[:, 0]
        return np.lexsort((starts, self.path_array))

    def rows(self, path: str) -> list[int]:
        # NumPy would cut a path that is longer than all indexed paths before comparing it.
        if len(path) > self.path_array.dtype.itemsize // 4:
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
            # Release the pages, because otherwise the whole file would finally be held in memory.
            if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                mapping.madvise(mmap.MADV_DONTNEED)


class FileStore(IndexStore):
    """Index stored as an ``.npz`` file of features.

    The arrays are ``features`` (N, D) float32, ``mean`` (D,) float64, ``paths`` (N,) text,
    ``sizes`` (bytes) and ``mtimes`` (nanoseconds), both (N,) int64. Windows also have ``starts``
    and ``ends`` (N,) float64 in seconds. The provenance contains the entry ``index`` with the
    version, the header, and the size and modification time of each failed file.
    """

    def open(self) -> NpzIndex:
        """Open the index without reading the features."""
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
                raise ValueError(f"the mean has shape {mean.shape}, not ({size},)")
            paths = arrays["paths"]
            if paths.shape != (count,) or paths.dtype.kind != "U":
                raise ValueError(f"there are {count} features, but 'paths' has shape {paths.shape}")
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
                    raise ValueError(
                        f"there are {count} features, but 'starts' and 'ends' have shapes "
                        f"{starts.shape} and {ends.shape}"
                    )
                if not (np.isfinite(ends).all() and (starts >= 0).all() and (starts < ends).all()):
                    raise ValueError("a window must end after its start")
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
        """Read the header and the records; also raise ValueError if a feature is not finite."""
        stored = self.open()
        if len(stored):
            # Only an update calls this method, and it needs torch anyway.
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
            # A slice is a view of the mapped file, so it does not copy the features to memory.
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
        """Replace the file. Each record's features are read only when they are written."""
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

        # The mean is computed while the features are written, and is written after them.
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
