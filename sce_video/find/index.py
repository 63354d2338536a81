"""Building of an index. Later calls update it incrementally.

An index is a folder::

    features.npz     features, paths (relative to the indexed folder), file sizes and times, and
                     the settings; or features.lance, a table with the same content
    index.json       description for people and other programs
    records.sqlite   features that an unfinished run has embedded; empty after the run
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.labelled import LabelledVideos
from sce_video.datasets.sources import is_table, list_videos
from sce_video.datasets.tables.table import read_table
from sce_video.datasets.video_list import video_of
from sce_video.engine.config.snapshot import imports_of
from sce_video.find.label_list import LabelList, label_file
from sce_video.find.reading import (
    INDEX_STORES,
    RECORDS,
    find_store,
    index_mismatches,
    real_path,
)
from sce_video.find.reading import read_index as read_index  # re-exported for callers
from sce_video.find.store import (
    DESCRIPTION,
    FEATURES,
    NO_FILE,
    TABLE,
    FileRecord,
    FileState,
    IndexHeader,
    IndexStore,
)
from sce_video.inference.embed import count_clips
from sce_video.inference.embed_job import (
    EmbedJob,
    failure_of,
    job_workers,
    record_features,
)
from sce_video.inference.model import VideoModel
from sce_video.inference.network_input import ViewOptions
from sce_video.jobs import Item, Record, RecordStore, Workers, is_current, run_job

#: Function that is called after each video with the number of finished videos, the number of videos
#: to embed, and the reason if the video failed.
OnVideo = Callable[[int, int, str], None]
#: Columns of a table of videos that show whether a video has changed
_STATE = ("path", "size", "source_mtime_ns")


@dataclass(frozen=True)
class IndexReport:
    """Result of a call to :func:`build_index`.

    Attributes:
        videos: Number of videos in the index.
        new: Number of files that were embedded for the first time.
        changed: Number of files that were embedded again because they have changed.
        kept: Number of files whose features were kept.
        dropped: Number of files that are no longer in the folder.
        failures: Path and reason of each file that cannot be decoded.
        incomplete: Path and reason of each file that is damaged, or of which some windows cannot be
            decoded.
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


def _remove_stores(folder: Path, kept: IndexStore | None = None) -> None:
    """Remove the files of an index except ``kept``; raise ValueError if a file is not an index."""
    for name, kind in INDEX_STORES.items():
        if (folder / name).exists() and (kept is None or kept.file.name != name):
            kind(folder / name).remove()


def _header(
    model: VideoModel,
    root: str,
    options: ViewOptions,
    windows: Windows | None,
    listed: LabelledVideos | None,
    dataset: str | None,
) -> IndexHeader:
    """Return everything that the features depend on, except the videos themselves."""
    parts = {"backbone": model.settings.backbone, "dataset": {"type": dataset}}
    return IndexHeader(
        root=root,
        checkpoint=model.checkpoint,
        sha256=model.checkpoint_sha256,
        model=model.settings.to_dict(),
        num_clips=count_clips(model, options),
        num_crops=options.num_crops,
        windows=windows,
        listed_in=None if listed is None else os.path.realpath(listed.source),
        dataset=dataset,
        imports=tuple(imports_of(parts, list(parts))),
    )


@dataclass
class _Update:
    """Update of an index, which embeds new and changed files and merges the results.

    Attributes:
        job: Job that embeds the files.
        states: Current state of every file, by path.
        known: Records in the existing index, by path.
        records: Features that this run and an interrupted run before it have embedded.
        new: Number of files that are embedded for the first time.
        changed: Number of files that are embedded again.
    """

    job: EmbedJob
    states: Mapping[str, FileState]
    known: Mapping[str, FileRecord]
    records: RecordStore
    new: int = 0
    changed: int = 0

    def embed(self, workers: Workers, on_video: OnVideo | None) -> None:
        """Embed new and changed files, and count them."""
        due = [path for path in self.states if self._is_due(path)]
        again = [path for path in due if path in self.known or self.records.get(path) is not None]
        self.new, self.changed = len(due) - len(again), len(again)
        done = itertools.count(1)

        def report(_item: Item, record: Record | None) -> None:
            number = next(done)
            if on_video is not None and record is not None:
                on_video(number, len(due), "" if record.done else failure_of(record))

        if due:
            run_job(self.job, map(self._item, due), self.records, workers.at_most(len(due)), report)

    def content(self) -> dict[str, FileRecord]:
        """Return the new content of the index, by path."""
        found: dict[str, FileRecord] = {}
        for path, state in self.states.items():
            record, known = self.records.get(path), self.known.get(path)
            if record is not None and record.source == self._item(path).source:
                part = record_features(record, path)
                # To save memory, the features are read from the record store while being written.
                values = partial(self._values, path) if record.done else None
                found[path] = FileRecord(*state, values, part.reason, part.spans)
            elif known is not None and known.state == state:
                found[path] = known
            else:  # An interrupted run has recorded the file, but it has been removed since then.
                found[path] = FileRecord(*state, None, "there is no such file")
        return found

    def _item(self, path: str) -> Item:
        """Return the item of a file in the job."""
        # A list may contain absolute paths, which os.path.join leaves unchanged.
        file = os.path.join(str(self.job.settings["root"]), path)
        return Item(path, self.states[path].source, file)

    def _is_due(self, path: str) -> bool:
        """Return whether a file must be embedded, because its state is new."""
        known = self.known.get(path)
        if known is not None and known.state == self.states[path]:
            whole = known.feature is not None and not known.reason
            if whole or not self.job.retry_failed:
                return False
        return not is_current(self.job, self._item(path), self.records)

    def _values(self, path: str) -> np.ndarray:
        """Read the features of a file from the record store."""
        record = self.records.get(path)
        assert record is not None
        return record_features(record, path).values


