"""Starts of a training in ``history.jsonl``, and which of them belong to one launch.

torchrun and Slurm start a program again with the arguments of its first start. ``--overwrite``
would then remove what that has trained, and ``--resume PATH`` would go back to that file. So each
start notes what has launched it, and a later one knows its predecessor.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process

from sce_video.engine.checkpoint import describe_samples
from sce_video.engine.config.snapshot import foreign_classes
from sce_video.engine.run_json import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    installed_versions,
    update_run_json,
)
from sce_video.utils.distributed import run_on_main_rank, unwrap_model
from sce_video.utils.files import WriteError, append_text, read_bytes, read_json_lines, write_text
from sce_video.utils.run_files import HISTORY, RUN_JSON

#: Variables with the number of earlier starts of a launch. tools/dist_train.sh has none: its id
#: is new for each launch. torchrun counts only the starts after a failure on the same machine.
_RESTARTS = {"slurm": "SLURM_RESTART_COUNT", "torchrun": "TORCHELASTIC_RESTART_COUNT"}
_started: set[Path] = set()  # folders in which this process trains: no restarts there
_unwritable: set[Path] = set()


def slurm_job() -> str | None:
    """The Slurm job of this process as ``scontrol`` names it, None outside of one.

    A task of an array is ``ARRAY_TASK``: its first task has the number of the whole array as its
    job, and ``scontrol requeue`` with that number would requeue all tasks.
    """
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def describe_launch() -> dict[str, dict[str, Any]]:
    """What has launched this process: ``slurm``, ``torchrun``, ``script``, each with ``id``.

    The id is the same in all starts of a launch and on all its machines; ``restarts`` counts them.
    """
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    if torchrun == "none":  # the default; on one machine the agent's host and process identify it
        alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
        torchrun = f"{socket.gethostname()}:{os.getppid()}" if alone else None
    script = os.environ.get("SCE_VIDEO_LAUNCH")
    found: dict[str, dict[str, Any]] = {}
    for kind, identity in (("slurm", slurm_job()), ("torchrun", torchrun), ("script", script)):
        if identity:
            count = os.environ.get(_RESTARTS.get(kind, ""), "")
            found[kind] = {"id": identity, "restarts": int(count) if count.isdecimal() else 0}
    return found


def starts_of(folder: str | Path) -> list[dict[str, Any]]:
    """Starts in the ``history.jsonl`` of a work folder, oldest first; damaged lines left out."""
    path = Path(folder, HISTORY)
    rows = [row for _, row in read_json_lines(path, [])] if path.is_file() else []
    return [row for row in rows if row.get("event") == "start"]


def is_restart(folder: str | Path) -> bool:
    """Whether an earlier start of this very launch has trained last in a work folder."""
    if Path(folder).resolve() in _started:
        return False
    last = (starts_of(folder) or [{}])[-1]
    for kind, now in describe_launch().items():
        before = _launch_of(last, kind)
        count = before.get("restarts")
        # The script's id is new for each launch, the others need a greater count.
        later = kind not in _RESTARTS or (isinstance(count, int) and count < now["restarts"])
        if before.get("id") == now["id"] and later:
            return True
    return False


def _launch_of(start: dict[str, Any], kind: str) -> dict[str, Any]:
    """What a row of ``history.jsonl`` says of one launcher; {} where it says nothing."""
    launch = start.get("launch")
    found = launch.get(kind) if isinstance(launch, dict) else None
    return found if isinstance(found, dict) else {}


#: The signal before the time limit, also that of submitit and Lightning.
BEFORE_LIMIT = signal.SIGUSR1
#: A job with so many starts without a step between them is not requeued again.
MAX_STARTS_WITHOUT_STEP = 3
_SCONTROL_SECONDS = 120


def requeued_job(runner: Any) -> str | None:
    """Requeue the Slurm job of a training that ``BEFORE_LIMIT`` has stopped; all ranks call this.

    A training that has finished, failed or was stopped by another signal is not requeued.

    Returns the job, or None; where it should have been requeued, the log has the reason.
    """
    job = slurm_job()
    if job is None or getattr(runner.train_loop, "stopped_by", None) != BEFORE_LIMIT:
        return None

    def requeue() -> str | None:
        # The job's last starts, one after another, that began where the training is now.
        here = [
            _launch_of(start, "slurm").get("id") == job and start.get("iter") == runner.iter
            for start in reversed(starts_of(runner.work_dir))
        ]
        idle = len(list(takewhile(bool, here)))
        if idle >= MAX_STARTS_WITHOUT_STEP:
            problem = (
                f"job {job} is not requeued: its last {idle} starts have done no step after "
                f"iteration {runner.iter}; a longer time limit, or an earlier signal, leaves time "
                "for one"
            )
        elif reason := call_scontrol(job):
            problem = (
                f"job {job} could not be requeued: {reason}; the checkpoint is written: run "
                f"`scontrol requeue {job}` where Slurm is installed, or submit the job again with "
                "--resume"
            )
        else:
            runner.logger.info(f"job {job} is requeued; its next start continues the training")
            return job
        runner.logger.error(problem)
        return None

    # Rank 0 alone; the others wait, since the first that ends makes srun end all.
    return run_on_main_rank(requeue)


def call_scontrol(job: str) -> str | None:
    """Call ``scontrol requeue``; the reason of a failure, else None."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(["scontrol", "requeue", job], timeout=_SCONTROL_SECONDS, **how)
    except FileNotFoundError:
        return f"there is no scontrol on {socket.gethostname()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    text = " ".join((done.stderr or done.stdout).split())[:300]
    return None if done.returncode == 0 else f"scontrol has status {done.returncode}: {text}"


