"""The work folder of a training: one run per folder, and one training at a time."""

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
from sce_video.utils.files import check_regular, read_bytes, read_text, regular_file, write_text
from sce_video.utils.run_files import (
    ALARMS,
    CONFIG,
    HISTORY,
    KEPT,
    METRICS,
    PAGE,
    PAGE_FEATURES,
    PROBE,
    SCORES,
)
from sce_video.utils.storage import is_url, split

LOCK = "training.lock"
#: Log folders of mmengine are named by the time of the start.
_LOG_FOLDERS = "[0-9]*_[0-9]*"
#: What a training writes other than by replacing it, so that a link there would be followed.
_IN_PLACE = (LOCK, "*.jsonl", "last_checkpoint", _LOG_FOLDERS)
#: What mmengine's CheckpointHook and our hooks write besides.
_OTHERS = (
    *(KEPT, "best_*.pth", "last_checkpoint", "online_evaluation.jsonl", "bad_files.jsonl"),
    *(METRICS, ALARMS, PAGE, PAGE_FEATURES, SCORES, PROBE),
)
_descriptors: set[int] = set()


def _close_in_child() -> None:
    # A loader worker that outlives a killed training must not keep its lock.
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def locked_folder(folder: str | Path) -> Iterator[None]:
    """Hold a work folder for one training; released by the system if the process crashes.

    The lock file names host and process of the holder. A file system without locks admits every
    training.

    Raises:
        ValueError: another training holds the folder.
        OSError: the folder cannot be written, or a link lies where a training writes.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path in Path(folder).iterdir():
        if any(fnmatch(path.name, pattern) for pattern in _IN_PLACE):
            check_regular(path, written=True)
    descriptor = regular_file(Path(folder, LOCK), os.O_RDWR | os.O_CREAT)
    _descriptors.add(descriptor)
    try:
        try:
            locked = lock_descriptor(descriptor, blocking=False)
        except OSError:
            locked = True
        if not locked:
            by = ""
            with suppress(ValueError, KeyError, TypeError):  # half-written
                holder = json.loads(os.read(descriptor, 1000))
                by = f" (host {holder['host']}, process {holder['pid']}, since {holder['since']})"
            raise ValueError(
                f"another training is running in {folder}{by}: wait for it, stop it, or give "
                "another folder"
            )
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        holder["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
        yield
    finally:
        if descriptor in _descriptors:  # not in a forked child, which has closed it
            _descriptors.remove(descriptor)
            os.close(descriptor)


def is_locked(folder: str | Path) -> bool:
    """Whether a training holds a work folder now; False on a file system without locks."""
    with suppress(OSError), open(Path(folder, LOCK), "rb", opener=regular_file) as file:
        return not lock_descriptor(file.fileno(), blocking=False)
    return False


def config_of_run(folder: Path) -> Path:
    """The config that a training has left in its folder: a program, to be shown, not to be run.

    Raises:
        FileNotFoundError: there is none, or several and none is called config.py.
    """
    names = sorted(path.name for path in folder.glob("*.py"))
    if CONFIG in names or len(names) == 1:
        return folder / (CONFIG if CONFIG in names else names[0])
    found = ", ".join(names) or "no .py file"
    raise FileNotFoundError(f"the config of the run in {folder} is not clear: {found}")


def folder_of_run(run: str | Path) -> str | Path:
    """The folder of a run that is given by itself or by a checkpoint in it."""
    if is_url(run):
        is_file = str(run).endswith((".pth", ".safetensors"))
        return split(str(run))[0] if is_file else str(run).rstrip("/")
    return run if Path(run).is_dir() else Path(run).parent


def check_unused(folder: str | Path) -> None:
    """Raise if a folder holds checkpoints or logged steps of an earlier training.

    What a start that failed before its first step leaves does not count.

    Raises:
        ValueError: the message names what is there.
    """
    checkpoints, logs = find_checkpoints(folder), _logs_with_steps(Path(folder))
    found = []
    if checkpoints:
        found.append(f"{counted(len(checkpoints), 'checkpoint')}, the newest {checkpoints[0].name}")
    if logs:
        found.append(f"the log of {counted(len(logs), 'start')}, the last {logs[-1].name}")
    if found:
        advice = "--resume continues it, " if checkpoints else ""
        raise ValueError(
            f"{folder} holds an earlier training ({'; '.join(found)}): {advice}--overwrite removes "
            "it and starts from scratch, or give another folder"
        )


def counted(number: int, thing: str) -> str:
    """``1 checkpoint``, ``3 checkpoints``."""
    return f"{number} {thing}{'s' * (number != 1)}"


def _logs_with_steps(folder: Path) -> list[Path]:
    """Log folders of the starts of a training that has logged a step, oldest first."""
    metrics = folder / METRICS
    if not metrics.is_file() or b'"kind": "train"' not in read_bytes(metrics):
        return []
    names = {Path(str(start.get("log"))).name for start in starts_of(folder)}
    return sorted(folder / name for name in names if fnmatch(name, _LOG_FOLDERS)) or [metrics]


class OverwriteHook(Hook):
    """Removes an earlier training from the work folder before the first step of a new one.

    A start that fails has removed nothing. Removed are checkpoints, the logs of starts with steps,
    and the lists that the hooks of a training write; other files stay.
    """

    priority = "HIGHEST"

    def before_train(self, runner) -> None:
        if not is_main_process():
            return
        folder = Path(runner.work_dir)
        logs = [path for path in _logs_with_steps(folder) if path != Path(runner._log_dir)]
        checkpoints = find_checkpoints(folder)
        for log in logs:
            if log.is_dir():
                shutil.rmtree(log)
        for path in (*checkpoints, *(path for name in _OTHERS for path in folder.glob(name))):
            path.unlink()
        history = folder / HISTORY
        lines = read_text(history, "replace").splitlines() if history.is_file() else []
        write_text(history, "".join(f"{line}\n" for line in lines[-1:]))
        runner.logger.info(
            f"removed the earlier training in {folder} (--overwrite): "
            f"{counted(len(checkpoints), 'checkpoint')}, {counted(len(logs), 'log folder')}"
        )
