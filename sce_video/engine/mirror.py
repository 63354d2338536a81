"""The copy of a run in an object store: claimed by a training, and restored on another machine."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from sce_video.engine.checkpoint import find_checkpoints, load_checkpoint_file, stored_checkpoints
from sce_video.utils.atomic_file import atomic_file, write_json
from sce_video.utils.storage import StoredFile, get_file, is_url, join, list_files

#: Names the machine whose training copies to a folder.
MARK = "mirror.json"
#: Suffixes of the files of a work folder that are copied beside the checkpoints.
LOGS = (".py", ".json", ".jsonl", ".html")
_LOCK = "mirror.lock"
_NUMBERED = re.compile(r"(epoch|iter)_(\d+)\.pth")


def add_mirror(cfg: Config, url: str | None) -> None:
    """Let a training copy its checkpoints and logs to a folder of an object store, in place.

    Raises:
        ValueError: not a URL of a store.
    """
    if url is None:
        return
    if not is_url(url):
        raise ValueError(f"--mirror takes s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, got {url!r}")
    hooks = [hook for hook in cfg.get("custom_hooks") or () if hook.get("type") != "MirrorHook"]
    cfg.custom_hooks = [*hooks, {"type": "MirrorHook", "url": url.rstrip("/")}]


def mirror_of(cfg: Config) -> str | None:
    """The URL of :func:`add_mirror`; None without one."""
    hooks = [hook for hook in cfg.get("custom_hooks") or () if hook.get("type") == "MirrorHook"]
    return hooks[0]["url"] if hooks else None


def claim_mirror(url: str, new: bool) -> None:
    """See that a folder of a store can be listed and written, and that no other run is in it.

    Args:
        url: The folder.
        new: Whether the training starts from scratch and keeps what is there.

    Raises:
        StorageError, WriteError: no such bucket, or the store cannot be read or written.
        ValueError: ``new``, and the folder holds checkpoints.
    """
    stored = stored_checkpoints(url)
    if new and stored:
        raise ValueError(
            f"{url} holds an earlier training (its newest checkpoint: {stored[0].name}): --resume "
            "continues it, --overwrite removes it after the first new checkpoint, or give another "
            "--mirror"
        )
    holder = {"host": socket.gethostname(), "pid": os.getpid()}
    write_json(join(url, MARK), {**holder, "since": time.strftime("%Y-%m-%d %H:%M:%S")})


def restore_run(url: str, work_dir: str | Path) -> None:
    """Download logs and newest readable checkpoint of a run, if the work folder has no newer one.

    Processes of one machine download once.

    Raises:
        StorageError: no such bucket, or the store cannot be read.
        WriteError: the work folder cannot be written.
    """
    folder = Path(work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock  # imported here: only restoring a run needs it

    with FileLock(folder / _LOCK):
        local = find_checkpoints(folder)
        stored = [f for f in stored_checkpoints(url) if not local or _is_newer(f, local[0])]
        if not stored:
            return
        # The logs first: without them the checkpoint would be taken for a complete restoration,
        # and the logs of the continued run would replace the longer ones in the store.
        for file in list_files(url):
            if file.name.endswith(LOGS) and file.name != MARK:
                _download(url, file, folder)
        for file in stored:
            path = _download(url, file, folder)
            try:
                load_checkpoint_file(path)
            except ValueError as error:
                path.unlink()
                print_log(f"passed over: {error}", logger="current", level=logging.WARNING)
                continue
            print_log(f"restored {path.name} and the logs of {url} to {folder}", logger="current")
            return


def _is_newer(stored: StoredFile, local: Path) -> bool:
    """Whether a checkpoint in a store is of a later step than a local one.

    By its number; an epoch and an iteration are compared by the time of writing.
    """
    kinds = [_NUMBERED.fullmatch(name) for name in (stored.name, local.name)]
    if kinds[0] and kinds[1] and kinds[0][1] == kinds[1][1]:
        return int(kinds[0][2]) > int(kinds[1][2])
    return stored.time > local.stat().st_mtime


def _download(url: str, file: StoredFile, folder: Path) -> Path:
    path = folder / file.name
    with atomic_file(path) as unfinished:
        get_file(join(url, file.name), unfinished)
    os.utime(path, (file.time, file.time))  # checkpoints are sorted by time
    return path
