"""A training that stops before its Slurm job runs out of time goes back into the queue.

Slurm sends SIGUSR1 some time before the limit (``--signal=USR1@SECONDS``); the training writes a
checkpoint, rank 0 calls ``scontrol requeue``, and the next start of the job continues
(:mod:`~sce_video.engine.restarts`). SIGTERM, which ``scancel`` sends, requeues nothing.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import Any

from sce_video.engine.restarts import slurm_job, starts_of
from sce_video.utils.distributed import run_on_main_rank

#: The signal before the time limit, also that of submitit and Lightning.
BEFORE_LIMIT = signal.SIGUSR1
#: A job with so many starts without a step between them is not requeued again.
MAX_STARTS_WITHOUT_STEP = 3
_SCONTROL_SECONDS = 120


def requeued_job(runner: Any) -> str | None:
    """Requeue the Slurm job of a training that ``BEFORE_LIMIT`` has stopped; all ranks call this.

    A training that has finished, failed or was stopped by another signal is not requeued.

    Returns:
        The job; None if it was not requeued. Where it should have been, the log has the reason.
    """
    job = slurm_job()
    if job is None or getattr(runner.train_loop, "stopped_by", None) != BEFORE_LIMIT:
        return None
    # Rank 0 alone; the others wait, since the first that ends makes srun end all.
    return run_on_main_rank(lambda: _requeue(job, runner))


def _requeue(job: str, runner: Any) -> str | None:
    idle = _starts_without_step(job, runner)
    if idle >= MAX_STARTS_WITHOUT_STEP:
        runner.logger.error(
            f"job {job} is not requeued: its last {idle} starts have done no step after iteration "
            f"{runner.iter}; a longer time limit, or an earlier signal, leaves time for one"
        )
        return None
    reason = call_scontrol(job)
    if reason is None:
        runner.logger.info(f"job {job} is requeued; its next start continues the training")
        return job
    runner.logger.error(
        f"job {job} could not be requeued: {reason}; the checkpoint is written: run `scontrol "
        f"requeue {job}` where Slurm is installed, or submit the job again with --resume"
    )
    return None


def _starts_without_step(job: str, runner: Any) -> int:
    """How many of the job's last starts, one after another, began where the training is now."""
    count = 0
    for start in reversed(starts_of(runner.work_dir)):
        launch = start.get("launch")
        slurm = launch.get("slurm") if isinstance(launch, dict) else None
        if not isinstance(slurm, dict) or slurm.get("id") != job:
            break
        if start.get("iter") != runner.iter:
            break
        count += 1
    return count


def call_scontrol(job: str) -> str | None:
    """Call ``scontrol requeue``; the reason of a failure, else None."""
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SCONTROL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return f"there is no scontrol on {socket.gethostname()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    text = " ".join((done.stderr or done.stdout).split())[:300]
    return None if done.returncode == 0 else f"scontrol has status {done.returncode}: {text}"
