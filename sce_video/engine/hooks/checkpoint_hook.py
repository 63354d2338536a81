"""Hooks that write, remove and copy checkpoints, and the mirror of a run in an object store."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mmengine.hooks
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import Hook
from mmengine.logging import print_log

from sce_video.engine.checkpoint import find_checkpoints, first_readable
from sce_video.engine.config.snapshot import type_of
from sce_video.engine.work_dir import counted, locked_folder
from sce_video.registry import HOOKS
from sce_video.utils.distributed import run_on_main_rank
from sce_video.utils.files import WriteError, atomic_file, check_regular, write_error, write_json
from sce_video.utils.run_files import CHECKPOINT_NAME, KEPT, stored_checkpoints
from sce_video.utils.storage import (
    StoredFile,
    cancel_uploads,
    get_file,
    is_url,
    join,
    list_files,
    put_file,
    remove,
)


class _RemovesLater(LocalBackend):
    """Local file backend that notes the files to remove instead of removing them."""

    def __init__(self) -> None:
        self.noted: set[str] = set()

    def remove(self, filepath: str | Path) -> None:
        self.noted.add(os.fspath(filepath))

    def isfile(self, filepath: str | Path) -> bool:
        """Also accept a file that exists only in a mirror, where it must be removed as well."""
        return not super().isdir(filepath)

    def isdir(self, filepath: str | Path) -> bool:
        """Return False, because mmengine would remove a folder with all its contents."""
        return False


@HOOKS.register_module()
class CheckpointHook(mmengine.hooks.CheckpointHook):
    """mmengine's hook, but an outdated checkpoint is removed only after its successor is written.

    mmengine 0.10.7 removes it first, also for ``save_best``. If the disk is full at that moment, a
    run that keeps one checkpoint has none left. The arguments are mmengine's. The disk needs space
    for one checkpoint more than ``max_keep_ckpts``.
    """

    def before_train(self, runner) -> None:
        """Prepare like mmengine, which removes checkpoints beyond a lower ``max_keep_ckpts``."""
        super().before_train(runner)
        self.file_backend = _RemovesLater()

    def _save_checkpoint_with_step(self, runner, step: int, meta: dict) -> None:
        """Write a checkpoint and its name to ``last_checkpoint``, then remove outdated ones."""
        last = Path(runner.work_dir, "last_checkpoint")
        try:
            check_regular(last, written=True)  # mmengine writes into the existing file
            super()._save_checkpoint_with_step(runner, step, meta)
        except WriteError:  # its message already names the checkpoint
            raise
        except OSError as error:
            raise write_error(last, error) from error
        if is_main_process():
            self._remove_outdated(runner)

    def _save_best_checkpoint(self, runner, metrics: dict) -> None:
        super()._save_best_checkpoint(runner, metrics)
        if is_main_process():
            self._remove_outdated(runner)

    def _remove_outdated(self, runner) -> None:
        several = getattr(self, "best_ckpt_path_dict", {})
        best = {getattr(self, "best_ckpt_path", None), *several.values()}
        # Keep files that were written again after they had been marked for removal.
        removed = sorted(self.file_backend.noted - {self.last_ckpt, *best})
        for path in removed:
            Path(path).unlink(missing_ok=True)
        self.file_backend.noted.clear()
        runner.call_hook("after_removal", names=[Path(path).name for path in removed])


#: File in a mirror that names the machine whose training run writes to it.
MARK = "mirror.json"
#: Suffixes of the work folder's files that are copied together with the checkpoints.
LOGS = (".py", ".json", ".jsonl", ".html")
#: File in a work folder that is locked while a mirror is restored.
_LOCK = "mirror.lock"


def add_mirror(cfg: Config, url: str | None) -> None:
    """Change a config so that its training run copies checkpoints and logs to an object store.

    Raises:
        ValueError: If ``url`` is not the URL of an object store.
    """
    if url is None:
        return
    if not is_url(url):
        raise ValueError(f"--mirror must be s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, got {url!r}")
    hooks = [hook for hook in cfg.get("custom_hooks") or () if type_of(hook) != "MirrorHook"]
    cfg.custom_hooks = [*hooks, {"type": "MirrorHook", "url": url.rstrip("/")}]


def mirror_of(cfg: Config) -> str | None:
    """Return the URL set by :func:`add_mirror`, or None if there is none."""
    hooks = cfg.get("custom_hooks") or ()
    return next((hook["url"] for hook in hooks if type_of(hook) == "MirrorHook"), None)


def claim_mirror(url: str, new: bool) -> None:
    """Check that an object store's folder is readable, writable and free, and mark it as used.

    Args:
        url: URL of the folder.
        new: Whether the folder must not contain an earlier run.

    Raises:
        ObjectStoreError: If the bucket does not exist or cannot be read.
        WriteError: If the folder cannot be written.
        ValueError: If the run is new but the folder contains an earlier run's checkpoints.
    """
    stored = stored_checkpoints(url)
    if new and stored:
        raise ValueError(
            f"{url} contains an earlier training run (its newest checkpoint: {stored[0].name}). "
            "--resume continues it, and --overwrite removes it after the first new checkpoint. You "
            "can also give another --mirror"
        )
    holder = {"host": socket.gethostname(), "pid": os.getpid()}
    write_json(join(url, MARK), {**holder, "since": time.strftime("%Y-%m-%d %H:%M:%S")})


def restore_run(url: str, work_dir: str | Path) -> None:
    """Download a run's logs and newest readable checkpoint, unless the work folder is newer.

    If several processes of one machine call this, only one of them downloads.

    Raises:
        ObjectStoreError: If the bucket does not exist or cannot be read.
        WriteError: If the work folder cannot be written.
    """
    folder = Path(work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock  # imported here, because most runs do not need it

    def download(file: StoredFile) -> Path:
        path = folder / file.name
        with atomic_file(path) as unfinished:
            get_file(join(url, file.name), unfinished)
        os.utime(path, (file.time, file.time))  # because checkpoints are sorted by time
        return path

    check_regular(folder / _LOCK, written=True)
    # Without a lock on the folder, this could replace the files of a run that is still training.
    with FileLock(folder / _LOCK), locked_folder(folder):
        local = find_checkpoints(folder)
        stored = [f for f in stored_checkpoints(url) if not local or _is_newer(f, local[0])]
        if not stored:
            return
        # Download the logs first. If the checkpoint came first and a log then failed, a resumed run
        # would start with empty logs and later overwrite the full logs in the store.
        for file in list_files(url):
            # The resumed run knows the best checkpoint's score, so it also needs that checkpoint.
            if (file.name.endswith(LOGS) or file.name == KEPT) and file.name != MARK:
                download(file)
        for path in map(download, stored):
            if first_readable([path], "current"):
                name = path.name
                print_log(f"restored {name} and the logs of {url} to {folder}", logger="current")
                return
            path.unlink()


def _is_newer(stored: StoredFile, local: Path) -> bool:
    """Return whether a stored checkpoint is newer than a local one."""
    # The numbers in the names can be compared, unless one is an epoch and the other an iteration.
    kinds = [CHECKPOINT_NAME.fullmatch(name) for name in (stored.name, local.name)]
    if kinds[0] and kinds[1] and kinds[0][1] == kinds[1][1]:
        return int(kinds[0][2]) > int(kinds[1][2])
    return stored.time > local.stat().st_mtime


@HOOKS.register_module()
class MirrorHook(Hook):
    """Hook that copies every finished checkpoint, and the logs, to an object store's folder.

    A thread of rank 0 uploads to ``s3://bucket/runs/name`` while training continues. A checkpoint
    that is removed locally is removed from the store after all newer ones have arrived. If an
    upload fails, a warning is logged, and the upload is repeated with the next checkpoint and at
    the end. Files that are then still missing are listed. The work folder is always complete.

    Raises:
        ValueError: If ``url`` is not the URL of an object store.
    """

    priority = "VERY_LOW"

    def __init__(self, url: str) -> None:
        if not is_url(url):
            raise ValueError(
                f"MirrorHook copies only to an object store (s3://... or gs://...), got {url!r}"
            )
        self.url = url.rstrip("/")
        self.failures = 0
        self._copied = 0
        self._error: Exception | None = None  # error of the last attempt, if it failed
        self._waiting: deque[Path] = deque()  # checkpoints to upload
        self._outdated: dict[str, None] = {}  # names of checkpoints to remove, in order
        self._sent: dict[str, tuple[int, int]] = {}  # time and size of each uploaded log
        self._thread: ThreadPoolExecutor | None = None

    def before_train(self, runner: Any) -> None:
        """List the checkpoints that a resumed run must upload, or that a new run must remove.

        Raises:
            ObjectStoreError: If the object store cannot be read. All ranks raise it.
        """
        stored = run_on_main_rank(lambda: [file.name for file in list_files(self.url)])
        if is_main_process():
            if runner.resumed_from is None:
                self._outdated = dict.fromkeys(name for name in stored if name.endswith(".pth"))
            else:
                # The best checkpoint always has the same name, so the stored one may be outdated.
                self._waiting.extend(filter(Path.is_file, [Path(runner.work_dir, KEPT)]))
                local = reversed(find_checkpoints(runner.work_dir))
                self._waiting.extend(path for path in local if path.name not in stored)
            self._thread = ThreadPoolExecutor(1, "mirror")

    def after_checkpoint(self, runner: Any, path: Path) -> None:
        if self._thread is not None:  # it is None on other ranks, and before training
            self._outdated.pop(path.name, None)
            self._waiting.append(path)
            self._thread.submit(self._copy, runner)

    def after_removal(self, runner: Any, names: Sequence[str]) -> None:
        self._outdated.update(dict.fromkeys(names))

    def after_stop(self, runner: Any) -> None:
        """Wait for the uploads, retry failed ones, and report which files are missing."""
        if self._thread is None:
            return
        self._thread.submit(self._copy, runner, last=True)
        try:
            self._thread.shutdown()
        except BaseException:  # by default, Python would wait for the uploads even after Ctrl-C
            self._waiting.clear()
            self._thread.shutdown(wait=False, cancel_futures=True)
            cancel_uploads()
            raise
        self._thread = None
        tried = f", {counted(self.failures, 'failed attempt')}" if self.failures else ""
        if self._error is None:
            copied = counted(self._copied, "checkpoint")
            runner.logger.info(f"copied {copied} and the logs to {self.url}{tried}")
            return
        missing = [path.name for path in self._waiting if path.exists()]
        what = f"{counted(len(missing), 'checkpoint')} ({', '.join(missing)})"
        what = what if missing else "the last logs"
        runner.logger.warning(
            f"the copy in {self.url} is incomplete{tried}. {what} could not be copied "
            f"({self._error}), but are in {runner.work_dir}"
        )

    def after_page(self, runner: Any) -> None:
        """Copy the run's page, which is written after training."""
        self._copy(runner)

    def _copy(self, runner: Any, last: bool = False) -> None:
        """Copy checkpoints and logs, then remove outdated checkpoints. Stop at the first failure.

        A failure logs a warning. After the ``last`` attempt, :meth:`after_stop` reports instead.
        """
        self._error = None
        try:
            while self._waiting:
                path = self._waiting[0]
                if path.exists():  # it may have been removed meanwhile
                    put_file(path, join(self.url, path.name))
                    self._copied += 1
                self._waiting.popleft()
            for path in sorted(Path(runner.work_dir).iterdir()):
                if path.name.endswith(LOGS) and path.is_file():
                    state = (path.stat().st_mtime_ns, path.stat().st_size)
                    if self._sent.get(path.name) != state:
                        put_file(path, join(self.url, path.name))
                        self._sent[path.name] = state
            for name in list(self._outdated):
                remove(join(self.url, name))
                self._outdated.pop(name, None)
        except Exception as error:  # no error of an object store client may end training
            self._error = error
            self.failures += 1
            if not last:
                runner.logger.warning(
                    f"the copy to {self.url} failed ({self.failures} so far): {error}. The "
                    f"training continues, and its checkpoints are in {runner.work_dir}"
                )
