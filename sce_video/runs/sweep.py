"""``sce-video sweep``: a table of pretraining runs and their evaluations, which can be resumed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sce_video.engine.recipes import find_sweep, shipped_folder
from sce_video.options.training import SweepOptions
from sce_video.runs.sweep_plan import (
    DONE,
    FAILED,
    LOCK,
    LOG,
    Step,
    Sweep,
    chains,
    is_done,
    plan,
    progress_of,
    read_sweep,
    step_state,
)
from sce_video.utils.cores import usable_cores
from sce_video.utils.files import check_regular, regular_file, write_json

#: Number of bytes at the end of a log that are searched for the error
_TAIL = 20_000
#: Seconds between two checks for a request to stop
_LOCK_SECONDS = 1.0
#: Pattern for ``ValueError: text`` in a traceback, or ``train.py: error: text`` from a tool. It
#: does not match the lines that torchrun adds (``ChildFailedError:``, ``error_file: <N/A>``), which
#: are less informative.
_ERROR = re.compile(r"\w(Error|Exception): \S|\w: error: ")


@dataclass(frozen=True)
class StepState:
    """Step of a sweep, and its state (:func:`~sce_video.runs.sweep_plan.step_state`)."""

    step: Step
    state: str


@dataclass(frozen=True)
class SweepResult:
    """Result of one or several sweeps.

    Attributes:
        out: Folder of all steps and tables.
        steps: Steps in this part of the sweeps, with their final states.
        tables: Markdown table of each sweep, by its name; empty if the steps are only listed.
        left: Number of steps that failed or were left out.
    """

    out: Path
    steps: tuple[StepState, ...]
    tables: dict[str, str]
    left: int = 0


def sweep(options: SweepOptions) -> SweepResult:
    """Pretrain and evaluate every point of a sweep, and write its table.

    Finished steps are kept. A Slurm job that runs out of time is requeued.

    Raises:
        FileNotFoundError: If a sweep or a config does not exist.
        ValueError: If two sweeps have the same name, or a point or column does not exist.
        KeyboardInterrupt: After Ctrl-C, SIGTERM, SIGHUP or SIGUSR1. The running steps have then
            written a checkpoint.
    """
    files = [find_sweep(name) for name in options.sweeps]
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.runs.sweep_table import write_tables

    out, root = Path(options.out), shipped_folder()
    sweeps = _selected([read_sweep(file) for file in files], options)
    cells = plan(sweeps, out, options.pretrain_options, options.evaluate_options, root)
    number, count = options.part
    work = chains(cells)[number - 1 :: count]  # every ``count``-th chain
    steps = [step for chain in work for step in chain]
    if options.list_steps:
        return SweepResult(out, _states(out, steps), {})
    left = 0 if options.only_report else _run(options, work, steps)
    texts = write_tables(sweeps, cells, out)
    tables = {one.name: text for one, text in zip(sweeps, texts, strict=True)}
    return SweepResult(out, _states(out, steps), tables, left)


def _selected(sweeps: Sequence[Sweep], options: SweepOptions) -> list[Sweep]:
    """Return the sweeps with the requested seeds, points and columns.

    Raises:
        ValueError: If two sweeps have the same name, or no sweep has a requested point or column.
    """
    names = [one.name for one in sweeps]
    if len(set(names)) < len(names):
        raise ValueError(f"two sweeps have the same name: {', '.join(sorted(names))}")
    _check_known("point", options.points, [p.name for one in sweeps for p in one.points])
    _check_known("column", options.columns, [c.name for one in sweeps for c in one.columns])
    found = []
    for one in sweeps:
        points = [p for p in one.points if not options.points or p.name in options.points]
        columns = one.columns
        if options.columns:
            columns = tuple(column for column in columns if column.name in options.columns)
            points = [point for point in points if any(map(point.has, columns))]
        seeds = one.seeds if options.seeds is None else options.seeds
        found.append(replace(one, seeds=seeds, columns=columns, points=tuple(points)))
    return [one for one in found if one.points]


def _check_known(kind: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError if no sweep has a point or column of a wanted name."""
    for name in sorted(set(wanted) - set(known)):
        raise ValueError(f"no {kind} {name!r}; there are {', '.join(dict.fromkeys(known))}")


def _states(out: Path, steps: Sequence[Step]) -> tuple[StepState, ...]:
    return tuple(StepState(step, step_state(out, step)) for step in steps)


