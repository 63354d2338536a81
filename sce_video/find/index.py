"""An index of a folder of videos: built once, updated incrementally, read for search.

An index is a folder::

    features.npz     features, paths (relative to the indexed folder), sizes and times of the files,
                     and the settings; or features.lance, a table of the same content
    index.json       a description, for people and other programs
    records.sqlite   features embedded by a run that is not finished; empty after its end
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets import scan_folder
from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.sources import is_table, is_table_folder, list_videos
from sce_video.datasets.tables.table import is_remote, read_table
from sce_video.evaluation.extraction import failure_of, time_limit
from sce_video.find.store import (
    DESCRIPTION,
    FEATURES,
    TABLE,
    FileRecord,
    FileStore,
    IndexStore,
    Matrix,
    StoredRows,
)
from sce_video.find.table_store import TableStore, open_feature_column
from sce_video.inference.embed import EmbedJob, EmbedOptions, feature_of, windows_of
from sce_video.inference.model import VideoModel
from sce_video.jobs import Item, Record, RecordStore, Workers, is_current, run_job
from sce_video.utils.storage import STORES, trusted_stores

#: Records of unfinished runs in the folder of an index.
_RECORDS = "records.sqlite"
#: Columns of a table of videos that tell whether a row has changed.
_STATE = ("path", "size", "source_mtime_ns")
#: Whitening: fewer features say too little of their covariance, for which at most so many, at
#: equal steps, are taken.
FEWEST_WHITENED, _MOST_WHITENED = 100, 8192
_TINY = 1e-12


@dataclass(frozen=True)
class IndexReport:
    """What a call of :func:`build_index` did.

    Attributes:
        videos: Number of videos now in the index.
        new: Files embedded for the first time.
        changed: Files embedded again, since size or modification time differ.
        kept: Files whose features were kept.
        dropped: Files that are no longer in the folder.
        failures: (path, reason) of all files that cannot be decoded.
        incomplete: (path, reason) of the files of which some windows cannot be decoded.
        windows: Number of windows in the index; None without windows.
    """

    videos: int
    new: int
    changed: int
    kept: int
    dropped: int
    failures: list[tuple[str, str]] = field(default_factory=list)
    incomplete: list[tuple[str, str]] = field(default_factory=list)
    windows: int | None = None


def find_store(folder: Path) -> IndexStore | None:
    """What an index is kept in; None if there is no index.

    A table counts more than a file, which remains beside it where a conversion was interrupted.
    """
    stores = TableStore(folder / TABLE), FileStore(folder / FEATURES)
    return next((store for store in stores if store.exists()), None)


def _remove_stores(folder: Path, kept: IndexStore | None = None) -> None:
    """Remove what an index is kept in, but for ``kept``; ValueError if it is not of an index."""
    for store in (FileStore(folder / FEATURES), TableStore(folder / TABLE)):
        if kept is None or store.file != kept.file:
            store.remove()


def index_mismatches(
    stored: dict[str, Any], current: dict[str, Any], prefix: str = ""
) -> list[str]:
    """``num_clips is 4 in the index, now 2`` for every setting that differs."""
    differences = []
    for name in sorted(set(stored) | set(current)):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += index_mismatches(old, new, f"{prefix}{name}.")
        elif old != new:
            differences.append(f"{prefix}{name} is {old} in the index, now {new}")
    return differences


def _embed_due(
    job: EmbedJob,
    states: dict[str, tuple[int, int]],
    known: dict[str, FileRecord],
    records: RecordStore,
    workers: Workers,
    on_video: Callable[[int, int, str], None] | None,
) -> tuple[int, int]:
    """Embed the files without a current row or record; returns how many were new, and changed."""
    due: list[str] = []
    changed = done = 0
    for path, state in states.items():
        row = known.get(path)
        whole = row is not None and row.feature is not None and not row.reason
        if row is not None and row.same_file(state) and (whole or not job.retry_failed):
            continue
        if not is_current(job, job.item(path, state), records):
            due.append(path)
            changed += row is not None or records.get(path) is not None

    def report(_item: Item, record: Record | None) -> None:
        nonlocal done
        done += 1
        if on_video is not None and record is not None:
            on_video(done, len(due), "" if record.done else failure_of(record))

    if due:
        items = (job.item(path, states[path]) for path in due)
        run_job(job, items, records, workers.at_most(len(due)), report)
    return len(due) - changed, changed


def _current_records(
    states: dict[str, tuple[int, int]],
    known: dict[str, FileRecord],
    records: RecordStore,
    windows: bool,
) -> tuple[dict[str, FileRecord], bool]:
    """What the index holds from now on, by path, and whether a file of it was embedded."""

    def read(key: str) -> np.ndarray:
        """A feature, which stays in the records until it is written."""
        record = records.get(key)
        assert record is not None
        return windows_of(record)[0] if windows else feature_of(record)

    current: dict[str, FileRecord] = {}
    embedded = False
    for path, (size, mtime) in states.items():
        record = records.get(path)
        of_file = record is not None and (
            not record.done  # there is no such file
            if size < 0
            else record.source == {"size": size, "mtime_ns": mtime}
        )
        if record is not None and of_file:
            embedded = True
            if record.done:
                _, spans, reason = windows_of(record) if windows else (None, None, "")
                feature = partial(read, record.key)
                current[path] = FileRecord(size, mtime, feature, reason, spans)
            else:
                current[path] = FileRecord(size, mtime, None, failure_of(record))
        elif path in known and known[path].same_file((size, mtime)):
            current[path] = known[path]
        else:  # embedded by an interrupted run, and gone since
            current[path] = FileRecord(size, mtime, None, "there is no such file")
    return current, embedded


def _read_known(
    folder: Path, store: IndexStore, header: dict[str, Any], unfinished: RecordStore
) -> tuple[dict[str, FileRecord], bool]:
    """Records of the index, and whether it is whole: no interrupted run has left any unfinished."""

    def check_same(stored: dict[str, Any]) -> None:
        differences = []
        if stored["root"] != header["root"]:
            differences.append(f"it is of the folder {stored['root']}, not {header['root']}")
        old, new = stored["checkpoint"], header["checkpoint"]
        if old["sha256"] != new["sha256"]:
            differences.append(
                f"it was built with {old['path']} (sha256 {old['sha256'][:12]}), not with "
                f"{new['path']} ({new['sha256'][:12]})"
            )
        differences += index_mismatches(stored["settings"], header["settings"])
        if differences:
            raise ValueError(
                f"the index {folder} does not match this call: {'; '.join(differences)}. Use "
                "another folder for the index, or build this one from scratch (--rebuild, "
                "rebuild=True)"
            )

    begun = unfinished.settings()
    for settings in begun:
        if set(settings) != set(header):
            raise ValueError(f"{unfinished.path} is no unfinished run of an index: remove it")
        checkpoint = {"path": "another checkpoint", "sha256": settings["checkpoint"]}
        check_same({**settings, "checkpoint": checkpoint})
    whole = not begun and store.exists() and (folder / DESCRIPTION).is_file()
    source = store if store.exists() else find_store(folder)
    if source is None:
        return {}, False
    stored, known = source.read()
    check_same(stored)
    return known, whole and stored == header


def real_path(root: str | os.PathLike[str]) -> str:
    """A folder or table without links; the URI of a table in an object store as it is."""
    name = os.fspath(root)
    return name.rstrip("/") if is_remote(name) else os.path.realpath(name)


def _video_states(root: str) -> dict[str, tuple[int, int]]:
    """(size, modification time in ns) of all videos by relative path, sorted; (-1, -1) of none.

    Of a row of a table they are the bytes of its packets and the time of the file that it was made
    from.
    """
    if is_table(root):
        content = read_table(root).call("read", list(_STATE))
        columns = (content[name].to_pylist() for name in _STATE)
        # Of several rows of a path the newest is last.
        found = {path: (size, time) for path, size, time in zip(*columns, strict=True)}
        videos = list_videos(root)  # without rows of failed imports
        return {path: found[path] for path in (videos.path(i) for i in range(len(videos)))}
    videos = scan_folder(root)
    states = {}
    for path in sorted(videos.path(i) for i in range(len(videos))):
        try:
            status = os.stat(os.path.join(root, path))
        except OSError:  # a dangling link, or removed since; decoding reports the reason
            states[path] = (-1, -1)
        else:
            states[path] = (status.st_size, status.st_mtime_ns)
    return states


@dataclass(frozen=True, eq=False)
class Whitening:
    """A linear map after which features of an index vary alike in every direction.

    The cosine of two features is dominated by the few directions in which all features of a network
    vary most. After whitening it counts how unusual a common property is, without any label:
    features ``x`` become ``(x - mean) @ matrix`` with ``mean`` (D,) and ``matrix`` (D, D) float64.
    """

    mean: np.ndarray
    matrix: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """(..., D) float64 of (..., D)."""
        return (features.astype(np.float64) - self.mean) @ self.matrix


def fit_whitening(features: Matrix) -> Whitening:
    """The whitening of the rows of (N, D) features; ValueError for NaN or infinity.

    With their covariance C and R = C + tr(C)/D I it is the inverse of the Cholesky factor of R;
    cosines are those of any other square root of the inverse of R. The mean variance is added in
    every direction, since small differences are those of compression and of where a window begins.
    """
    count, size = features.shape
    taken = np.unique(np.linspace(0, count - 1, min(count, _MOST_WHITENED)).astype(np.int64))
    rows = np.asarray(features[taken], dtype=np.float64)
    mean = rows.mean(axis=0)
    rows -= mean
    covariance = rows.T @ rows / len(rows)
    if not np.isfinite(covariance).all():
        raise ValueError("a feature holds NaN or infinity: build the index from scratch")
    covariance[np.diag_indices(size)] += max(np.trace(covariance) / size, _TINY)
    return Whitening(mean, np.linalg.inv(np.linalg.cholesky(covariance)).T)


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """An index for search; made by :func:`read_index`.

    The arrays of a file are memory-mapped and sorted by path, those of a table are read when they
    are used, so an index of millions of videos opens at once.

    Attributes:
        folder: Folder of the index.
        stored: Paths, features, sizes and times of the files, and the settings of the index.
    """

    folder: Path
    stored: StoredRows

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def features(self) -> Matrix:
        """(N, D) float32, read-only; memory-mapped, or read when they are used, if large."""
        features = self.stored.features
        if isinstance(features, np.ndarray):
            features = features.view()
            features.flags.writeable = False
        return features

    @cached_property
    def paths(self) -> list[str]:
        """N paths relative to ``root``; the whole list, see :meth:`path` for one."""
        return self.stored.paths.tolist()

    @property
    def whitens(self) -> bool:
        """Whether searches whiten features by default: those of windows, if they are enough."""
        return self.windows is not None and len(self) >= FEWEST_WHITENED

    @cached_property
    def whitening(self) -> Whitening:
        """See :func:`~sce_video.find.index.fit_whitening`; computed from at most 8192 rows."""
        return fit_whitening(self.stored.features)

    @property
    def root(self) -> str:
        """The indexed folder of videos, absolute."""
        return self.stored.header["root"]

    @property
    def checkpoint(self) -> dict[str, str]:
        """``path`` and ``sha256`` of the weights."""
        return self.stored.header["checkpoint"]

    @property
    def settings(self) -> dict[str, Any]:
        """``model`` (:class:`.inference.model_settings.ModelSettings`), clips and crops."""
        return self.stored.header["settings"]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(path, reason) of the files that cannot be decoded."""
        some = set() if self.windows is None else set(self.paths)  # only some of their windows
        return [(path, r.reason) for path, r in self.stored.failed.items() if path not in some]

    @property
    def windows(self) -> Windows | None:
        """How its videos were divided; None if a row is a whole video."""
        values = self.settings.get("windows")
        return None if values is None else Windows.from_dict(values)

    @property
    def options(self) -> EmbedOptions:
        """Clips and crops with which its videos were embedded."""
        return EmbedOptions(
            num_clips=self.settings["num_clips"], num_crops=self.settings["num_crops"]
        )

    def path(self, row: int) -> str:
        """Path of a row, relative to ``root``."""
        return self.stored.paths_of(np.array([row]))[0]

    def row(self, path: str) -> int | None:
        """Row of a path relative to ``root``; None if it is not in the index."""
        return next(iter(self.stored.rows(path)), None)

    def file(self, path: str) -> str:
        """Absolute path of a video of the index."""
        return os.path.join(self.root, path)

    def is_unchanged(self, row: int, file: str | os.PathLike) -> bool:
        """Whether a file has the size and time that it had when it was embedded as this row."""
        status = os.stat(file)
        state = self.stored.sizes[row], self.stored.mtimes[row]
        return bool(state == (status.st_size, status.st_mtime_ns))


