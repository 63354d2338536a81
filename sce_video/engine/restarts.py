"""Training starts in ``history.jsonl``, and detection of starts that belong to one launch.

torchrun and Slurm restart a program with its original arguments. ``--overwrite`` would then remove
what the first start has trained, and ``--resume PATH`` would go back to that file. Each start
therefore records what has launched it, so a later start can recognise its predecessor.
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

#: Variables that count the earlier starts of a launch. tools/dist_train.sh sets none, because its
#: id is new for each launch. torchrun counts only restarts after a failure on the same machine.
_RESTARTS = {"slurm": "SLURM_RESTART_COUNT", "torchrun": "TORCHELASTIC_RESTART_COUNT"}
_started: set[Path] = set()  # folders in which this process has trained are not restarts
_unwritable: set[Path] = set()


def slurm_job() -> str | None:
    """Return the ``scontrol`` name of this process's Slurm job, or None outside a job.

    A task of an array is named ``ARRAY_TASK``. The first task's job number is also the number of
    the array, so ``scontrol requeue`` with that number would requeue all tasks.
    """
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def describe_launch() -> dict[str, dict[str, Any]]:
    """Return the ``id`` and ``restarts`` of each launcher: ``slurm``, ``torchrun``, ``script``.

    The id is the same for all starts of a launch and on all its machines. ``restarts`` counts the
    earlier starts.
    """
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    if torchrun == "none":  # the default; on one machine, host and agent process identify a launch
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
    """Return the starts in a work folder's ``history.jsonl``, oldest first, without bad lines."""
    path = Path(folder, HISTORY)
    rows = [row for _, row in read_json_lines(path, [])] if path.is_file() else []
    return [row for row in rows if row.get("event") == "start"]


def is_restart(folder: str | Path) -> bool:
    """Return whether the last training in a work folder was an earlier start of this launch."""
    if Path(folder).resolve() in _started:
        return False
    last = (starts_of(folder) or [{}])[-1]
    for kind, now in describe_launch().items():
        before = _launch_of(last, kind)
        count = before.get("restarts")
        # A script's id is new for each launch. The other launchers reuse theirs but count starts.
        later = kind not in _RESTARTS or (isinstance(count, int) and count < now["restarts"])
        if before.get("id") == now["id"] and later:
            return True
    return False


def _launch_of(start: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the record of one launcher in a row of ``history.jsonl``; {} if there is none."""
    launch = start.get("launch")
    found = launch.get(kind) if isinstance(launch, dict) else None
    return found if isinstance(found, dict) else {}


#: Signal sent before the time limit. submitit and Lightning use the same signal.
BEFORE_LIMIT = signal.SIGUSR1
#: Number of consecutive starts without a step after which a job is not requeued again.
MAX_STARTS_WITHOUT_STEP = 3
_SCONTROL_SECONDS = 120


def requeued_job(runner: Any) -> str | None:
    """Requeue the Slurm job of a run that ``BEFORE_LIMIT`` has stopped. All ranks call this.

    A run that has finished, failed or was stopped by another signal is not requeued.

    Returns the job, or None if it is not requeued. The log contains the reason of a failure.
    """
    job = slurm_job()
    if job is None or getattr(runner.train_loop, "stopped_by", None) != BEFORE_LIMIT:
        return None

    def requeue() -> str | None:
        # Of the job's latest starts, count those that began at the current iteration.
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

    # Other ranks wait for rank 0, because srun ends all processes as soon as one ends.
    return run_on_main_rank(requeue)


def call_scontrol(job: str) -> str | None:
    """Call ``scontrol requeue``, and return the reason if it fails, else None."""
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
    """State and message with which a training start ends.

    Attributes:
        status: State of the run, as in ``run.json``.
        message: Text of the error, or name of the signal.
    """

    status: str = FINISHED
    message: str = ""


@contextmanager
def recorded_start(runner: Any) -> Iterator[TrainingOutcome]:
    """Append a row to ``history.jsonl`` before and after the ``with`` block, on rank 0.

    The block may change the outcome that is yielded. An exception makes the start ``failed`` and
    KeyboardInterrupt ``interrupted``. A killed process leaves no second row. Hooks are notified of
    a failure by ``after_failure``.
    """
    model = unwrap_model(runner.model)
    program, *arguments = sys.argv
    if program.startswith("sce-video "):  # commands change their program name for usage messages
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
    """Update ``run.json`` on rank 0, and warn if it cannot be written."""
    if is_main_process():
        with warned_once(runner, RUN_JSON):
            update_run_json(runner.work_dir, state, config)


def device_name(device: torch.device) -> str:
    """Return the name of a device, for example ``NVIDIA H100`` or ``CPU``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


@contextmanager
def warned_once(runner: Any, name: str) -> Iterator[None]:
    """Warn only once if a file in the work folder cannot be written. Later writes are tried."""
    path = Path(runner.work_dir, name)
    try:
        yield
    except WriteError as error:
        if path not in _unwritable:
            runner.logger.warning(f"{error}; the training goes on")
        _unwritable.add(path)


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file, with null for NaN and infinity, which JSON lacks.

    Raises:
        WriteError: If the row cannot be appended.
    """
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v
              for k, v in row.items()}  # fmt: skip
    append_text(path, json.dumps(finite, allow_nan=False) + "\n")


def append_or_warn(runner: Any, name: str, row: dict[str, Any]) -> None:
    """Append a row to a file in the work folder on rank 0, and warn if it cannot be written."""
    if is_main_process():
        with warned_once(runner, name):
            append_row(Path(runner.work_dir, name), row)


def continue_rows(runner: Any, name: str) -> None:
    """Begin a training run's file of rows, or remove rows that a resumed run computes again.

    If a step had a different number of iterations before, the rows are renumbered to match the same
    steps. Damaged lines are kept, because their content is unknown, but an incomplete last line is
    removed. Only rank 0 does this, and it warns if the file cannot be written.
    """
    path = Path(runner.work_dir, name)
    if not is_main_process() or not path.exists():
        return
    starts = starts_of(runner.work_dir)
    if starts and starts[-1].get("log") == Path(runner.log_dir).name:
        starts = starts[:-1]  # the current start; two starts within a second share a log folder
    # A step has a different number of iterations if the number of processes has changed.
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