def _check_not_empty(root: str, current: Mapping[str, FileRecord]) -> None:
    """Raise ValueError if no video has a feature.

    Otherwise an existing index would lose all its rows, for example while a disk is not mounted.
    """
    bad = [(path, r.reason) for path, r in current.items() if r.feature is None]
    if len(bad) == len(current):
        raise ValueError(
            f"none of {len(bad)} videos in {root} could be read, so no index was written. The "
            f"first is {bad[0][0]}: {bad[0][1]}. To retry unchanged files, add --retry-failed"
        )


def _read_known(
    folder: Path,
    store: IndexStore,
    header: IndexHeader,
    unfinished: RecordStore,
    states: Mapping[str, FileState],
) -> tuple[dict[str, FileRecord], bool]:
    """Read the records of the index, and whether the index is complete and up to date.

    The list from which the index was built may have been moved or copied. The new list is accepted
    if it has the same rows, or if it has half of them and the old list no longer exists.

    Raises:
        ValueError: If the index or the unfinished run does not match this call.
    """

    def check_same(stored: IndexHeader, rows: Collection[str] = ()) -> None:
        differences = []
        old, new = stored.listed_in, header.listed_in
        gone = old is not None and not os.path.exists(old)
        same = 2 * len(states.keys() & rows) >= len(rows) if gone else states.keys() == {*rows}
        if old and new and same:
            stored = replace(stored, listed_in=new)
        if stored.root != header.root:
            differences.append(f"it contains the folder {stored.root}, not {header.root}")
        if stored.sha256 != header.sha256:
            differences.append(
                f"it was built with {stored.checkpoint} (sha256 {stored.sha256[:12]}), not with "
                f"{header.checkpoint} ({header.sha256[:12]})"
            )
        differences += index_mismatches(stored.settings, header.settings)
        if differences:
            raise ValueError(
                f"the index {folder} does not match this call: {'; '.join(differences)}. Choose "
                "another folder, or build this index from scratch (--rebuild, rebuild=True)"
            )

    begun = unfinished.settings()
    for settings in begun:
        try:
            checkpoint = {"path": "another checkpoint", "sha256": settings["checkpoint"]}
            stored = IndexHeader.from_dict({**settings, "checkpoint": checkpoint})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{unfinished.path} does not contain an unfinished run of an index. Remove it"
            ) from error
        check_same(stored)
    whole = not begun and store.file.exists() and (folder / DESCRIPTION).is_file()
    source = store if store.file.exists() else find_store(folder)
    if source is None:
        return {}, False
    stored, known = source.read()
    check_same(stored, known)
    return known, whole and stored == header


def _label(labels: LabelList, listed: LabelledVideos) -> None:
    """Give videos without a label the label from the list."""
    first: dict[str, str] = {}
    for path, label in zip(listed.paths(), listed.videos.labels.tolist(), strict=True):
        first.setdefault(path, listed.name(label))
    new: dict[str, list[str]] = {}
    for path, name in first.items():
        if path not in labels.labels:
            new.setdefault(name, []).append(path)
    for name, paths in new.items():
        labels.apply(paths, name)


def _video_states(
    root: str,
    listed: Sequence[str] | None,
    extensions: Sequence[str] | None,
    dataset: str | None,
) -> dict[str, FileState]:
    """Return the state of every video by its relative path, sorted.

    A segment has the state of its file. The state of a row in a table consists of the size of its
    packets and the modification time of the imported file.

    Args:
        root: Folder or table of the videos.
        listed: Paths of the videos; None lists the folder or table.
        extensions: Extensions of the videos in a folder; None for all known video extensions.
        dataset: Registered class that lists the videos of a folder; None lists all of them.
    """
    if is_table(root) and listed is None:
        content = read_table(root).call("read", list(_STATE))
        columns = (content[name].to_pylist() for name in _STATE)
        # If a path has several rows, the last one is the newest and replaces the others.
        found = {path: FileState(*state) for path, *state in zip(*columns, strict=True)}
        videos = list_videos(root)  # leaves out rows of failed imports
        return {path: found[path] for path in (videos.path(i) for i in range(len(videos)))}
    if listed is None:
        videos = list_videos(root, extensions, dataset)
        listed = [videos.path(i) for i in range(len(videos))]
    states = {}
    for path in sorted(set(listed)):
        try:
            status = os.stat(video_of(os.path.join(root, path)))
        except OSError:  # Decoding will report why the file is missing (for example a broken link).
            states[path] = NO_FILE
        else:
            states[path] = FileState(status.st_size, status.st_mtime_ns)
    return states