def build_index(
    model: VideoModel,
    root: str | os.PathLike,
    folder: str | os.PathLike,
    options: EmbedOptions | None = None,
    *,
    rebuild: bool = False,
    retry_failed: bool = False,
    on_video: Callable[[int, int, str], None] | None = None,
    ray: str | None = None,
    processes_per_gpu: int = 4,
    table: bool = False,
    approximate: bool = False,
    windows: Windows | None = None,
) -> IndexReport:
    """Build an index of a folder or a table of videos, or update it.

    Only files that are new or changed (in size or modification time) are decoded; files that could
    not be decoded are not tried again until they change. Every feature is saved at once, so an
    interrupted run resumes where it stopped.

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        root: The folder of videos, sub-folders are read too; or a table of videos.
        folder: The index; created if it does not exist.
        options: Each of their workers decodes and embeds, with ``num_workers=0`` this process does.
        rebuild: Discard the existing index and embed all files.
        retry_failed: Try files again that could not be decoded, even if unchanged.
        on_video: Called after every video with the number of finished videos, their total, and why
            the video could not be decoded (empty if it could).
        ray: Address of a Ray cluster to work on, or ``auto``; ``num_workers`` is then the number of
            processes at once, 0 for all of the cluster.
        processes_per_gpu: Of the cluster.
        table: Keep the features in a Lance table, and move those of an existing file there. An
            index that is kept in a table stays there.
        approximate: Search the table by a vector index, whatever its number of rows is.
        windows: Divide every video: each window is a row, and a result of a search a moment.
            ``options.timeout`` is then the limit for opening a file and for its next frame.

    Raises:
        ValueError: no video in ``root``; the index was built with another checkpoint, with other
            settings or from another folder; another run is writing it.
        RunError: the network fails, or the disk is full.
    """
    options = options or EmbedOptions()
    folder, root = Path(folder), real_path(root)
    states = _video_states(root)
    job = EmbedJob(
        model,
        root,
        options,
        retry_failed=retry_failed,
        ray=ray is not None,
        processes_per_gpu=processes_per_gpu,
        windows=windows,
    )
    count = None if ray is not None and not options.num_workers else options.num_workers
    # A long video takes long; its reader has the time limit then, for each frame.
    seconds = time_limit(options.timeout if windows is None else None)
    workers = Workers(count, seconds, ray)
    checkpoint = {"path": model.checkpoint, "sha256": model.checkpoint_sha256}
    header = {**job.settings, "checkpoint": checkpoint}
    with RecordStore(folder / _RECORDS, job.name) as records:
        # An index that is kept in a table stays there.
        wanted = table or approximate or (folder / TABLE).is_dir()
        store = TableStore(folder / TABLE) if wanted else FileStore(folder / FEATURES)
        if rebuild:
            _remove_stores(folder)
            records.clear()
        known, whole = _read_known(folder, store, header, records)
        new, changed = _embed_due(job, states, known, records, workers, on_video)
        current, embedded = _current_records(states, known, records, windows is not None)
        dropped = len(set(known) - set(states))
        if embedded or dropped or not whole:
            # The old description goes first: it must never be there beside new features.
            (folder / DESCRIPTION).unlink(missing_ok=True)
            store.write(header, current)
            _remove_stores(folder, kept=store)
            store.describe(header, current)
            records.clear()
        store.make_vector_index(approximate)
    held = {path: r for path, r in current.items() if r.feature is not None}
    return IndexReport(
        videos=len(held),
        new=new,
        changed=changed,
        kept=len(current) - new - changed,
        dropped=dropped,
        failures=[(path, r.reason) for path, r in current.items() if r.feature is None],
        incomplete=[(path, r.reason) for path, r in held.items() if r.reason],
        windows=None if windows is None else len(store.open()),
    )


