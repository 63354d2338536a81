"""``sce-video sweep``: a table of pretrainings and their evaluations, resumable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.engine.recipes import find_sweep, shipped_folder
from sce_video.options.training import SweepOptions

if TYPE_CHECKING:
    from sce_video.runs.sweep_plan import Step, Sweep


@dataclass(frozen=True)
class StepState:
    """A step of a sweep and its state: ``done``, ``running``, ``failed: why``, ``not run``, ..."""

    step: Step
    state: str


@dataclass(frozen=True)
class SweepResult:
    """Result of one or several sweeps.

    Attributes:
        out: Folder of all steps and tables.
        steps: Steps of this part of the sweeps, with their states at the end.
        tables: Markdown of the table of each sweep, by its name; empty if only steps are listed.
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
        FileNotFoundError: If there is no such sweep, or a config is missing.
        ValueError: If two sweeps have the same name, or there is no such point or column.
        KeyboardInterrupt: After Ctrl-C, SIGTERM, SIGHUP or SIGUSR1. The running steps have written
            a checkpoint.
    """
    files = [find_sweep(name) for name in options.sweeps]
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.runs.sweep_plan import chains, plan, read_sweep
    from sce_video.runs.sweep_table import write_tables

    out, root = Path(options.out), shipped_folder()
    sweeps = _selected([read_sweep(file) for file in files], options)
    cells = plan(sweeps, out, options.pretrain_options, options.evaluate_options, root)
    number, count = options.part
    work = chains(cells)[number - 1 :: count]  # every count-th chain
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
        ValueError: If two sweeps have one name, or no sweep has a point or column.
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
    """Raise ValueError for the name of a point or column that no sweep has."""
    for name in sorted(set(wanted) - set(known)):
        raise ValueError(f"no {kind} {name!r}; there are {', '.join(dict.fromkeys(known))}")


def _states(out: Path, steps: Sequence[Step]) -> tuple[StepState, ...]:
    from sce_video.runs.sweep_run import step_state

    return tuple(StepState(step, step_state(out, step)) for step in steps)


def describe_steps(states: Sequence[StepState]) -> str:
    """Describe steps: ``24 pretrainings and 72 evaluations, 3 of these 96 steps are done``."""
    trained = sum(one.step.folder.startswith("pretrain/") for one in states)
    done = sum(one.state == "done" for one in states)
    return (
        f"{trained} pretrainings and {len(states) - trained} evaluations, {done} of these "
        f"{len(states)} steps are done"
    )


def _run(options: SweepOptions, work: Sequence[Sequence[Step]], steps: Sequence[Step]) -> int:
    """Run the steps; return how many failed or were left out."""
    from sce_video.engine.restarts import BEFORE_LIMIT, slurm_job
    from sce_video.runs.sweep_run import SweepRunner, progress_of

    out, say = Path(options.out), partial(print, flush=True)
    say(describe_steps(_states(out, steps)))
    runner = SweepRunner(shipped_folder(), out, options.jobs, options.nproc, say)
    # A job that has advanced by nothing would be requeued for ever.
    before = progress_of(out, steps)
    try:
        return len(runner.run(work))
    except KeyboardInterrupt:
        job = slurm_job()
        if runner.stopped_by == BEFORE_LIMIT and job is not None:
            print(_requeue(job, progress_of(out, steps) != before), file=sys.stderr)
        raise


def _requeue(job: str, advanced: bool) -> str:
    """Requeue a job that ran out of time; return what to print.

    Args:
        job: Name of the job, as ``scontrol`` expects it.
        advanced: Whether this start has finished a step or written a checkpoint; otherwise, neither
            would the next start.
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
