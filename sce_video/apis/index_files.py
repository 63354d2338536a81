"""Files of an index: records in ``.npz`` files, unfinished parts, the description, the lock."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.evaluation.features import Rows, load_features, save_features
from sce_video.utils.atomic_file import write_json

FEATURES, DESCRIPTION, PARTS, LOCK = "features.npz", "index.json", "parts", "lock"
_VERSION = 1
_MAX_CLIPS = 10_000  # of a video


@dataclass(frozen=True)
class FileRecord:
    """State of an indexed file when it was embedded, and its feature.

    Attributes:
        size: Bytes.
        mtime_ns: Modification time, nanoseconds.
        feature: (D,) float32; None if the file cannot be decoded.
        reason: Why it cannot be decoded; empty if it can.
    """

    size: int
    mtime_ns: int
    feature: np.ndarray | None
    reason: str = ""

    def same_file(self, state: tuple[int, int]) -> bool:
        """Whether size and modification time are still these."""
        return (self.size, self.mtime_ns) == state


def write_records(file: Path, header: dict[str, Any], records: dict[str, FileRecord]) -> None:
    """Write a feature file whose protocol holds the header and the state of every file.

    Args:
        file: The ``.npz`` file.
        header: ``root``, ``checkpoint`` and ``settings`` of the index.
        records: By path relative to ``root``.
    """
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


def read_records(file: Path) -> tuple[dict[str, Any], dict[str, FileRecord], Rows]:
    """Header, records (sorted by path) and features of a file that :func:`write_records` wrote.

    Raises:
        ValueError: the file was not written by :func:`write_records`.
    """
    stored, protocol = load_features(file)
    try:
        entry = protocol["index"]
        if entry["version"] != _VERSION:
            raise ValueError(f"version {entry['version']} is unknown, only {_VERSION} can be read")
        header = {
            "root": str(entry["root"]),
            "checkpoint": {name: str(entry["checkpoint"][name]) for name in ("path", "sha256")},
            "settings": _checked_settings(entry["settings"]),
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
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{file} is not the file of an index: {error!r:.500}") from error
    return header, dict(sorted(records.items())), stored


def _checked_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """A copy of the settings of an index; the network is checked when it is built."""
    num_clips, num_crops = settings["num_clips"], settings["num_crops"]
    if type(num_clips) is not int or not 1 <= num_clips <= _MAX_CLIPS or num_crops not in (1, 3):
        raise ValueError(f"{num_clips!r:.40} clips x {num_crops!r:.40} crops of a video")
    if not isinstance(settings["model"], dict):
        raise ValueError("no settings of a model")
    return dict(settings)


def write_description(folder: Path, header: dict[str, Any], records: dict[str, FileRecord]) -> None:
    """Write ``index.json``: everything but the features, for people and other programs."""
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


def part_files(folder: Path) -> list[Path]:
    """The parts that an interrupted run has written, oldest first."""
    return sorted((folder / PARTS).glob("part_*.npz"), key=_part_number)


def new_part_file(folder: Path) -> Path:
    """Path of the next part."""
    number = max((_part_number(file) for file in part_files(folder)), default=0) + 1
    return folder / PARTS / f"part_{number:06}.npz"


def _part_number(file: Path) -> int:
    number = file.stem.removeprefix("part_")
    return int(number) if number.isdecimal() else 0


def remove_parts(folder: Path) -> None:
    """Remove all parts and their folder."""
    for file in part_files(folder):
        file.unlink()
    with contextlib.suppress(OSError):
        (folder / PARTS).rmdir()


def remove_index(folder: Path) -> None:
    """Remove features and parts.

    Raises:
        ValueError: ``features.npz`` is not the file of an index; nothing is removed.
    """
    file = folder / FEATURES
    if file.is_file():
        read_records(file)
        file.unlink()
    remove_parts(folder)


@contextlib.contextmanager
def locked_index(folder: Path) -> Iterator[None]:
    """Hold the lock of an index; the operating system releases it if the process is killed.

    Raises:
        ValueError: another run holds the lock.
    """
    from filelock import FileLock, Timeout  # imported here: only building an index needs it

    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"another run is writing the index {folder}") from None
    try:
        yield
    finally:
        lock.release()