def build_index(
    model: VideoModel,
    root: str | os.PathLike | LabelledVideos,
    folder: str | os.PathLike,
    options: ViewOptions | None = None,
    *,
    rebuild: bool = False,
    retry_failed: bool = False,
    on_video: OnVideo | None = None,
    ray: str | None = None,
    processes_per_gpu: int = 4,
    table: bool = False,
    approximate: bool = False,
    windows: Windows | None = None,
    extensions: Sequence[str] | None = None,
    dataset: str | None = None,
) -> IndexReport:
    """Build an index of a folder or a table of videos, or update it.

    Only new files, and files whose size or modification time has changed, are decoded. Files that
    could not be decoded are tried again only if they change. Every feature is saved immediately, so
    an interrupted run resumes where it stopped.

    Args:
        model: Network from :func:`~sce_video.inference.model.load_model`.
        root: Folder of videos, including its sub-folders, table of videos, or listed videos or
            segments. Labels from a list are added to ``labels.txt`` for videos without a label.
        folder: Folder of the index; created if it does not exist.
        options: Views, limits and number of worker processes. With ``num_workers=0``, this process
            decodes and embeds the videos itself.
        rebuild: Whether to discard an existing index and embed all files.
        retry_failed: Whether to retry files that could not be decoded, even if unchanged.
        on_video: Called after every video with the number of finished videos, their total, and the
            reason why the video could not be decoded (empty if it could).
        ray: Address of a Ray cluster that embeds the videos, or ``auto``. ``num_workers`` is then
            the number of parallel processes, 0 for the whole cluster.
        processes_per_gpu: Number of processes that share a GPU of the cluster.
        table: Whether to store the features in a Lance table. The features in an existing file move
            to the table. An index in a table stays there even if this is False.
        approximate: Whether to store them in a table and create a vector index for any number of
            rows.
        windows: Division of every video into windows, so that search results are moments; None for
            whole videos. With windows, ``options.timeout`` limits the time for each frame.
        extensions: Extensions of the videos in a folder; None for all known video extensions.
        dataset: Registered class that lists the videos of a folder; None lists all of them.

    Raises:
        ValueError: If no video can be read, the index was built with another checkpoint, other
            settings or another folder, or another run is writing the index.
        RunError: If the network fails or the disk is full.
    """
    options = options or ViewOptions()
    listed = root if isinstance(root, LabelledVideos) else None
    folder, root = Path(folder), real_path(root.root if isinstance(root, LabelledVideos) else root)
    if listed is not None and (windows is not None or is_table(root)):
        problem = (
            "cannot be divided into windows" if windows else f"cannot come from {root}, a table"
        )
        raise ValueError(f"the files and segments listed in {listed.source} {problem}")
    states = _video_states(root, None if listed is None else listed.paths(), extensions, dataset)
    header = _header(model, root, options, windows, listed, dataset)
    job = EmbedJob(
        *(model, options, windows),
        settings={**header.to_dict(), "checkpoint": header.sha256},
        retry_failed=retry_failed,
        ray=ray,
        processes_per_gpu=processes_per_gpu,
    )
    # With windows, the reader applies the time limit to each frame, because a video may be long.
    workers = job_workers(options.num_workers, None if windows else options.timeout, ray)
    with RecordStore(folder / RECORDS, job.name) as records:
        # An index in a table stays in a table, even if the user does not repeat the option.
        name = TABLE if table or approximate or (folder / TABLE).exists() else FEATURES
        store = INDEX_STORES[name](folder / name)
        if rebuild:
            _remove_stores(folder)
            records.clear()
        known, whole = _read_known(folder, store, header, records, states)
        update = _Update(job, states, known, records)
        update.embed(workers, on_video)
        current = update.content()
        dropped = len(set(known) - set(states))
        _check_not_empty(root, current)
        if dropped or not whole or any(r is not known.get(p) for p, r in current.items()):
            # Remove the old description first, because it must never describe new features.
            (folder / DESCRIPTION).unlink(missing_ok=True)
            store.write(header, current)
            _remove_stores(folder, kept=store)
            store.describe(header, current)
            records.clear()
        store.make_vector_index(approximate)
    if listed is not None:
        _label(LabelList(label_file(folder, None)), listed)
    held = {path: r for path, r in current.items() if r.feature is not None}
    return IndexReport(
        videos=len(held),
        new=update.new,
        changed=update.changed,
        kept=len(current) - update.new - update.changed,
        dropped=dropped,
        failures=[(path, r.reason) for path, r in current.items() if r.feature is None],
        incomplete=[(path, r.reason) for path, r in held.items() if r.reason],
        windows=None if windows is None else len(store.open()),
    )
