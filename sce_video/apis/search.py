"""Search by example: an index of a folder of videos, and the videos most like a given one.

An index is a folder::

    features.npz   features, paths (relative to the indexed folder) and, as JSON, all the rest
    index.json     the rest once more, for people and other programs
    parts/         what a run has embedded so far; gone when it is done

``features.npz`` alone is read, so no crash can leave two files that contradict each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.apis.embed import (
    EmbedOptions,
    count_clips,
    embed,
    iterate_embeddings,
)
from sce_video.apis.model import VideoModel, build_model, load_model
from sce_video.apis.model_settings import ModelSettings
from sce_video.datasets import scan_folder
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation import Rows, load_features, nearest_neighbours, save_features
from sce_video.evaluation.functional.neighbours import feature_mean
from sce_video.utils.atomic_file import write_json

FEATURES, DESCRIPTION, PARTS, _LOCK = "features.npz", "index.json", "parts", "lock"
_VERSION = 1
#: A part is written after so many videos, or so many seconds.
SAVE_EVERY, _SAVE_SECONDS = 200, 60.0


@dataclass(frozen=True)
class FileRecord:
    """What is known of an indexed file.

    Attributes:
        size: Bytes.
        mtime_ns: Time of its last change, nanoseconds.
        feature: (D,) float32; None where the file cannot be decoded.
        reason: Why not.
    """

    size: int
    mtime_ns: int
    feature: np.ndarray | None
    reason: str = ""

    def same_file(self, state: tuple[int, int]) -> bool:
        """Whether size and time of change are still these."""
        return (self.size, self.mtime_ns) == state


@dataclass(frozen=True)
class VideoIndex:
    """An index that has been read.

    Attributes:
        folder: Where it lies.
        root: The indexed folder, absolute.
        checkpoint: ``path`` and ``sha256`` of the weights.
        settings: ``model`` (see :class:`~sce_video.apis.model_settings.ModelSettings`),
            ``num_clips`` and ``num_crops``.
        records: Path relative to ``root`` to what is known of the file, sorted by path.
        paths: Those that have a feature, in the order of ``features``.
        features: (N, D) float32.
    """

    folder: Path
    root: str
    checkpoint: dict[str, str]
    settings: dict[str, Any]
    records: dict[str, FileRecord]
    paths: list[str]
    features: torch.Tensor

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(path, reason) of the files that cannot be decoded."""
        return [(path, r.reason) for path, r in self.records.items() if r.feature is None]

    @property
    def options(self) -> EmbedOptions:
        """How its videos were embedded."""
        return EmbedOptions(
            num_clips=self.settings["num_clips"], num_crops=self.settings["num_crops"]
        )

    def file(self, path: str) -> str:
        """Where a video of the index should lie."""
        return os.path.join(self.root, path)


@dataclass(frozen=True)
class IndexReport:
    """What a run of :func:`build_index` did.

    Attributes:
        videos: In the index now.
        new: Embedded for the first time.
        changed: Embedded again, since size or time of change differ.
        kept: Taken over as they were.
        dropped: No longer in the folder.
        failures: (path, reason) of all files that cannot be decoded.
    """

    videos: int
    new: int
    changed: int
    kept: int
    dropped: int
    failures: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Match:
    """One result of a query.

    Attributes:
        rank: From 1.
        path: Relative to the indexed folder.
        similarity: Cosine, -1 to 1.
        file: Where the video should lie.
    """

    rank: int
    path: str
    similarity: float
    file: str

    @property
    def distance(self) -> float:
        """1 - similarity, 0 to 2."""
        return 1.0 - self.similarity


