"""An index of a folder of videos: built once, updated incrementally, read for search.

An index is a folder::

    features.npz     features, paths (relative to the indexed folder), sizes and times of the files,
                     and the settings; or features.lance, a table of the same content
    index.json       a description, for people and other programs
    records.sqlite   features embedded by a run that is not finished; empty after its end

Only the features' file is searched, so an interrupted run cannot leave contradictory files.
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
from sce_video.datasets.sources import is_table, is_table_folder, list_videos
from sce_video.datasets.tables.table import is_remote, read_table
from sce_video.datasets.windows import Windows
from sce_video.evaluation.extraction import failure_of, time_limit
from sce_video.find.feature_columns import open_features
from sce_video.find.index_files import (
    DESCRIPTION,
    FEATURES,
    FileRecord,
    StoredRecords,
    write_description,
)
from sce_video.find.store import IndexStore, NpzStore, choose_store, find_store, remove_stores
from sce_video.find.table_store import TableFeatures, TableRecords
from sce_video.find.whitening import FEWEST_ROWS, Whitening, fit_whitening
from sce_video.inference.embed import EmbedJob, EmbedOptions, feature_of, windows_of
from sce_video.inference.model import VideoModel
from sce_video.jobs import Item, Record, RecordStore, Workers, is_current, run_job
from sce_video.utils.storage import STORES, trusted_stores

#: Records of unfinished runs in the folder of an index.
RECORDS = "records.sqlite"


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


def setting_differences(
    stored: dict[str, Any], current: dict[str, Any], prefix: str = ""
) -> list[str]:
    """``num_clips is 4 in the index, now 2`` for every setting that differs."""
    differences = []
    for name in sorted(set(stored) | set(current)):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += setting_differences(old, new, f"{prefix}{name}.")
        elif old != new:
            differences.append(f"{prefix}{name} is {old} in the index, now {new}")
    return differences


def embed_due(
    job: EmbedJob,
    states: dict[str, tuple[int, int]],
    known: dict[str, FileRecord],
    records: RecordStore,
    workers: Workers,
    on_video: Callable[[int, int, str], None] | None,
) -> IndexReport:
    """Embed the files that have no current row in the index and no current record."""
    due: list[str] = []
    changed = done = 0
    for path, state in states.items():
        row = known.get(path)
        whole = row is not None and row.feature is not None and not row.reason
        if row is not None and row.same_file(state) and job.stands(whole):
            continue
        if not is_current(job, job.item(path, state), records):
            due.append(path)
            changed += row is not None or records.get(path) is not None

    def report(item: Item, record: Record | None) -> None:
        nonlocal done
        done += 1
        if on_video is not None and record is not None:
            on_video(done, len(due), "" if record.done else failure_of(record))

    if due:
        items = (job.item(path, states[path]) for path in due)
        run_job(job, items, records, workers.at_most(len(due)), report)
    failed = [(r.key, failure_of(r)) for r in records if r.key in states and not r.done]
    kept = len(states) - len(due)
    return IndexReport(len(states) - len(failed), len(due) - changed, changed, kept, 0, failed)


def write_index(
    folder: Path,
    store: IndexStore,
    header: dict[str, Any],
    states: dict[str, tuple[int, int]],
    records: RecordStore,
    run: IndexReport,
    approximate: bool,
) -> IndexReport:
    """Write the index from current records and, of unchanged files, the rows that it has.

    Features stay in the records and in the index that exists until they are written, one by one.
    """
    known, complete = read_known(folder, store, header, records)
    current: dict[str, FileRecord] = {}
    embedded, windows = False, header["settings"].get("windows") is not None
    for path, state in states.items():
        record = records.get(path)
        if record is not None and _is_of(record, state):
            current[path] = _file_record(state, record, records, windows)
            embedded = True
        elif path in known and known[path].same_file(state):
            current[path] = known[path]
        else:  # embedded by an interrupted run, and gone since
            current[path] = FileRecord(*state, None, "there is no such file")
    dropped = len(set(known) - set(states))
    if embedded or dropped or not complete:
        # The old description goes first: it must never be there beside new features.
        (folder / DESCRIPTION).unlink(missing_ok=True)
        store.write(header, current)
        remove_stores(folder, kept=store)
        write_description(folder, header, current, isinstance(store, NpzStore))
        records.clear()
    store.make_vector_index(approximate)
    held = {path: r for path, r in current.items() if r.feature is not None}
    failures = [(path, r.reason) for path, r in current.items() if r.feature is None]
    return IndexReport(
        videos=len(held),
        new=run.new,
        changed=run.changed,
        kept=len(current) - run.new - run.changed,
        dropped=dropped,
        failures=failures,
        incomplete=[(path, r.reason) for path, r in held.items() if r.reason],
        windows=len(store.open()) if windows else None,
    )


def _is_of(record: Record, state: tuple[int, int]) -> bool:
    """Whether a record is of the file as it is now."""
    if state[0] < 0:  # there is none
        return not record.done
    return record.source == {"size": state[0], "mtime_ns": state[1]}


def _file_record(
    state: tuple[int, int], record: Record, records: RecordStore, windows: bool
) -> FileRecord:
    """The entry of the index for a record of a file in this state."""
    if record.done and windows:
        _, spans, reason = windows_of(record)
        return FileRecord(*state, partial(_read_windows, records, record.key), reason, spans)
    if record.done:
        return FileRecord(*state, partial(_read_feature, records, record.key))
    return FileRecord(*state, None, failure_of(record))


def _read_feature(records: RecordStore, path: str) -> np.ndarray:
    record = records.get(path)
    assert record is not None
    return feature_of(record)


def _read_windows(records: RecordStore, path: str) -> np.ndarray:
    record = records.get(path)
    assert record is not None
    return windows_of(record)[0]


def index_header(model: VideoModel, job: EmbedJob) -> dict[str, Any]:
    """What all features of an index have in common."""
    checkpoint = {"path": model.checkpoint, "sha256": model.checkpoint_sha256}
    return {**job.settings, "checkpoint": checkpoint}


def read_known(
    folder: Path, store: IndexStore, header: dict[str, Any], unfinished: RecordStore
) -> tuple[dict[str, FileRecord], bool]:
    """Records of the index, and whether no interrupted run has left any unfinished.

    Raises:
        ValueError: the index or an unfinished run was not made with this ``header``.
    """
    begun = unfinished.settings()
    for settings in begun:
        if set(settings) != set(header):
            raise ValueError(f"{unfinished.path} is no unfinished run of an index: remove it")
        checkpoint = {"path": "another checkpoint", "sha256": settings["checkpoint"]}
        _check_same(folder, {**settings, "checkpoint": checkpoint}, header)
    known: dict[str, FileRecord] = {}
    complete = not begun and store.exists() and (folder / DESCRIPTION).is_file()
    source = store if store.exists() else find_store(folder)
    if source is None:
        return known, False
    stored, known = source.read()
    _check_same(folder, stored, header)
    return known, complete and stored == header


def _check_same(folder: Path, stored: dict[str, Any], header: dict[str, Any]) -> None:
    differences = []
    if stored["root"] != header["root"]:
        differences.append(f"it is of the folder {stored['root']}, not {header['root']}")
    old, new = stored["checkpoint"], header["checkpoint"]
    if old["sha256"] != new["sha256"]:
        differences.append(
            f"it was built with {old['path']} (sha256 {old['sha256'][:12]}), not with "
            f"{new['path']} ({new['sha256'][:12]})"
        )
    differences += setting_differences(stored["settings"], header["settings"])
    if differences:
        raise ValueError(
            f"the index {folder} does not match this call: {'; '.join(differences)}. Use another "
            "folder for the index, or build this one from scratch (--rebuild, rebuild=True)"
        )


_STATE = ("path", "size", "source_mtime_ns")


def real_path(root: str | os.PathLike[str]) -> str:
    """A folder or table without links; the URI of a table in an object store as it is."""
    name = os.fspath(root)
    return name.rstrip("/") if is_remote(name) else os.path.realpath(name)


def video_states(root: str) -> dict[str, tuple[int, int]]:
    """(size, modification time in ns) of all videos by relative path, sorted.

    Of a row of a table they are the bytes of its packets and the time of the file that it was made
    from. A file that does not exist any more has (-1, -1).

    Raises:
        ValueError: there is no video.
        TableError, MissingPackageError: the table cannot be read.
    """
    if is_table(root):
        return _states_of_rows(root)
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


def _states_of_rows(table: str) -> dict[str, tuple[int, int]]:
    content = read_table(table).call("read", list(_STATE))
    columns = (content[name].to_pylist() for name in _STATE)
    found = {path: (size, time) for path, size, time in zip(*columns, strict=True)}  # newest last
    videos = list_videos(table)  # without rows of failed imports
    return {path: found[path] for path in (videos.path(i) for i in range(len(videos)))}


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
    stored: StoredRecords | TableRecords

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def features(self) -> np.ndarray | TableFeatures:
        """(N, D) float32, read-only; memory-mapped, or read when they are used, if large."""
        if isinstance(self.stored.features, TableFeatures):
            return self.stored.features
        features = self.stored.features.view()
        features.flags.writeable = False
        return features

    @cached_property
    def paths(self) -> list[str]:
        """N paths relative to ``root``; the whole list, see :meth:`path` for one."""
        return self.stored.paths.tolist()

    @property
    def whitens(self) -> bool:
        """Whether searches whiten features by default: those of windows, if they are enough."""
        return self.windows is not None and len(self) >= FEWEST_ROWS

    @cached_property
    def whitening(self) -> Whitening:
        """See :func:`~sce_video.find.whitening.fit_whitening`; computed from at most 8192 rows."""
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
        return [
            (path, record.reason)
            for path, record in self.stored.failed.items()
            if self.windows is None or self.stored.row(path) is None
        ]

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
        return self.stored.row(path)

    def file(self, path: str) -> str:
        """Absolute path of a video of the index."""
        return os.path.join(self.root, path)

    def is_unchanged(self, row: int, file: str | os.PathLike) -> bool:
        """Whether a file has the size and time that it had when it was embedded as this row.

        Raises:
            FileNotFoundError: there is none.
        """
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
        options: Each of their workers decodes and embeds,
            with ``num_workers=0`` this process does.
        rebuild: Discard the existing index and embed all files.
        retry_failed: Try files again that could not be decoded, even if unchanged.
        on_video: Called after every video with the number of finished videos, their total, and why
            the video could not be decoded (empty if it could).
        ray: Address of a Ray cluster to work on, or ``auto``; ``num_workers`` is then the number of
            processes at once, 0 for all of the cluster.
        processes_per_gpu: Processes that share a GPU of the cluster.
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
    states = video_states(root)
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
    header = index_header(model, job)
    with RecordStore(folder / RECORDS, job.name) as records:
        store = choose_store(folder, table or approximate)
        if rebuild:
            remove_stores(folder)
            records.clear()
        known, _ = read_known(folder, store, header, records)
        run = embed_due(job, states, known, records, workers, on_video)
        return write_index(folder, store, header, states, records, run, approximate)


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
        return VideoIndex(Path(folder), open_features(os.fspath(folder), column))
    if column is not None:
        raise ValueError(f"{os.fspath(folder)} is no table of videos: it has no columns to name")
    folder = Path(folder)
    store = find_store(folder)
    if store is None:
        begun = (folder / RECORDS).exists()
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
