"""Local files in place of objects in a store: copies to read, files to write and upload."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sce_video.utils.atomic_file import WriteError, atomic_file
from sce_video.utils.storage import (
    StorageError,
    find,
    get_file,
    is_url,
    list_files,
    put_file,
    split,
)

#: Version of each URL that this process has read, so that it and its forked workers see one.
_read: dict[str, Path] = {}


def cache_folder() -> Path:
    """Folder of the copies: ``SCE_VIDEO_CACHE``, or ``sce_video`` in the user's cache folder."""
    given = os.environ.get("SCE_VIDEO_CACHE")
    default = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(default) / "sce_video"


def local_copy(path: str | Path, newest: bool = False) -> Path:
    """A plain path unchanged; of a URL, the path of a local copy with the same name.

    A copy is kept until the object changes; the folder may be removed at any time. Processes of one
    machine download an object once.

    Args:
        path: A path or a URL.
        newest: Ask the store for the current version; by default a process keeps to the version
            that it read first, without asking.

    Raises:
        FileNotFoundError: no such object.
        StorageError: the store cannot be read.
        WriteError: the copy cannot be written.
    """
    if not is_url(path):
        return Path(path)
    url = str(path)
    if not newest and url in _read and _read[url].is_file():
        return _read[url]
    found = find(url)
    folder = cache_folder() / _digest(url)
    copy = folder / _digest(found.version) / split(url)[1]
    if not copy.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{url} cannot be kept in {folder}: {error.strerror}; SCE_VIDEO_CACHE names "
                "another folder"
            ) from error
        from filelock import FileLock  # imported here: only a download needs it

        with FileLock(folder / "lock"):
            if not copy.is_file():
                _remove_others(folder)
                with atomic_file(copy) as unfinished:
                    get_file(url, unfinished)
    _read[url] = copy
    return copy


@contextmanager
def output_file(path: str | Path) -> Iterator[Path]:
    """A plain path unchanged; of a URL, a local path that is uploaded if the block succeeds.

    The local path of a URL is always the same, so work that keeps its state beside its output can
    be resumed. After a failed upload the file stays there.

    Raises:
        StorageError: no such bucket, or the store cannot be read; before the block.
        WriteError: the upload has failed; names the local file.
    """
    if not is_url(path):
        yield Path(path)
        return
    url = str(path)
    folder, name = split(url)
    list_files(folder)
    local = cache_folder() / "outputs" / _digest(url) / name
    yield local
    try:
        put_file(local, url)
    except StorageError as error:
        raise WriteError(f"{error}; the complete file is {local}") from error
    local.unlink()


def _remove_others(folder: Path) -> None:
    """Remove the copies of earlier versions of an object."""
    with contextlib.suppress(OSError):
        for version in folder.iterdir():
            if version.is_dir():
                shutil.rmtree(version, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]