@dataclass
class TrainingOutcome:
    """How a start of a training ends.

    Attributes:
        status: State of the run, as in ``run.json``.
        message: Error, or name of the signal.
    """

    status: str = FINISHED
    message: str = ""


@contextmanager
def recorded_start(runner: Any) -> Iterator[TrainingOutcome]:
    """Append a row to ``history.jsonl`` before the block and one after it; rank 0 writes.

    The block may change what it yields. An exception makes the start ``failed``, KeyboardInterrupt
    ``interrupted``; a killed process leaves no second row. Hooks hear of a failure by
    ``after_failure``.
    """
    model = unwrap_model(runner.model)
    program, *arguments = sys.argv
    if program.startswith("sce-video "):  # sce-video X names itself "sce-video X" in usages
        program = "sce-video"
    start = {
        "event": "start",
        "time": time.time(),
        "command": [program, *arguments],
        "launch": describe_launch(),
        "resumed_from": runner.resumed_from,
        "iter": runner.iter,
        "log": Path(runner.log_dir).name,
        "device": device_name(next(model.parameters()).device),
        "ranks": get_world_size(),
        "threads": torch.get_num_threads(),
        "accumulated": runner.optim_wrapper._accumulative_counts,
        "versions": installed_versions(),
        "own_parts": foreign_classes(runner.cfg),
        "data": describe_samples(runner.train_dataloader.dataset),
        "model": type(model).__name__,
    }
    append_or_warn(runner, HISTORY, start)
    _record_state(runner, RUNNING, runner.cfg)
    _started.add(Path(runner.work_dir).resolve())
    end = TrainingOutcome()
    try:
        yield end
    except BaseException as error:
        end.status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
        end.message = f"{type(error).__name__}: {error}".removesuffix(": ")
        if end.status == FAILED:
            runner.call_hook("after_failure")
        raise
    finally:
        row = {"event": "end", "time": time.time(), "iter": runner.iter, **asdict(end)}
        append_or_warn(runner, HISTORY, row)
        _record_state(runner, end.status)


def _record_state(runner: Any, state: str, config: Mapping[str, Any] | None = None) -> None:
    """Update ``run.json`` on rank 0; a full disk is a warning."""
    if is_main_process():
        with warned_once(runner, RUN_JSON):
            update_run_json(runner.work_dir, state, config)


def device_name(device: torch.device) -> str:
    """``NVIDIA H100``, ``CPU``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


@contextmanager
def warned_once(runner: Any, name: str) -> Iterator[None]:
    """Where a file of the work folder cannot be written, warn once; later rows are tried again."""
    path = Path(runner.work_dir, name)
    try:
        yield
    except WriteError as error:
        if path not in _unwritable:
            runner.logger.warning(f"{error}; the training goes on")
        _unwritable.add(path)


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append a row; NaN and infinity, which JSON does not have, become null.

    Raises:
        WriteError: nothing was appended.
    """
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v
              for k, v in row.items()}  # fmt: skip
    append_text(path, json.dumps(finite, allow_nan=False) + "\n")


def append_or_warn(runner: Any, name: str, row: dict[str, Any]) -> None:
    """Append a row to a file of the work folder; rank 0 does, and a full disk is a warning."""
    if is_main_process():
        with warned_once(runner, name):
            append_row(Path(runner.work_dir, name), row)


def continue_rows(runner: Any, name: str) -> None:
    """Begin a file of rows of a training; a resumed one loses the rows that are computed again.

    Where a step had another number of iterations, the rows get the numbers that the same steps have
    now. Damaged lines stay, since nobody knows what they were; a half-written last one is removed.
    Rank 0 does this, and a full disk is a warning.
    """
    path = Path(runner.work_dir, name)
    if not is_main_process() or not path.exists():
        return
    starts = starts_of(runner.work_dir)
    if starts and starts[-1].get("log") == Path(runner.log_dir).name:
        starts = starts[:-1]  # this one; two starts of one second share the folder of their logs
    # Iterations of a step differ where a training is resumed on another number of processes.
    now = runner.optim_wrapper._accumulative_counts
    before = starts[-1].get("accumulated") if starts else None
    before = before if type(before) is int and before > 0 else now
    lines = read_bytes(path).splitlines(keepends=True)
    kept = []
    for line in lines if runner.iter else ():
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            number = row["iter"] if now == before else -(-row["iter"] * now // before)  # rounded up
            if number > runner.iter:
                continue
            if number != row["iter"]:
                line = json.dumps({**row, "iter": number}).encode() + b"\n"
        if line.endswith(b"\n"):
            kept.append(line)
    with warned_once(runner, name):
        if runner.iter == 0:
            path.unlink()
        elif kept != lines:
            write_text(path, b"".join(kept).decode("utf-8", errors="surrogateescape"))