# -- building ------------------------------------------------------------------------------------


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
    """Make an index of a folder of videos, or bring it up to date.

    Only files that are new or changed (in size or time of change) are decoded; files that could
    not be decoded before are not tried again until they change. What has been embedded is saved
    every ``save_every`` videos and every minute; a run that was killed goes on from there.

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        root: The folder; sub-folders are read too.
        folder: The index, made if it is not there.
        options: See :class:`~sce_video.apis.EmbedOptions`.
        rebuild: Forget what the index holds.
        retry_failed: Try files again that could not be decoded, though they have not changed.
        save_every: Videos between two saves.
        on_video: Called after every video: how many are done, of how many, and why it could not be
            decoded (empty if it could).

    Raises:
        ValueError: no video in ``root``; the index was made with another checkpoint, other
            settings or of another folder; another run is at work on it.
    """
    options = options or EmbedOptions()
    if save_every < 1:
        raise ValueError(f"save_every must be at least 1, got {save_every}")
    folder, root = Path(folder), os.path.realpath(root)
    header = {
        "root": root,
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "settings": {
            "model": model.settings.to_dict(),
            "num_clips": count_clips(model, options),
            "num_crops": options.num_crops,
        },
    }
    states = _scan(root)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if rebuild:
            _forget(folder)
        known, complete = _known(folder, header)
        fresh = {
            path: known[path]
            for path, state in states.items()
            if path in known
            and known[path].same_file(state)
            and not (retry_failed and known[path].feature is None)
        }
        todo = [path for path in states if path not in fresh]
        with _PartWriter(folder, header, save_every) as writer:
            files = [os.path.join(root, path) for path in todo]
            for result in iterate_embeddings(model, files, options):
                path = todo[result.index]
                writer.add(path, FileRecord(*states[path], result.feature, result.reason))
                if on_video is not None:
                    on_video(result.index + 1, len(todo), result.reason)
        records = {path: fresh.get(path) or writer.records[path] for path in states}
        dropped = len(set(known) - set(states))
        if todo or dropped or not complete:
            (folder / DESCRIPTION).unlink(missing_ok=True)  # never an old one beside new features
            _write(folder / FEATURES, header, records)
            _write_description(folder, header, records)
            _remove_parts(folder)
    changed = sum(path in known for path in todo)
    failures = [(path, r.reason) for path, r in records.items() if r.feature is None]
    return IndexReport(
        videos=len(records) - len(failures),
        new=len(todo) - changed,
        changed=changed,
        kept=len(fresh),
        dropped=dropped,
        failures=failures,
    )


def _scan(root: str) -> dict[str, tuple[int, int]]:
    """Relative path to (size, time of change) of all videos of a folder, sorted."""
    videos = scan_folder(root)
    states = {}
    for path in sorted(videos.path(i) for i in range(len(videos))):
        try:
            status = os.stat(os.path.join(root, path))
        except OSError:  # a dangling link, or gone again: decoding will say so
            states[path] = (-1, -1)
        else:
            states[path] = (status.st_size, status.st_mtime_ns)
    return states


def _known(folder: Path, header: dict[str, Any]) -> tuple[dict[str, FileRecord], bool]:
    """What the index and the parts of an unfinished run hold, and whether the index is complete.

    Raises:
        ValueError: they do not go with ``header``.
    """
    parts = _parts(folder)
    known: dict[str, FileRecord] = {}
    complete = not parts and all((folder / name).is_file() for name in (FEATURES, DESCRIPTION))
    for file in [folder / FEATURES, *parts]:
        if file.is_file():
            stored, records, _ = _read(file)
            _check_same(folder, stored, header)
            known.update(records)
            complete = complete and stored == header
    return known, complete


def _check_same(folder: Path, stored: dict[str, Any], header: dict[str, Any]) -> None:
    faults = []
    if stored["root"] != header["root"]:
        faults.append(f"it is of the folder {stored['root']}, not {header['root']}")
    old, new = stored["checkpoint"], header["checkpoint"]
    if old["sha256"] != new["sha256"]:
        faults.append(
            f"it was made with {old['path']} (sha256 {old['sha256'][:12]}), not with "
            f"{new['path']} ({new['sha256'][:12]})"
        )
    faults += _differences(stored["settings"], header["settings"])
    if faults:
        raise ValueError(
            f"the index {folder} does not go with this call: {'; '.join(faults)}. Use another "
            "folder for the index, or make this one anew (--rebuild, rebuild=True)"
        )


