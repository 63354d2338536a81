"""Work folders, each of which contains a single run that one process trains at a time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from filelock import lock_descriptor
from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.restarts import starts_of
from sce_video.utils.files import (
    IrregularFileError,
    check_regular,
    read_bytes,
    regular_file,
    write_error,
)
from sce_video.utils.run_files import (
    ALARMS,
    HISTORY,
    KEPT,
    METRICS,
    PAGE,
    PAGE_FEATURES,
    PROBE,
    SCORES,
)
from sce_video.utils.storage import is_url, split

#: File that a training process locks. It states the host and the process.
LOCK = "training.lock"
#: Pattern of mmengine's log folders, which are named by their start time.
_LOG_FOLDERS = "[0-9]*_[0-9]*"
#: Files that are changed in place instead of being replaced, so writing to them follows links.
_IN_PLACE = (LOCK, "*.jsonl", "last_checkpoint", _LOG_FOLDERS)
#: Other files that mmengine's CheckpointHook and this package's hooks write.
_OTHERS = (
    *(KEPT, "best_*.pth", "last_checkpoint", "online_evaluation.jsonl", "bad_files.jsonl"),
    *(METRICS, ALARMS, HISTORY, PAGE, PAGE_FEATURES, SCORES, PROBE),
)
#: Open file descriptors that hold locks.
_descriptors: set[int] = set()
#: Lock descriptors for training runs that have not started, by folder.
_claimed: dict[Path, int] = {}


def _close_in_child() -> None:
    # A loader worker may outlive a killed training process and must not keep its lock.
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _claimed.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _lock(folder: str | Path) -> int:
    """Lock a work folder, create it if needed, and return the descriptor that holds the lock."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            if any(fnmatch(path.name, pattern) for pattern in _IN_PLACE):
                check_regular(path, written=True)
        descriptor = regular_file(Path(folder, LOCK), os.O_RDWR | os.O_CREAT)
    except IrregularFileError:  # its message already names the file
        raise
    except OSError as error:
        raise write_error(folder, error) from error
    _descriptors.add(descriptor)
    try:
        locked = lock_descriptor(descriptor, blocking=False)
    except OSError:
        locked = True
    if not locked:
        by = ""
        with suppress(ValueError, KeyError, TypeError):  # the other process may be writing the file
            holder = json.loads(os.read(descriptor, 1000))
            by = f" (host {holder['host']}, process {holder['pid']}, since {holder['since']})"
        _unlock(descriptor)
        raise ValueError(
            f"another training run is using {folder}{by}. Wait for it, stop it, or give a "
            "different folder"
        )
    holder = {"host": socket.gethostname(), "pid": os.getpid()}
    holder["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(holder).encode())
    return descriptor


def _unlock(descriptor: int) -> None:
    if descriptor in _descriptors:  # a forked child process has already closed it
        _descriptors.remove(descriptor)
        os.close(descriptor)


@contextmanager
def locked_folder(folder: str | Path) -> Iterator[None]:
    """Lock a work folder for one training run. The system unlocks it if the process crashes.

    On a file system without locks, every run is allowed. If :func:`claimed_folder` has locked the
    folder, its lock is used and released at the end.

    Raises:
        ValueError: If another training run uses the folder.
        OSError: If the folder cannot be written, or a file that training writes is a link.
    """
    claimed = _claimed.pop(Path(folder).resolve(), None)
    descriptor = _lock(folder) if claimed is None else claimed
    try:
        yield
    finally:
        _unlock(descriptor)


@contextmanager
def claimed_folder(folder: str | Path, overwrite: bool = False) -> Iterator[None]:
    """Lock a work folder from planning to the end of the planned training run.

    Nothing may be written to the folder before it is locked, because this could replace another
    run's config.

    Raises:
        ValueError: If another training run uses the folder, or it contains an earlier run and
            ``overwrite`` is False.
        OSError: If :func:`locked_folder` cannot lock the folder.
    """
    made = not Path(folder).exists()
    descriptor, key = _lock(folder), Path(folder).resolve()
    _claimed[key] = descriptor
    try:
        if not overwrite:
            check_unused(folder)
        yield
    finally:
        if _claimed.pop(key, None) is not None:  # training has not begun
            if made and os.listdir(folder) == [LOCK]:  # planning has failed
                with suppress(OSError):
                    Path(folder, LOCK).unlink()
                    Path(folder).rmdir()
            _unlock(descriptor)


def is_locked(folder: str | Path) -> bool:
    """Return whether a training run has locked a folder; False on a file system without locks."""
    with suppress(OSError), open(Path(folder, LOCK), "rb", opener=regular_file) as file:
        return not lock_descriptor(file.fileno(), blocking=False)
    return False


def folder_of_run(run: str | Path) -> str | Path:
    """Return the folder of a run, given the folder or a checkpoint in it."""
    if is_url(run):
        is_file = str(run).endswith((".pth", ".safetensors"))
        return split(str(run))[0] if is_file else str(run).rstrip("/")
    return run if Path(run).is_dir() else Path(run).parent


def check_unused(folder: str | Path) -> None:
    """Raise if a folder contains checkpoints or logged steps of an earlier run.

    Files of a start that failed before its first step are ignored.

    Raises:
        ValueError: If the folder is used. The message describes the earlier run.
    """
    checkpoints, logs = find_checkpoints(folder), _logs_with_steps(Path(folder))
    found = []
    if checkpoints:
        found.append(f"{counted(len(checkpoints), 'checkpoint')}, the newest {checkpoints[0].name}")
    if logs:
        found.append(f"the log of {counted(len(logs), 'start')}, the last {logs[-1].name}")
    if found:
        advice = "--resume continues it, and " if checkpoints else ""
        raise ValueError(
            f"{folder} contains an earlier training run ({'; '.join(found)}). {advice}--overwrite "
            "removes it and starts from scratch. You can also give a different folder"
        )


def counted(number: int, thing: str) -> str:
    """Format a number with a noun: ``1 checkpoint``, ``3 checkpoints``."""
    return f"{number} {thing}{'s' * (number != 1)}"


def _logs_with_steps(folder: Path) -> list[Path]:
    """Return the log folders of all starts, oldest first, or [] if no step was logged."""
    metrics = folder / METRICS
    if not metrics.is_file() or b'"kind": "train"' not in read_bytes(metrics):
        return []
    names = {Path(start.log).name for start in starts_of(folder)}
    return sorted(folder / name for name in names if fnmatch(name, _LOG_FOLDERS)) or [metrics]


def remove_training(folder: str | Path, current: str | Path = "") -> str:
    """Remove an earlier training run from a work folder before anything new is written to it.

    This removes checkpoints, the files that training hooks write and, if any step was logged, the
    logs of all starts except ``current``. Other files are kept. If only the config were replaced, a
    later ``--resume`` would continue the old checkpoints with different settings.

    Returns:
        Sentence on what was removed; empty if there was nothing to remove.
    """
    folder = Path(folder)
    logs = [path for path in _logs_with_steps(folder) if path.is_dir() and path != Path(current)]
    checkpoints = find_checkpoints(folder)
    lists = [path for name in _OTHERS for path in folder.glob(name)]
    for path in (*checkpoints, *lists):
        path.unlink()
    for log in logs:
        shutil.rmtree(log)
    if not (checkpoints or lists or logs):
        return ""
    found = f"{counted(len(checkpoints), 'checkpoint')}, {counted(len(logs), 'log folder')}"
    return f"removed the earlier training run in {folder} (--overwrite): {found}"


class OverwriteHook(Hook):
    """Hook that removes an earlier run from the work folder just before the new config is written.

    A start that fails earlier therefore removes nothing.
    """

    priority = "HIGHEST"

    def before_config_dump(self, runner) -> None:
        if is_main_process() and (removed := remove_training(runner.work_dir, runner.log_dir)):
            runner.logger.info(removed)
