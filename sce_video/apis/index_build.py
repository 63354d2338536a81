"""The steps of building an index: what is due, what is written, what may not be mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.apis.embed_job import EmbedJob, feature_of, windows_of
from sce_video.apis.index_files import DESCRIPTION, FileRecord, write_description
from sce_video.apis.index_store import IndexStore, NpzStore, find_store, remove_stores
from sce_video.apis.model import VideoModel
from sce_video.evaluation.job_processes import failure_of
from sce_video.jobs import Item, Record, RecordStore, Workers, is_current, run_job

#: Records of unfinished runs in the folder of an index.
RECORDS = "records*.sqlite"


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
        missing: Files of other shards that are still to be embedded; while there are some the index
            is not written, and the other numbers are those of the shard.
    """

    videos: int
    new: int
    changed: int
    kept: int
    dropped: int
    failures: list[tuple[str, str]] = field(default_factory=list)
    incomplete: list[tuple[str, str]] = field(default_factory=list)
    windows: int | None = None
    missing: int = 0


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
    """Write the index, unless a file has neither a current record nor a current row.

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
    if len(current) < len(states):
        return replace(run, missing=len(states) - len(current))
    dropped = len(set(known) - set(states))
    if embedded or dropped or not complete:
        # The old description goes first: it must never be there beside new features.
        (folder / DESCRIPTION).unlink(missing_ok=True)
        store.write(header, current)
        remove_stores(folder, kept=store)
        write_description(folder, header, current, isinstance(store, NpzStore))
        records.clear()
        for file in folder.glob(RECORDS):  # of shards, all of which are in the index now
            if file != records.path:
                file.unlink()
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
