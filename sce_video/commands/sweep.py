"""Make a table: pretrain and evaluate every point of a sweep, with the paper's numbers beside.

    sce-video sweep configs/sweeps/video_lambda.py --out work_dirs/ablations [--nproc 8]
    sce-video sweep configs/sweeps/video_*.py --out work_dirs/ablations --list
    sbatch --array=1-24 --gres=gpu:8 tools/slurm_sweep.sh configs/sweeps/video_*.py \
        --out work_dirs/ablations --nproc 8

The same command continues an interrupted sweep: finished steps are kept, trainings resume, failed
steps are repeated. Points with equal settings, of one sweep or several, are trained once. Writes
OUT/<sweep>.md, .json and .png; --report writes them from what is finished so far.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.commands.arguments import command_line, number
from sce_video.engine.recipes import find_sweep, shipped_folder
from sce_video.utils.command import command

if TYPE_CHECKING:
    from sce_video.runs.sweep import Step, Sweep, SweepCell


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line("Pretrain and evaluate every point of a sweep.")
    add("sweeps SWEEP", "a file, or a name in configs/sweeps", nargs="+")
    add("--out", "folder of all steps and tables", Path, required=True)
    add("--seeds", "instead of those of the sweeps", number(int, 0), nargs="+")
    add("--points NAME", "only these rows", nargs="+")
    add("--columns NAME", "only these columns", nargs="+")
    changed = "change the config of every step that"
    add("--pretrain-options KEY=VALUE", f"{changed} pretrains", nargs="+", default=[])
    add("--evaluate-options KEY=VALUE", f"{changed} evaluates", nargs="+", default=[])
    add("--jobs", "pretrainings side by side (1)", number(int, 1), default=1)
    add("--nproc", "processes of each step, one for each GPU (1)", number(int, 1), default=1)
    add("--shard I/N", "part I of N of the pretrainings", default="1/1")
    what = add.exclusive()
    what("--list", "show the steps and their state only", bool)
    what("--report", "write the tables only", bool)
    return parser.parse_args(argv)


def selected(args: argparse.Namespace) -> list[Sweep]:
    """The sweeps with the seeds, points and columns that were asked for.

    Raises:
        ValueError: two files of one name, or a point or column that no sweep has.
    """
    from sce_video.runs.sweep import check_seeds, read_sweep

    sweeps = [read_sweep(find_sweep(path)) for path in args.sweeps]
    names = [sweep.name for sweep in sweeps]
    if len(set(names)) < len(names):
        raise ValueError(f"two sweeps have the same name: {', '.join(sorted(names))}")
    if args.seeds:
        check_seeds(args.seeds, "--seeds")
        sweeps = [replace(sweep, seeds=tuple(args.seeds)) for sweep in sweeps]
    for kind, wanted in (("point", args.points), ("column", args.columns)):
        known = [one.name for sweep in sweeps for one in getattr(sweep, f"{kind}s")]
        unknown = sorted(set(wanted or ()) - set(known))
        if unknown:
            there_are = ", ".join(dict.fromkeys(known))
            raise ValueError(f"no {kind} {unknown[0]!r}; there are {there_are}")
    for n, sweep in enumerate(sweeps):
        points = [p for p in sweep.points if p.name in (args.points or [p.name])]
        columns = sweep.columns
        if args.columns:
            columns = tuple(column for column in columns if column.name in args.columns)
            points = [point for point in points if any(map(point.has, columns))]
        sweeps[n] = replace(sweep, columns=columns, points=tuple(points))
    return [sweep for sweep in sweeps if sweep.points]


def describe_steps(steps: Sequence[Step], out: Path) -> str:
    """``24 pretrainings and 72 evaluations, 3 of these 96 steps are done``."""
    from sce_video.runs.sweep_run import step_state

    trained = sum(step.folder.startswith("pretrain/") for step in steps)
    done = sum(step_state(out, step) == "done" for step in steps)
    return (
        f"{trained} pretrainings and {len(steps) - trained} evaluations, {done} of these "
        f"{len(steps)} steps are done"
    )


def requeue(job: str, advanced: bool) -> str:
    """Requeue a job that ran out of time; returns what to print.

    Args:
        job: As ``scontrol`` names it.
        advanced: Whether this start has finished a step or written a checkpoint; otherwise the next
            one would not either.
    """
    from sce_video.engine.restarts import call_scontrol

    if not advanced:
        return (
            f"job {job} is not requeued: since its start no step has advanced; give it a longer "
            "time limit, or an earlier signal"
        )
    reason = call_scontrol(job)
    if reason is not None:
        return f"job {job} could not be requeued: {reason}; submit it again, it resumes"
    return f"job {job} is requeued; its next start continues the sweep"


def _show_tables(sweeps: Sequence[Sweep], cells: Sequence[SweepCell], out: Path) -> None:
    from sce_video.runs.sweep_table import write_tables

    for sweep, text in zip(sweeps, write_tables(sweeps, cells, out), strict=True):
        print(f"\n{text}\nwritten to {out / sweep.name}.md, .json and .png")


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweeps; returns the exit status, 1 if a step failed."""
    args = parse_args(argv)
    shard = re.fullmatch(r"(\d+)/(\d+)", args.shard)
    if shard is None or not 1 <= int(shard[1]) <= int(shard[2]):
        raise ValueError(f"--shard must be i/n with i from 1 to n, such as 2/4, got {args.shard!r}")
    for name in args.sweeps:
        find_sweep(name)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.engine.restarts import BEFORE_LIMIT, slurm_job
    from sce_video.runs.sweep import chains, plan
    from sce_video.runs.sweep_run import SweepRunner, progress_of, step_state

    root = shipped_folder()
    say = partial(print, flush=True)
    runner = SweepRunner(root, args.out, args.jobs, args.nproc, say)
    sweeps = selected(args)
    cells = plan(sweeps, args.out, args.pretrain_options, args.evaluate_options, root)
    work = chains(cells)[int(shard[1]) - 1 :: int(shard[2])]  # every n-th chain
    steps = [step for chain in work for step in chain]
    if args.list:
        for step in steps:
            print(f"{step_state(args.out, step):<12} {step.folder}")
            for one in step.commands:
                print("    " + shlex.join(("python", *one)))
        print(describe_steps(steps, args.out))
        return 0
    if args.report:
        _show_tables(sweeps, cells, args.out)
        return 0
    print(describe_steps(steps, args.out), flush=True)
    # A job that has advanced by nothing would be requeued for ever.
    before = progress_of(args.out, steps)
    try:
        left = runner.run(work)
    except KeyboardInterrupt:
        job = slurm_job()
        if runner.stopped_by == BEFORE_LIMIT and job is not None:
            print(requeue(job, progress_of(args.out, steps) != before), file=sys.stderr)
        raise
    _show_tables(sweeps, cells, args.out)
    if left:
        print(f"{len(left)} of {len(steps)} steps failed or were left out", file=sys.stderr)
    return 1 if left else 0
