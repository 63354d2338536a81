"""Training starts in ``history.jsonl``, and detection of starts that belong to one launch.

torchrun and Slurm restart a program with its original arguments. ``--overwrite`` would then remove
what the first start has trained, and ``--resume PATH`` would go back to that file. Each start
therefore records what has launched it, so that a later start can recognise its predecessor.
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
from dataclasses import asdict, dataclass, field
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
from sce_video.utils.records import at, lenient_record
from sce_video.utils.run_files import HISTORY, RUN_JSON

#: Environment variables that count a launch's earlier starts. tools/dist_train.sh sets none,
#: because each of its launches has a new id. torchrun counts only restarts after a failure on the
#: same machine.
_RESTARTS = {"slurm": "SLURM_RESTART_COUNT", "torchrun": "TORCHELASTIC_RESTART_COUNT"}
#: Folders in which this process has trained. Training there again is not a restart.
_started: set[Path] = set()
#: Files that could not be written. A warning is logged only once for each of them.
_unwritable: set[Path] = set()


@dataclass(frozen=True)
class LaunchRecord:
    """Launcher of a training start.

    Attributes:
        id: Name of the launch, which all its starts share on all its machines; empty without a
            launcher.
        restarts: Number of earlier starts.
    """

    id: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class EarlierStart:
    """An earlier start of a training run, as far as its line in ``history.jsonl`` can be read.

    Attributes:
        iter: Iteration at which it began.
        log: Name of its log folder.
        accumulated: Micro-batches per optimiser step.
        threads: Number of torch's threads.
        launch: Fields of :class:`LaunchRecord` by launcher.
    """

    iter: int | None = None
    log: str = ""
    accumulated: int | None = None
    threads: int | None = None
    launch: Mapping[str, object] = field(default_factory=dict)

    def launched_by(self, launcher: str) -> LaunchRecord:
        """Return the record of ``slurm``, ``torchrun`` or ``script``."""
        return lenient_record(LaunchRecord, at(self.launch, launcher))


def slurm_job() -> str | None:
    """Return the ``scontrol`` name of this process's Slurm job, or None outside a job.

    A task of an array is named ``ARRAY_TASK``. The first task's job number is also the number of
    the array, so ``scontrol requeue`` with that number would requeue all tasks.
    """
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def describe_launch() -> dict[str, LaunchRecord]:
    """Return the launchers of this process by name: ``slurm``, ``torchrun``, ``script``."""
    torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    if torchrun == "none":  # the default; host and agent process identify a launch on one machine
        alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
        torchrun = f"{socket.gethostname()}:{os.getppid()}" if alone else None
    script = os.environ.get("SCE_VIDEO_LAUNCH")
    found: dict[str, LaunchRecord] = {}
    for kind, identity in (("slurm", slurm_job()), ("torchrun", torchrun), ("script", script)):
        if identity:
            count = os.environ.get(_RESTARTS[kind], "") if kind in _RESTARTS else ""
            found[kind] = LaunchRecord(identity, int(count) if count.isdecimal() else 0)
    return found


def starts_of(folder: str | Path) -> list[EarlierStart]:
    """Return the starts in a work folder's ``history.jsonl``, oldest first, without bad lines."""
    path = Path(folder, HISTORY)
    rows = [row for _, row in read_json_lines(path, [])] if path.is_file() else []
    return [lenient_record(EarlierStart, row) for row in rows if at(row, "event") == "start"]


def is_restart(folder: str | Path) -> bool:
    """Return whether the last training in a work folder was an earlier start of this launch."""
    if Path(folder).resolve() in _started:
        return False
    last = (starts_of(folder) or [EarlierStart()])[-1]
    for kind, now in describe_launch().items():
        before = last.launched_by(kind)
        # A script has a new id for each launch. The other launchers keep the id but count starts.
        later = kind not in _RESTARTS or before.restarts < now.restarts
        if before.id == now.id and later:
            return True
    return False


#: Signal sent before the time limit. submitit and Lightning use the same signal.
BEFORE_LIMIT = signal.SIGUSR1
#: Number of consecutive starts without a step after which a job is not requeued again.
MAX_STARTS_WITHOUT_STEP = 3
_SCONTROL_SECONDS = 120


