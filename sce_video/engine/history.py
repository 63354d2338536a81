"""What was started when in a work folder, and how it ended: ``history.jsonl``."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process

from sce_video.engine.restarts import describe_launch, note_started, starts_of
from sce_video.engine.training_record import describe_samples
from sce_video.utils.atomic_file import WriteError
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.run_files import HISTORY, append_row
from sce_video.version import __version__


@contextmanager
def recorded_start(runner: Any) -> Iterator[dict[str, str]]:
    """Append a row to ``history.jsonl`` before the block and one after it; rank 0 writes.

    Yields:
        ``status`` and ``message`` of the end, which the block may change. By default the status is
        ``finished``; an exception makes it ``failed``, KeyboardInterrupt ``interrupted``. A process
        that is killed leaves no end.
    """
    _append(runner, {"event": "start", "time": time.time(), **_describe(runner)})
    note_started(runner.work_dir)
    end = {"status": "finished", "message": ""}
    try:
        yield end
    except BaseException as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        end["status"] = "interrupted" if is_interrupt else "failed"
        end["message"] = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        _append(runner, {"event": "end", "time": time.time(), "iter": runner.iter, **end})


def record_replan(runner: Any, text: str) -> None:
    """Append to ``history.jsonl`` that the training was given another length."""
    row = {"event": "replanned", "time": time.time(), "iter": runner.iter + 1}
    _append(runner, {**row, "epochs": runner.train_loop.max_epochs, "message": text})


def accumulated_before_and_now(runner: Any) -> tuple[int, int]:
    """Iterations of an optimiser step in the start before this one, and in this one.

    They differ where a training is resumed on another number of processes.
    """
    now = runner.optim_wrapper._accumulative_counts
    starts = starts_of(runner.work_dir)
    if starts and starts[-1].get("log") == Path(runner.log_dir).name:
        starts = starts[:-1]  # this one; two starts of one second share the folder of their logs
    count = starts[-1].get("accumulated") if starts else None
    return (count if type(count) is int and count > 0 else now), now


def _describe(runner: Any) -> dict[str, Any]:
    model = unwrap_model(runner.model)
    return {
        # The command line as it was typed: sce-video X names itself "sce-video X" in usages.
        "command": [sys.argv[0].partition(" ")[0], *sys.argv[1:]]
        if sys.argv[0].startswith("sce-video ")
        else sys.argv,
        "launch": describe_launch(),
        "resumed_from": runner.resumed_from,
        "iter": runner.iter,
        "log": Path(runner.log_dir).name,
        "device": device_name(next(model.parameters()).device),
        "ranks": get_world_size(),
        "accumulated": runner.optim_wrapper._accumulative_counts,
        "versions": _versions(),
        "data": describe_samples(runner.train_dataloader.dataset),
        "model": type(model).__name__,
    }


def device_name(device: torch.device) -> str:
    """``NVIDIA H100``, ``CPU``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def _versions() -> dict[str, str]:
    found = {"sce_video": __version__, "python": platform.python_version()}
    found["torch"] = torch.__version__
    for name in ("mmengine", "mmaction2"):
        found[name] = importlib.metadata.version(name)
    if torch.cuda.is_available():
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return found


def _append(runner: Any, row: dict[str, Any]) -> None:
    if not is_main_process():
        return
    try:
        append_row(Path(runner.work_dir, HISTORY), row)
    except WriteError as error:
        runner.logger.log(logging.WARNING, f"{error}; the training goes on")