def _differences(stored: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """``num_clips is 4 in the index, now 2`` for every setting that differs."""
    faults = []
    for name in sorted(set(stored) | set(now)):
        old, new = stored.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            faults += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            faults.append(f"{prefix}{name} is {old} in the index, now {new}")
    return faults


class _PartWriter:
    """Keeps new records and saves them in parts; the last one at the end, however a run ends."""

    def __init__(self, folder: Path, header: dict[str, Any], save_every: int) -> None:
        self.records: dict[str, FileRecord] = {}
        self._folder = folder
        self._header = header
        self._save_every = save_every
        self._unsaved: dict[str, FileRecord] = {}
        self._saved = time.monotonic()
        self._number = max((_part_number(file) for file in _parts(folder)), default=0)

    def add(self, path: str, record: FileRecord) -> None:
        """One more file is done."""
        self.records[path] = self._unsaved[path] = record
        late = time.monotonic() - self._saved > _SAVE_SECONDS
        if late or len(self._unsaved) >= self._save_every:
            self.save()

    def save(self) -> None:
        """Write what has not been written."""
        if self._unsaved:
            self._number += 1
            place = self._folder / PARTS / f"part_{self._number:06}.npz"
            _write(place, self._header, self._unsaved)
            self._unsaved = {}
        self._saved = time.monotonic()

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.save()


# -- files ---------------------------------------------------------------------------------------


def read_index(folder: str | os.PathLike) -> VideoIndex:
    """Read an index.

    Raises:
        FileNotFoundError: there is none, or its first run is not done.
        ValueError: a file in its place is none.
    """
    folder = Path(folder)
    file = folder / FEATURES
    if not file.is_file():
        unfinished = " (a run has begun one: run it again, it goes on)" if _parts(folder) else ""
        raise FileNotFoundError(f"there is no index in {folder}: no {FEATURES}{unfinished}")
    header, records, stored = _read(file)
    return VideoIndex(
        folder=folder,
        root=header["root"],
        checkpoint=header["checkpoint"],
        settings=header["settings"],
        records=records,
        paths=stored.paths,
        features=stored.features,
    )


def _write(file: Path, header: dict[str, Any], records: dict[str, FileRecord]) -> None:
    """A feature file; its protocol holds what is known of every file beside the feature."""
    good = {path: r for path, r in records.items() if r.feature is not None}
    rows = [r.feature for r in good.values() if r.feature is not None]
    matrix = np.stack(rows) if rows else np.empty((0, 1), dtype=np.float32)
    settings = header["settings"]
    protocol = {
        "checkpoint": header["checkpoint"],
        "clips": settings["num_clips"],
        "crops": settings["num_crops"],
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
        "index": {
            "version": _VERSION,
            **header,
            "files": [[r.size, r.mtime_ns] for r in good.values()],
            "failed": [
                [path, r.size, r.mtime_ns, r.reason]
                for path, r in records.items()
                if r.feature is None
            ],
        },
    }
    features = Rows(
        values=torch.from_numpy(matrix),
        labels=torch.full((len(good),), -1),
        indices=torch.arange(len(good)),
        paths=list(good),
        failures=[(path, r.reason) for path, r in records.items() if r.feature is None],
        num_views=settings["num_clips"] * settings["num_crops"],
    )
    save_features(file, features, protocol)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, FileRecord], Rows]:
    """Header, records and features of a file that :func:`_write` wrote."""
    stored, protocol = load_features(file)
    try:
        entry = protocol["index"]
        if entry["version"] != _VERSION:
            raise ValueError(f"version {entry['version']} is not known, only {_VERSION}")
        header = {
            "root": str(entry["root"]),
            "checkpoint": {name: str(entry["checkpoint"][name]) for name in ("path", "sha256")},
            "settings": dict(entry["settings"]),
        }
        rows = stored.features.numpy()
        records = {
            path: FileRecord(int(size), int(mtime), rows[i])
            for i, (path, (size, mtime)) in enumerate(
                zip(stored.paths, entry["files"], strict=True)
            )
        }
        for path, size, mtime, reason in entry["failed"]:
            records[str(path)] = FileRecord(int(size), int(mtime), None, str(reason))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is not the file of an index: {error!r}") from error
    return header, dict(sorted(records.items())), stored


def _write_description(
    folder: Path, header: dict[str, Any], records: dict[str, FileRecord]
) -> None:
    good = [path for path, record in records.items() if record.feature is not None]
    write_json(
        folder / DESCRIPTION,
        {
            "version": _VERSION,
            **header,
            "decoder": f"av {importlib.metadata.version('av')}",
            "videos": len(good),
            "files": [
                {"path": path, "size": records[path].size, "mtime_ns": records[path].mtime_ns}
                for path in good
            ],
            "failures": [
                {"path": path, "size": r.size, "mtime_ns": r.mtime_ns, "reason": r.reason}
                for path, r in records.items()
                if r.feature is None
            ],
        },
    )


def _forget(folder: Path) -> None:
    """Remove an index; ValueError if a file in its place is none."""
    file = folder / FEATURES
    if file.is_file():
        _read(file)
        file.unlink()
    _remove_parts(folder)


def _part_number(file: Path) -> int:
    number = file.stem.removeprefix("part_")
    return int(number) if number.isdecimal() else 0


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / PARTS).glob("part_*.npz"), key=_part_number)