def describe_steps(states: Sequence[StepState]) -> str:
    """Describe steps: ``24 pretraining runs and 72 evaluations; 3 of these 96 steps are done``."""
    trained = sum(one.step.folder.startswith("pretrain/") for one in states)
    done = sum(one.state == "done" for one in states)
    return (
        f"{trained} pretraining runs and {len(states) - trained} evaluations; {done} of these "
        f"{len(states)} steps are done"
    )


def _run(options: SweepOptions, work: Sequence[Sequence[Step]], steps: Sequence[Step]) -> int:
    """Run the steps, and return how many failed or were left out."""
    from sce_video.engine.restarts import BEFORE_LIMIT, slurm_job

    out, say = Path(options.out), partial(print, flush=True)
    say(describe_steps(_states(out, steps)))
    runner = SweepRunner(shipped_folder(), out, options.jobs, options.nproc, say)
    # Remember the progress, because a job that makes none would be requeued forever.
    before = progress_of(out, steps)
    try:
        return len(runner.run(work))
    except KeyboardInterrupt:
        job = slurm_job()
        if runner.stopped_by == BEFORE_LIMIT and job is not None:
            print(_requeue(job, progress_of(out, steps) != before), file=sys.stderr)
        raise


def _requeue(job: str, advanced: bool) -> str:
    """Requeue a job that ran out of time, and return a sentence about it.

    The job is not requeued if no step has ``advanced``, because the next start would not get
    further.
    """
    from sce_video.engine.restarts import call_scontrol

    if not advanced:
        return (
            f"job {job} is not requeued, because no step has advanced since it started. Give it a "
            "longer time limit, or send the signal earlier"
        )
    reason = call_scontrol(job)
    if reason is not None:
        return f"job {job} could not be requeued: {reason}. Submit it again to resume"
    return f"job {job} is requeued; its next start continues the sweep"


