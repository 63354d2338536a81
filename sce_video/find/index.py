"""An index of a folder of videos: built once, updated incrementally, read for search.

An index is a folder::

    features.npz     features, paths (relative to the indexed folder), sizes and times of the files,
                     and the settings; or features.lance, a table of the same content
    index.json       a description, for people and other programs
    records.sqlite   features embedded by a run that is not finished; empty after its end
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.labelled import LabelledVideos
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.sources import is_table, list_videos, scan_folder
from sce_video.datasets.tables.table import TableError, read_table
from sce_video.datasets.video_list import video_of
from sce_video.evaluation.extraction import (
    NetworkJob,
    explain_network_error,
    failure_of,
    time_limit,
)
from sce_video.find.label_list import LabelList, label_file
from sce_video.find.reading import (
    INDEX_STORES,
    RECORDS,
    find_store,
    index_mismatches,
    real_path,
)
from sce_video.find.reading import read_index as read_index  # for callers
from sce_video.find.store import DESCRIPTION, FEATURES, TABLE, FileRecord, IndexStore
from sce_video.inference.embed import VideoFiles, ViewOptions, count_clips
from sce_video.inference.model import VideoModel, build_model
from sce_video.inference.network_input import embed_sample
from sce_video.inference.windows import embed_windows
from sce_video.jobs import (
    Facts,
    Item,
    ItemError,
    Record,
    RecordStore,
    RunError,
    State,
    Workers,
    file_state,
    is_current,
    run_job,
)

#: Columns of a table of videos that tell whether a row has changed.
_STATE = ("path", "size", "source_mtime_ns")


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
        incomplete: (path, reason) of the files that are damaged, or of which some windows cannot
            be decoded.
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
    """Remove what an index is kept in, but for ``kept``; ValueError if it is not of an index."""
    for name, kind in INDEX_STORES.items():
        if (folder / name).exists() and (kept is None or kept.file.name != name):
            kind(folder / name).remove()


class EmbedJob(NetworkJob):
    """Gives the feature of one video, or of each of its windows.

    The processes build the network from its settings and its checkpoint. They compute with one
    thread each on a CPU, so a feature does not depend on their number.

    Arguments are those of :func:`build_index`; a Ray cluster gives its processes their GPUs.
    """

    name = "embed"

    def __init__(
        self,
        model: VideoModel,
        root: str,
        options: ViewOptions,
        *,
        retry_failed: bool,
        ray: bool,
        processes_per_gpu: int,
        windows: Windows | None,
        source: str | None = None,
    ) -> None:
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        device = model.device.type if ray else str(model.device)
        super().__init__(model, model.encoder.modules(), device)
        self.settings = {
            "root": root,
            "checkpoint": model.checkpoint_sha256,
            "settings": {
                "model": model.settings.to_dict(),
                "num_clips": count_clips(model, options),
                "num_crops": options.num_crops,
                **({} if windows is None else {"windows": windows.to_dict()}),
                **({} if source is None else {"list": source}),
            },
        }
        self.gpus = 1 / processes_per_gpu if ray and model.device.type == "cuda" else 0
        self.root, self.windows, self.retry_failed = root, windows, retry_failed
        self._options, self._checkpoint, self._settings = options, model.checkpoint, model.settings

    def item(self, path: str, state: tuple[int, int]) -> Item:
        """The item of a file with size and modification time, negative if there is no file."""
        size, mtime = state
        return Item(path, {"size": size, "mtime_ns": mtime} if size >= 0 else None)

    def build(self, device: torch.device) -> VideoModel:
        """The network, which has the weights that the run began with."""
        model = build_model(self._settings, self._checkpoint, device)
        if model.checkpoint_sha256 != self.settings["checkpoint"]:
            raise RunError(f"{self._checkpoint} has changed since the run began")
        return model

    def setup(self) -> None:
        """Build the network, and what reads files for it."""
        super().setup()
        self._files = VideoFiles(self.network, self._options)

    def file(self, path: str) -> str:
        """The file, row or segment of a path of the index, which a list may give as absolute."""
        return os.path.join(self.root, path)

    def process(self, item: Item) -> Facts:
        """The feature as data; of windows their features behind their spans."""
        path, options = self.file(item.key), self._options
        if self.windows is None:
            sample = self._files.read(path)
            if sample.get("frames") is None:
                raise ItemError("bad", "; ".join(reason for _, reason in sample["failures"]))
            row = self.run_network(lambda: embed_sample(self.network, sample, options, path), path)
            damaged = sample["damaged"]
            reason = f"{damaged} of the frames used are damaged" if damaged else ""
            return Facts({"reason": reason}, row.tobytes())
        # Decoding and the network take turns, so their errors are told apart by type.
        try:
            found = embed_windows(self.network, path, self.windows, options)
        except (VideoDecodeError, TableError) as error:
            raise ItemError("bad", getattr(error, "reason", str(error))) from error
        except MemoryError as error:
            raise ItemError("bad", f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise RunError(explain_network_error(error, path)) from error
        facts = {"windows": len(found), "reason": found.reason}
        return Facts(facts, found.spans.tobytes() + found.features.tobytes())

    def source(self, item: Item) -> State:
        """Size and modification time; rows of a table do not change during a run."""
        return item.source if is_table(self.root) else file_state(video_of(self.file(item.key)))

    def holds(self, item: Item, record: Record) -> bool:
        """Whether the file has a feature, or could not be decoded and is not to be tried again."""
        return record.done or not self.retry_failed


def _embedded(record: Record) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Feature (D,) of a finished record, or (W, D) and spans (W, 2); what is damaged or missing."""
    assert record.data is not None
    count = record.facts.get("windows")
    if count is None:
        feature = np.frombuffer(record.data, dtype=np.float32)
        return feature, None, record.facts.get("reason", "")
    spans = np.frombuffer(record.data, dtype=np.float64, count=2 * count).reshape(count, 2)
    features = np.frombuffer(record.data, dtype=np.float32, offset=spans.nbytes)
    return features.reshape(count, -1), spans, record.facts["reason"]


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
    job: EmbedJob,
    states: dict[str, tuple[int, int]],
    known: dict[str, FileRecord],
    records: RecordStore,
) -> dict[str, FileRecord]:
    """What the index holds from now on, by path."""

    def feature(key: str) -> np.ndarray:
        """A feature, which stays in the records until it is written."""
        record = records.get(key)
        assert record is not None
        return _embedded(record)[0]

    current: dict[str, FileRecord] = {}
    for path, state in states.items():
        record = records.get(path)
        if record is not None and record.source == job.item(path, state).source:
            if record.done:
                _, spans, reason = _embedded(record)
                current[path] = FileRecord(*state, partial(feature, path), reason, spans)
            else:
                current[path] = FileRecord(*state, None, failure_of(record))
        elif path in known and known[path].same_file(state):
            current[path] = known[path]
        else:  # embedded by an interrupted run, and gone since
            current[path] = FileRecord(*state, None, "there is no such file")
    return current


