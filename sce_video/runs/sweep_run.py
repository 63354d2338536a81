"""Execution of a sweep's steps as commands, without repeating finished steps."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sce_video.runs.sweep_plan import Step
from sce_video.utils.cores import usable_cores
from sce_video.utils.files import check_regular, read_json, regular_file, write_json

# Files in the folder of a step
DONE = "done.json"
FAILED = "failed.json"
LOG = "sweep.log"
LOCK = "step.lock"
_TAIL = 20_000  # bytes at the end of a log in which the error is searched
_LOCK_SECONDS = 1.0  # seconds between two checks whether to stop
#: ``ValueError: text`` in a traceback, or ``train.py: error: text`` of a tool. The lines that
#: torchrun adds (``ChildFailedError:``, ``error_file: <N/A>``) are less informative.
_ERROR = re.compile(r"\w(Error|Exception): \S|\w: error: ")


@dataclass
class SweepRunner:
    """Runner of chains of steps, with a pool of threads that wait for the commands.

    A finished step has ``done.json`` in its folder, and a failed one ``failed.json`` with the last
    line of its log. Steps that depend on a failed step are left out, and the others continue. A
    lock per step lets several sweeps, or the shards of one, share an output folder.

    Args:
        root: Folder ``tools/``.
        out: Output folder.
        jobs: Number of chains that run in parallel.
        nproc: Number of processes per training run and test, one per GPU; 1 uses no launcher.
        report: Called with a line for every step that begins or ends.
    """

    root: Path
    out: Path
    jobs: int = 1
    nproc: int = 1
    report: Callable[[str], None] = print
    stopped_by: int = field(default=0, init=False)
    """The first signal that ended :meth:`run`, 0 for none and for SIGINT."""

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._running: set[subprocess.Popen] = set()
        self._mutex = threading.Lock()

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment for one job's commands, with its share of cores and GPUs."""
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
            # The number of a thread, slot_0, slot_1, ..., determines its share of cores and GPUs.
            slot = int(threading.current_thread().name.removeprefix("slot_"))
            return self._run_chain(chain, self.environment(slot))

        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
        before = {
            number: signal.signal(number, self._interrupt)
            for number in numbers
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup ignores SIGHUP
        }
        try:
            # Submit inside the try block, because a signal may arrive between two submissions.
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
            wait(futures)  # unlike this, Thread.join returns immediately after an interrupt
        except KeyboardInterrupt:
            with self._mutex:
                for process in self._running:
                    with suppress(ProcessLookupError):  # the process may have ended just now
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
                        # Another run may have finished the step while this one waited for the lock.
                        if not is_done(self.out, step) and not self._run_step(step, environment):
                            left.append(step)
                        break
                except Timeout:
                    if not waiting:
                        self.report(f"wait    {step.folder}: another run is at it")
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
            # Search only the new part of the log, because an earlier attempt wrote to it, too.
            begin = log.stat().st_size if log.is_file() else 0
            status = self._call(command, log, environment)
            if self._stopping.is_set():
                self.report(f"stopped {step.folder}")
                return False
            if status != 0:
                why = f"{_error_line(log, begin)} (status {status})"
                break
        if not why and not (folder / step.result).is_file():
            why = f"has written no {step.result}"
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
            # In its own session, the command does not receive Ctrl-C. This process asks it to end.
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
    """Return the last line after ``begun`` that states an error, or otherwise the last line."""
    with open(log, "rb", opener=regular_file) as file:
        file.seek(max(begin, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    errors = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    if not errors:
        return (lines or ["its log is empty"])[-1]
    # A heading such as "wrong values in the config:" is followed by the first of these values.
    last = errors[-1] + 1
    return " ".join(lines[last - 1 : last + lines[last - 1].endswith(":")])


def is_done(out: str | Path, step: Step) -> bool:
    """Return whether a step is finished and its result exists."""
    folder = Path(out) / step.folder
    return (folder / DONE).is_file() and (folder / step.result).is_file()


def progress_of(out: str | Path, steps: Sequence[Step]) -> frozenset[str]:
    """Return marks of finished steps and names of checkpoints, which show whether steps advance.

    The names of checkpoints count epochs or iterations.
    """
    folders = [Path(out) / step.folder for step in steps]
    return frozenset(
        str(file) for name in (DONE, "*.pth") for folder in folders for file in folder.rglob(name)
    )


def step_state(out: str | Path, step: Step) -> str:
    """Return ``done``, ``running``, ``failed: why``, ``interrupted`` or ``not run`` for a step."""
    folder = Path(out) / step.folder
    if is_done(out, step):
        return "done"
    if (folder / LOCK).is_file():
        try:
            with FileLock(folder / LOCK, timeout=0):
                pass
        except Timeout:
            return "running"
        except OSError:  # another user's folder
            pass
    if (folder / FAILED).is_file():
        return f"failed: {read_json(folder / FAILED).get('why', '')}"
    return "interrupted" if (folder / LOG).is_file() else "not run"
