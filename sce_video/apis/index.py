"""An index of a folder of videos: built once, updated incrementally, read for search.

An index is a folder::

    features.npz     features, paths (relative to the indexed folder), sizes and times of the files,
                     and the settings; or features.lance, a table of the same content
    index.json       a description, for people and other programs
    records.sqlite   features embedded by a run that is not finished; empty after its end

Shards of a run have records of their own, ``records.shard-I-of-N.sqlite``, which are removed when
the index is written. Only the features' file is searched, so an interrupted run cannot leave
contradictory files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.apis.embed import EmbedOptions
from sce_video.apis.embed_job import EmbedJob
from sce_video.apis.feature_columns import open_features
from sce_video.apis.index_build import (
    RECORDS,
    IndexReport,
    embed_due,
    index_header,
    read_known,
    write_index,
)
from sce_video.apis.index_files import FEATURES, StoredRecords
from sce_video.apis.index_store import choose_store, find_store, remove_stores
from sce_video.apis.index_table import TableFeatures, TableRecords
from sce_video.apis.model import VideoModel
from sce_video.apis.video_states import real_path, video_states
from sce_video.apis.whitening import FEWEST_ROWS, Whitening, fit_whitening
from sce_video.datasets.source_names import is_table_folder
from sce_video.datasets.windows import Windows
from sce_video.evaluation.job_processes import time_limit
from sce_video.jobs import RecordStore, Workers
from sce_video.jobs.shards import SharedFolder
from sce_video.utils.shard import Shard
from sce_video.utils.storage import STORES, trusted_stores

_JOINT = "joint.sqlite"
_JOIN_SECONDS = 3600.0  # for another shard to write the index


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
        """See :func:`~sce_video.apis.whitening.fit_whitening`; computed from at most 8192 rows."""
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
        """``model`` (:class:`~sce_video.apis.model_settings.ModelSettings`), clips and crops."""
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
    shard: str = "1/1",
    windows: Windows | None = None,
) -> IndexReport:
    """Build an index of a folder or a table of videos, or update it.

    Only files that are new or changed (in size or modification time) are decoded; files that could
    not be decoded are not tried again until they change. Every feature is saved at once, so an
    interrupted run resumes where it stopped.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        root: The folder of videos, sub-folders are read too; or a table of videos.
        folder: The index; created if it does not exist.
        options: See :class:`~sce_video.apis.EmbedOptions`; each of its workers decodes and embeds,
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
        shard: Part ``i/n`` of the files, of several runs at the same time. The one that finishes
            last writes the index.
        windows: Divide every video: each window is a row, and a result of a search a moment.
            ``options.timeout`` is then the limit for opening a file and for its next frame.

    Raises:
        ValueError: no video in ``root``; the index was built with another checkpoint, with other
            settings or from another folder; another run is writing it.
        RunError: the network fails, or the disk is full.
    """
    options, part = options or EmbedOptions(), Shard.parse(shard)
    if rebuild and part.count > 1:
        raise ValueError(f"rebuild is for a run without shards: remove {folder}, then start them")
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
    shared = SharedFolder(folder, job.name)
    header = index_header(model, job)
    with shared.open(part, lambda record: part.holds(record.key)) as records:
        store = choose_store(folder, table or approximate)
        if rebuild:
            remove_stores(folder)
            records.clear()
        known, _ = read_known(folder, store, header, records)
        own = {path: state for path, state in states.items() if part.holds(path)}
        run = embed_due(job, own, known, records, workers, on_video)
        if part.count == 1:
            return write_index(folder, store, header, states, records, run, approximate)
    # The lock is waited for: of two shards that finish at once the second sees both.
    with RecordStore(folder / _JOINT, job.name, wait=_JOIN_SECONDS) as joint:
        shared.absorb_into(joint)
        report = write_index(folder, store, header, states, joint, run, approximate)
        joint.clear()
    return report


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
        begun = any(folder.glob(RECORDS))
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