@dataclass
class SweepRunner:
    """Runner of chains of steps, with a pool of threads that wait for the commands.

    The folder of a finished step contains ``done.json``. The folder of a failed step contains
    ``failed.json`` with the last line of the step's log. Steps that depend on a failed step are
    left out, and the others continue. Each step has a lock, so several sweeps, or the shards of a
    sweep, can share an output folder.

    Args:
        root: Folder that contains ``tools/``.
        out: Output folder.
        jobs: Number of chains that run in parallel.
        nproc: Number of processes per training run and test, one per GPU; 1 uses no launcher.
        report: Function that is called with a line for every step that begins or ends.
    """

    root: Path
    out: Path
    jobs: int = 1
    nproc: int = 1
    report: Callable[[str], None] = print
    stopped_by: int = field(default=0, init=False)
    """First signal that ended :meth:`run`; 0 for none and for SIGINT."""
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _running: set[subprocess.Popen] = field(default_factory=set, init=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock, init=False)

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment for a job's commands, with the job's share of cores and GPUs."""
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        if self.jobs * self.nproc > 1:
            cores = usable_cores() // (self.jobs * self.nproc)
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        if self.jobs > 1:  # several jobs share a GPU if there are fewer GPUs
            import torch

            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            count = torch.cuda.device_count()
            names = visible.split(",") if visible else [str(i) for i in range(count)]
            first = slot * self.nproc
            mine = [names[(first + i) % len(names)] for i in range(self.nproc)] if names else []
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(mine))
        return environment

    def run(self, chains: Sequence[Sequence[Step]]) -> list[Step]:
        """Run all unfinished steps, and return the steps that failed or were left out.

        Raises:
            KeyboardInterrupt: If Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 is received. Running training
                runs have then written a checkpoint. A second signal kills them.
        """
        pool = ThreadPoolExecutor(self.jobs, "slot")
        futures: list[Future[list[Step]]] = []

        def run_chain(chain: Sequence[Step]) -> list[Step]:
            # The threads are named slot_0, slot_1 and so on. The number determines a thread's share
            # of cores and GPUs.
            slot = int(threading.current_thread().name.removeprefix("slot_"))
            return self._run_chain(chain, self.environment(slot))

        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
        before = {
            number: signal.signal(number, self._interrupt)
            for number in numbers
            if signal.getsignal(number) is not signal.SIG_IGN  # under nohup, SIGHUP stays ignored
        }
        try:
            # Submit inside the try block, because a signal may arrive between two submits.
            futures.extend(pool.submit(run_chain, chain) for chain in chains)
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()  # an error stops the others immediately
            return [step for future in futures for step in future.result()]
        finally:
            try:
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop([future for future in futures if not future.cancelled()])
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        if number == self.stopped_by == signal.SIGUSR1:
            return  # Slurm may send this signal twice
        self.stopped_by = self.stopped_by or number
        raise KeyboardInterrupt

    def _stop(self, futures: Sequence[Future]) -> None:
        """Ask the running commands to end with a checkpoint, and wait for them."""
        with self._mutex:
            self._stopping.set()
            for process in self._running:
                process.terminate()
        try:
            wait(futures)  # Thread.join would return immediately after an interrupt
        except KeyboardInterrupt:
            with self._mutex:
                for process in self._running:
                    with suppress(ProcessLookupError):  # the process may have just ended
                        os.killpg(process.pid, signal.SIGKILL)
            wait(futures)
            raise

    def _run_chain(self, chain: Sequence[Step], environment: dict[str, str]) -> list[Step]:
        """Run the steps of a chain, and return the steps that failed or were left out."""
        left: list[Step] = []
        for step in chain:
            waiting = False
            folder = self.out / step.folder
            while not self._stopping.is_set() and step.before not in left:
                folder.mkdir(parents=True, exist_ok=True)
                check_regular(folder / LOCK, written=True)
                try:
                    with FileLock(folder / LOCK, timeout=_LOCK_SECONDS):
                        # Another run may have finished the step while this one was waiting.
                        if not is_done(self.out, step) and not self._run_step(step, environment):
                            left.append(step)
                        break
                except Timeout:
                    if not waiting:
                        self.report(f"wait    {step.folder}: another run is working on it")
                    waiting = True
            else:
                left.append(step)
        return left

    def _run_step(self, step: Step, environment: dict[str, str]) -> bool:
        """Run the commands of a step, and return whether it is finished."""
        folder = self.out / step.folder
        (folder / FAILED).unlink(missing_ok=True)
        start, log, why = time.monotonic(), folder / LOG, ""
        for command in step.commands:
            name = command[2] if command[0] == "-m" else command[0]
            self.report(f"start   {step.folder}: {name}")
            # Remember where this attempt begins in the log, because earlier attempts wrote to the
            # same file.
            begin = log.stat().st_size if log.is_file() else 0
            status = self._call(command, log, environment)
            if self._stopping.is_set():
                self.report(f"stopped {step.folder}")
                return False
            if status != 0:
                why = f"{_error_line(log, begin)} (status {status})"
                break
        if not why and not (folder / step.result).is_file():
            why = f"did not write {step.result}"
        if why:
            write_json(folder / FAILED, {"command": shlex.join(command), "why": why})
            self.report(f"FAILED  {step.folder}: {why}, {log}")
            return False
        seconds = round(time.monotonic() - start, 1)
        commands = [shlex.join(("python", *command)) for command in step.commands]
        write_json(folder / DONE, {"commands": commands, "seconds": seconds})
        self.report(f"done    {step.folder}: {seconds:.0f} s")
        return True

    def _call(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> int:
        """Run a tool, through torchrun if it has several processes, and return its exit status."""
        full = [*command]
        if command[0] != "-m":  # a script in tools/ instead of a command of the package
            full[0] = str(self.root / command[0])
        if self.nproc > 1:
            options = [f"--nproc_per_node={self.nproc}"]
            if seconds := os.environ.get("STOP_SECONDS"):  # as in tools/dist_train.sh
                options.append(f"--shutdown_timeout={seconds}")
            launcher = ["-m", "torch.distributed.run", "--standalone", *options]
            full = [*launcher, *full, "--launcher", "pytorch"]
        with open(log, "ab", opener=regular_file) as file:
            # In its own session, the command does not receive Ctrl-C, so this process asks it to
            # stop.
            process = subprocess.Popen(
                [sys.executable, *full],
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
            with self._mutex:
                self._running.add(process)
                if self._stopping.is_set():
                    process.terminate()
            try:
                return process.wait()
            finally:
                with self._mutex:
                    self._running.discard(process)


def _error_line(log: Path, begin: int) -> str:
    """Return the last line that states an error or, if there is none, the last line.

    Only the log from byte ``begin`` on is searched.
    """
    with open(log, "rb", opener=regular_file) as file:
        file.seek(max(begin, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    errors = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    if not errors:
        return (lines or ["its log is empty"])[-1]
    # After a heading such as "wrong values in the config:", append the first of these values.
    last = errors[-1] + 1
    return " ".join(lines[last - 1 : last + lines[last - 1].endswith(":")])