def _remove_parts(folder: Path) -> None:
    for file in _parts(folder):
        file.unlink()
    with contextlib.suppress(OSError):
        (folder / PARTS).rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time; the system lets go of the lock when a run is killed."""
    with open(folder / _LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another run is at work on the index {folder}") from None
        yield


# -- searching -----------------------------------------------------------------------------------


def model_of_index(
    index: VideoIndex,
    checkpoint: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    device: str | torch.device | None = None,
) -> VideoModel:
    """The network an index was made with.

    It is built from the settings in the index, which are checked as untrusted data.

    Args:
        index: From :func:`read_index`.
        checkpoint: Where the checkpoint lies now; None is where it lay.
        config: Config file, for a network of one's own that only its ``custom_imports`` make known.
        device: As in :func:`~sce_video.apis.load_model`.

    Raises:
        FileNotFoundError: the checkpoint is not there.
        ValueError: it is another one than the index was made with.
    """
    path = index.checkpoint["path"] if checkpoint is None else os.fspath(checkpoint)
    if not os.path.isfile(path):
        advice = ": give the place where it lies now (--checkpoint)" if checkpoint is None else ""
        raise FileNotFoundError(
            f"the checkpoint of the index {index.folder} is not at {path}{advice}"
        )
    check_checkpoint(index, path)
    if config is None:
        settings = ModelSettings.from_dict(index.settings.get("model", {}))
        return build_model(settings, path, device)
    model = load_model(path, Path(config), device)
    faults = _differences(index.settings["model"], model.settings.to_dict())
    if faults:
        raise ValueError(f"{config} does not go with the index {index.folder}: {'; '.join(faults)}")
    return model


def check_checkpoint(index: VideoIndex, path: str | os.PathLike) -> None:
    """Raise ValueError unless a file is the checkpoint an index was made with."""
    digest = file_sha256(os.fspath(path))
    if digest != index.checkpoint["sha256"]:
        raise ValueError(
            f"{os.fspath(path)} (sha256 {digest[:12]}) is not the checkpoint that the index "
            f"{index.folder} was made with ({index.checkpoint['sha256'][:12]}, "
            f"{index.checkpoint['path']}): give that file (--checkpoint), or make the index anew"
        )


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """The rows of an index that are this very file, by whatever path or link it is reached."""
    try:
        status = os.stat(video)
    except OSError:
        return []
    names = {
        os.path.relpath(os.path.abspath(video), index.root),
        os.path.relpath(os.path.realpath(video), index.root),
    }
    rows = []
    for row, path in enumerate(index.paths):
        if path in names:
            rows.append(row)
        elif index.records[path].size == status.st_size:
            with contextlib.suppress(OSError):
                if os.path.samestat(status, os.stat(index.file(path))):
                    rows.append(row)
    return rows


def query_feature(
    index: VideoIndex, video: str | os.PathLike, model: Callable[[], VideoModel]
) -> np.ndarray:
    """The feature (D,) of a video: the stored one of an indexed file that has not changed.

    Args:
        index: From :func:`read_index`.
        video: The file.
        model: Called for the network where the video has to be embedded.

    Raises:
        FileNotFoundError: no such file.
        VideoDecodeError: it cannot be decoded.
    """
    if not os.path.exists(video):
        raise FileNotFoundError(f"no video at {os.fspath(video)}")
    status = os.stat(video)
    for row in rows_of_file(index, video):
        if index.records[index.paths[row]].same_file((status.st_size, status.st_mtime_ns)):
            return index.features[row].numpy()
    options = index.options
    return embed(model(), video, num_clips=options.num_clips, num_crops=options.num_crops)[0]


def query_index(
    index: VideoIndex,
    feature: np.ndarray,
    k: int = 10,
    *,
    leave_out: list[int] | None = None,
    centred: bool = False,
) -> list[Match]:
    """The videos of an index that are most like a feature, the most similar first.

    Args:
        index: From :func:`read_index`.
        feature: (D,), from the network of the index.
        k: Results wanted; a number above what there is gives all.
        leave_out: Rows that are no result, see :func:`rows_of_file`.
        centred: Take the mean of the index off all features first. It spreads out similarities
            that all lie near 1.

    Raises:
        ValueError: the index is empty, sizes differ, ``k`` is below 1.
    """
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} holds no video that could be decoded")
    query = torch.from_numpy(np.asarray(feature, dtype=np.float32)).reshape(1, -1)
    own = torch.zeros(len(index), dtype=torch.long)
    own[torch.tensor(leave_out or [], dtype=torch.long)] = 1
    mean = feature_mean(index.features) if centred else None
    similarities, rows = nearest_neighbours(
        query,
        index.features,
        k,
        query_groups=torch.ones(1, dtype=torch.long),
        gallery_groups=own,
        query_mean=mean,
        gallery_mean=mean,
    )
    found = [(s, r) for s, r in zip(similarities[0].tolist(), rows[0].tolist(), strict=True)]
    return [
        Match(
            rank=rank,
            path=index.paths[row],
            similarity=max(-1.0, min(1.0, similarity)),
            file=index.file(index.paths[row]),
        )
        for rank, (similarity, row) in enumerate(found, start=1)
        if similarity != float("-inf")
    ]
