"""An index of a folder of videos: built once, updated incrementally, read for search.

An index is a folder::

    features.npz   features, paths (relative to the indexed folder), sizes and times of the files,
                   and the settings
    index.json     everything but the features, for people and other programs
    parts/         features embedded by a run that is not finished; removed at its end

Only ``features.npz`` is read back, so an interrupted run cannot leave contradictory files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.apis.embed import EmbedOptions, count_clips, iterate_embeddings
from sce_video.apis.index_files import (
    DESCRIPTION,
    FEATURES,
    FileRecord,
    StoredRecords,
    locked_index,
    new_part_file,
    part_files,
    read_records,
    read_stored,
    remove_index,
    remove_parts,
    write_description,
    write_records,
)
from sce_video.apis.model import VideoModel
from sce_video.datasets import scan_folder

#: A part is written after this many videos or seconds.
SAVE_EVERY, _SAVE_SECONDS = 200, 60.0


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """An index for search; made by :func:`read_index`.

    Its arrays are memory-mapped, sorted by path, so an index of millions of videos opens at once.

    Attributes:
        folder: Folder of the index.
        stored: Paths, features, sizes and times of the files, and the settings of the index.
    """

    folder: Path
    stored: StoredRecords

    def __len__(self) -> int:
        return len(self.stored.features)

    @property
    def features(self) -> np.ndarray:
        """(N, D) float32, read-only, memory-mapped if large."""
        features = self.stored.features.view()
        features.flags.writeable = False
        return features

    @cached_property
    def paths(self) -> list[str]:
        """N paths relative to ``root``; the whole list, see :meth:`path` for one."""
        return self.stored.paths.tolist()

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
        return [(path, record.reason) for path, record in self.stored.failed.items()]

    @property
    def options(self) -> EmbedOptions:
        """Clips and crops with which its videos were embedded."""
        return EmbedOptions(
            num_clips=self.settings["num_clips"], num_crops=self.settings["num_crops"]
        )

    def path(self, row: int) -> str:
        """Path of a row, relative to ``root``."""
        return str(self.stored.paths[row])

    def row(self, path: str) -> int | None:
        """Row of a path relative to ``root``; None if it is not in the index."""
        paths = self.stored.paths
        if len(path) > paths.dtype.itemsize // 4:  # longer than all paths of the index
            return None
        row = int(np.searchsorted(paths, path))
        return row if row < len(paths) and paths[row] == path else None

    def file(self, path: str) -> str:
        """Absolute path of a video of the index."""
        return os.path.join(self.root, path)


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
    """

    videos: int
    new: int
    changed: int
    kept: int
    dropped: int
    failures: list[tuple[str, str]] = field(default_factory=list)