def _check_not_empty(root: str, current: Mapping[str, FileRecord]) -> None:
    """Raise ValueError if no video has a feature: such an index finds nothing, and one that exists
    would lose all its rows, as when a disk is not mounted.
    """
    bad = [(path, r.reason) for path, r in current.items() if r.feature is None]
    if len(bad) == len(current):
        raise ValueError(
            f"none of {len(bad)} videos of {root} could be read, so no index was written. Check "
            f"the first, {bad[0][0]}: {bad[0][1]}. --retry-failed tries unchanged files again"
        )


def _read_known(
    folder: Path,
    store: IndexStore,
    header: dict[str, Any],
    unfinished: RecordStore,
    states: Mapping[str, tuple[int, int]],
) -> tuple[dict[str, FileRecord], bool]:
    """Records of the index, and whether it is whole: no interrupted run has left any unfinished.

    The list that an index was made from may have been moved or copied: it is the same if it names
    the same rows, or half of them and the old one is gone.
    """

    def check_same(stored: dict[str, Any], rows: Collection[str] = ()) -> None:
        differences = []
        old, new = (made["settings"].get("list") for made in (stored, header))
        gone = isinstance(old, str) and not os.path.exists(old)
        same = 2 * len(states.keys() & rows) >= len(rows) if gone else states.keys() == {*rows}
        if old and new and same:
            stored = {**stored, "settings": {**stored["settings"], "list": new}}
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
    whole = not begun and store.file.exists() and (folder / DESCRIPTION).is_file()
    source = store if store.file.exists() else find_store(folder)
    if source is None:
        return {}, False
    stored, known = source.read()
    check_same(stored, known)
    return known, whole and stored == header