def read_index(
    folder: str | os.PathLike, column: str | None = None, root: str | None = None
) -> VideoIndex:
    """Read an index.

    Args:
        folder: Of an index; or a table of videos with a column of features.
        column: Of a table with several columns of features.
        root: Table in a store that it may be of.

    Raises:
        FileNotFoundError: there is none, or its first run has not finished.
        ValueError: ``features.npz`` is not the file of an index, or ``features.lance`` not its
            table; or its videos are in a store that ``SCE_VIDEO_STORES`` does not name.
        MissingPackageError: it is kept in a table, and Lance is not installed.
    """
    if is_table_folder(os.fspath(folder)):
        return VideoIndex(Path(folder), open_feature_column(os.fspath(folder), column))
    if column is not None:
        raise ValueError(f"{os.fspath(folder)} is no table of videos: it has no columns to name")
    folder = Path(folder)
    store = find_store(folder)
    if store is None:
        begun = (folder / _RECORDS).exists()
        unfinished = " (an interrupted run: run it again to resume)" if begun else ""
        raise FileNotFoundError(f"there is no index in {folder}: no {FEATURES}{unfinished}")
    index = VideoIndex(folder, store.open())
    # An index may be a stranger's: it causes no requests.
    if "://" in index.root and index.root not in trusted_stores(root):
        raise ValueError(
            f"the videos of the index {folder} are in a store, which is not opened unasked: name "
            f"it, if you trust it: {STORES}={index.root}"
        )
    return index