def requeued_job(runner: Any) -> str | None:
    """Requeue the Slurm job of a run that ``BEFORE_LIMIT`` has stopped. All ranks call this.

    A run that has finished, has failed or was stopped by another signal is not requeued.

    Returns:
        The job; None if it was not requeued. If requeueing fails, the log contains the reason.
    """
    job = slurm_job()
    if job is None or getattr(runner.train_loop, "stopped_by", None) != BEFORE_LIMIT:
        return None

    def requeue() -> str | None:
        # Count the job's latest starts that began at the current iteration and made no step.
        here = [
            start.launched_by("slurm").id == job and start.iter == runner.iter
            for start in reversed(starts_of(runner.work_dir))
        ]
        idle = len(list(takewhile(bool, here)))
        if idle >= MAX_STARTS_WITHOUT_STEP:
            problem = (
                f"job {job} is not requeued: its last {idle} starts have done no step after "
                f"iteration {runner.iter}. Give it a longer time limit, or send the signal earlier"
            )
        elif reason := call_scontrol(job):
            problem = (
                f"job {job} could not be requeued: {reason}. The checkpoint is written. Run "
                f"`scontrol requeue {job}` on a machine with Slurm, or submit the job again with "
                "--resume"
            )
        else:
            runner.logger.info(f"job {job} is requeued. Its next start continues the training")
            return job
        runner.logger.error(problem)
        return None

    # Other ranks wait for rank 0, because srun ends all processes as soon as one ends.
    return run_on_main_rank(requeue)


def call_scontrol(job: str) -> str | None:
    """Call ``scontrol requeue``, and return the reason if it fails, else None."""
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job],
            timeout=_SCONTROL_SECONDS,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return f"there is no command scontrol on {socket.gethostname()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    text = " ".join((done.stderr or done.stdout).split())[:300]
    return f"scontrol exited with status {done.returncode}: {text}"


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

    The block may change the yielded outcome. An exception sets its status to ``failed``, and
    KeyboardInterrupt to ``interrupted``. A killed process leaves no second row. After a failure,
    the hooks' ``after_failure`` is called.
    """
    model = unwrap_model(runner.model)
    program, *arguments = sys.argv
    if program.startswith("sce-video "):  # commands change their program name for usage messages
        program = "sce-video"
    start = {
        "event": "start",
        "time": time.time(),
        "command": [program, *arguments],
        "launch": {kind: asdict(launch) for kind, launch in describe_launch().items()},
        "resumed_from": runner.resumed_from,
        "iter": runner.iter,
        "log": Path(runner.log_dir).name,
        "device": device_name(next(model.parameters()).device),
        "ranks": get_world_size(),
        "threads": torch.get_num_threads(),
        "accumulated": runner.optim_wrapper._accumulative_counts,
        "versions": installed_versions(),
        "own_parts": foreign_classes(runner.cfg),
        "data": describe_samples(runner.train_dataloader.dataset).row(),
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
    """Warn once if a file in the work folder cannot be written. Later writes are still tried."""
    path = Path(runner.work_dir, name)
    try:
        yield
    except WriteError as error:
        if path not in _unwritable:
            runner.logger.warning(f"{error}. The training goes on")
        _unwritable.add(path)


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file, with null for NaN and infinity, which JSON lacks.

    Raises:
        WriteError: If the row cannot be appended.
    """
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v
              for k, v in row.items()}  # fmt: skip
    append_text(path, json.dumps(finite, allow_nan=False) + "\n")


def append_or_warn(runner: Any, name: str, row: Mapping[str, object]) -> None:
    """Append a row to a file in the work folder on rank 0, and warn if it cannot be written."""
    if is_main_process():
        with warned_once(runner, name):
            append_row(Path(runner.work_dir, name), row)


def continue_rows(runner: Any, name: str) -> None:
    """Begin a training run's file of rows, or remove rows that a resumed run computes again.

    If an optimiser step had a different number of iterations before, the rows are renumbered to
    keep their steps. Damaged lines are kept, because their content is unknown, but an incomplete
    last line is removed. Only rank 0 does this, and it warns if the file cannot be written.
    """
    path = Path(runner.work_dir, name)
    if not is_main_process() or not path.exists():
        return
    starts = starts_of(runner.work_dir)
    if starts and starts[-1].log == Path(runner.log_dir).name:
        starts = starts[:-1]  # the current start is already recorded
    # If the number of processes has changed, so has the number of iterations per step.
    now = runner.optim_wrapper._accumulative_counts
    before = (starts[-1].accumulated if starts else None) or now
    before = before if before > 0 else now
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