def _label(labels: LabelList, listed: LabelledVideos) -> None:
    """Give listed videos their labels, but for those that have one."""
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
    root: str, listed: Sequence[str] | None, extensions: Sequence[str] | None
) -> dict[str, tuple[int, int]]:
    """(size, modification time in ns) of all videos by relative path, sorted; (-1, -1) of none.

    None lists the folder or table. Of a segment they are those of its file, of a row of a table the
    bytes of its packets and the time of the file that it was made from.
    """
    if is_table(root) and listed is None:
        content = read_table(root).call("read", list(_STATE))
        columns = (content[name].to_pylist() for name in _STATE)
        # Of several rows of a path the newest is last.
        found = {path: (size, time) for path, size, time in zip(*columns, strict=True)}
        videos = list_videos(root)  # without rows of failed imports
        return {path: found[path] for path in (videos.path(i) for i in range(len(videos)))}
    if listed is None:
        videos = scan_folder(root, extensions)
        listed = [videos.path(i) for i in range(len(videos))]
    states = {}
    for path in sorted(set(listed)):
        try:
            status = os.stat(video_of(os.path.join(root, path)))
        except OSError:  # a dangling link, or removed since; decoding reports the reason
            states[path] = (-1, -1)
        else:
            states[path] = (status.st_size, status.st_mtime_ns)
    return states


def build_index(
    model: VideoModel,
    root: str | os.PathLike | LabelledVideos,
    folder: str | os.PathLike,
    options: ViewOptions | None = None,
    *,
    rebuild: bool = False,
    retry_failed: bool = False,
    on_video: Callable[[int, int, str], None] | None = None,
    ray: str | None = None,
    processes_per_gpu: int = 4,
    table: bool = False,
    approximate: bool = False,
    windows: Windows | None = None,
    extensions: Sequence[str] | None = None,
) -> IndexReport:
    """Build an index of a folder or a table of videos, or update it.

    Only files that are new or changed (in size or modification time) are decoded; files that could
    not be decoded are not tried again until they change. Every feature is saved at once, so an
    interrupted run resumes where it stopped.

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        root: The folder of videos, sub-folders are read too; a table of videos; or listed videos,
            or segments of them, whose labels become those of the index (``labels.txt``), where it
            has none of them yet.
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
        extensions: Extensions of the videos in a folder; None for those of all known videos.

    Raises:
        ValueError: no video in ``root``, or none that can be read; the index was built with another
            checkpoint, with other settings or from another folder; another run is writing it.
        RunError: the network fails, or the disk is full.
    """
    options = options or ViewOptions()
    listed = root if isinstance(root, LabelledVideos) else None
    folder, root = Path(folder), real_path(root.root if isinstance(root, LabelledVideos) else root)
    if listed is not None and (windows is not None or is_table(root)):
        divided = "windows divide whole videos" if windows else f"{root} is a table"
        raise ValueError(f"{listed.source} lists files or segments of files, and {divided}")
    states = _video_states(root, None if listed is None else listed.paths(), extensions)
    job = EmbedJob(
        model,
        root,
        options,
        retry_failed=retry_failed,
        ray=ray is not None,
        processes_per_gpu=processes_per_gpu,
        windows=windows,
        source=None if listed is None else os.path.realpath(listed.source),
    )
    count = None if ray is not None and not options.num_workers else options.num_workers
    # A long video takes long; its reader has the time limit then, for each frame.
    seconds = time_limit(options.timeout if windows is None else None)
    workers = Workers(count, seconds, ray)
    checkpoint = {"path": model.checkpoint, "sha256": model.checkpoint_sha256}
    header = {**job.settings, "checkpoint": checkpoint}
    with RecordStore(folder / RECORDS, job.name) as records:
        # An index that is kept in a table stays there.
        name = TABLE if table or approximate or (folder / TABLE).exists() else FEATURES
        store = INDEX_STORES[name](folder / name)
        if rebuild:
            _remove_stores(folder)
            records.clear()
        known, whole = _read_known(folder, store, header, records, states)
        new, changed = _embed_due(job, states, known, records, workers, on_video)
        current = _current_records(job, states, known, records)
        dropped = len(set(known) - set(states))
        _check_not_empty(root, current)
        if dropped or not whole or any(r is not known.get(p) for p, r in current.items()):
            # The old description goes first: it must never be there beside new features.
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
        new=new,
        changed=changed,
        kept=len(current) - new - changed,
        dropped=dropped,
        failures=[(path, r.reason) for path, r in current.items() if r.feature is None],
        incomplete=[(path, r.reason) for path, r in held.items() if r.reason],
        windows=None if windows is None else len(store.open()),
    )