def build_index(
    model: VideoModel,
    root: str | os.PathLike,
    folder: str | os.PathLike,
    options: EmbedOptions | None = None,
    *,
    rebuild: bool = False,
    retry_failed: bool = False,
    save_every: int = SAVE_EVERY,
    on_video: Callable[[int, int, str], None] | None = None,
) -> IndexReport:
    """Build an index of a folder of videos, or update it.

    Only files that are new or changed (in size or modification time) are decoded; files that could
    not be decoded are not tried again until they change. Features are saved every ``save_every``
    videos and every minute; an interrupted run resumes from there.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        root: The folder of videos; sub-folders are read too.
        folder: The index; created if it does not exist.
        options: See :class:`~sce_video.apis.EmbedOptions`.
        rebuild: Discard the existing index and embed all files.
        retry_failed: Try files again that could not be decoded, even if unchanged.
        save_every: Videos between two saves.
        on_video: Called after every video with the number of finished videos, their total, and why
            the video could not be decoded (empty if it could).

    Raises:
        ValueError: no video in ``root``; the index was built with another checkpoint, with other
            settings or from another folder; another run is writing it.
    """
    options = options or EmbedOptions()
    if save_every < 1:
        raise ValueError(f"save_every must be at least 1, got {save_every}")
    folder, root = Path(folder), os.path.realpath(root)
    header = _header(model, root, options)
    states = _scan(root)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_index(folder):
        if rebuild:
            remove_index(folder)
        known, complete = _read_known(folder, header)
        current = {
            path: known[path]
            for path, state in states.items()
            if path in known
            and known[path].same_file(state)
            and not (retry_failed and known[path].feature is None)
        }
        todo = [path for path in states if path not in current]
        with _PartWriter(folder, header, save_every) as writer:
            files = [os.path.join(root, path) for path in todo]
            for result in iterate_embeddings(model, files, options):
                path = todo[result.index]
                writer.add(path, FileRecord(*states[path], result.feature, result.reason))
                if on_video is not None:
                    on_video(result.index + 1, len(todo), result.reason)
        records = {path: current.get(path) or writer.records[path] for path in states}
        dropped = len(set(known) - set(states))
        if todo or dropped or not complete:
            # The old description goes first: it must never be there beside new features.
            (folder / DESCRIPTION).unlink(missing_ok=True)
            write_records(folder / FEATURES, header, records)
            write_description(folder, header, records)
            remove_parts(folder)
    changed = sum(path in known for path in todo)
    failures = [(path, r.reason) for path, r in records.items() if r.feature is None]
    return IndexReport(
        videos=len(records) - len(failures),
        new=len(todo) - changed,
        changed=changed,
        kept=len(current),
        dropped=dropped,
        failures=failures,
    )


def read_index(folder: str | os.PathLike) -> VideoIndex:
    """Read an index.

    Raises:
        FileNotFoundError: there is none, or its first run has not finished.
        ValueError: ``features.npz`` is not the file of an index.
    """
    folder = Path(folder)
    file = folder / FEATURES
    if not file.is_file():
        unfinished = " (an interrupted run: run it again to resume)" if part_files(folder) else ""
        raise FileNotFoundError(f"there is no index in {folder}: no {FEATURES}{unfinished}")
    return VideoIndex(folder, read_stored(file))


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


def _header(model: VideoModel, root: str, options: EmbedOptions) -> dict[str, Any]:
    """What all features of an index have in common."""
    return {
        "root": root,
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "settings": {
            "model": model.settings.to_dict(),
            "num_clips": count_clips(model, options),
            "num_crops": options.num_crops,
        },
    }


def _scan(root: str) -> dict[str, tuple[int, int]]:
    """(size, modification time) of all videos of a folder by relative path, sorted."""
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


def _read_known(folder: Path, header: dict[str, Any]) -> tuple[dict[str, FileRecord], bool]:
    """Records of the index and of the parts of an interrupted run, and whether all is finished.

    Raises:
        ValueError: they were not made with this ``header``.
    """
    parts = part_files(folder)
    known: dict[str, FileRecord] = {}
    complete = not parts and all((folder / name).is_file() for name in (FEATURES, DESCRIPTION))
    for file in [folder / FEATURES, *parts]:
        if file.is_file():
            stored, records = read_records(file)
            _check_same(folder, stored, header)
            known.update(records)
            complete = complete and stored == header
    return known, complete


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


class _PartWriter:
    """Collects new records and writes them in parts; the last one also if the run is interrupted.

    Args:
        folder: Folder of the index.
        header: Header of every part.
        save_every: Records of a part.
    """

    def __init__(self, folder: Path, header: dict[str, Any], save_every: int) -> None:
        self.records: dict[str, FileRecord] = {}
        self._folder = folder
        self._header = header
        self._save_every = save_every
        self._unsaved: dict[str, FileRecord] = {}
        self._saved = time.monotonic()

    def add(self, path: str, record: FileRecord) -> None:
        """Add the record of one file."""
        self.records[path] = self._unsaved[path] = record
        late = time.monotonic() - self._saved > _SAVE_SECONDS
        if late or len(self._unsaved) >= self._save_every:
            self.save()

    def save(self) -> None:
        """Write the records that are not yet on disk."""
        if self._unsaved:
            write_records(new_part_file(self._folder), self._header, self._unsaved)
            self._unsaved = {}
        self._saved = time.monotonic()

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.save()
