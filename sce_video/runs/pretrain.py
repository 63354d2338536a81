"""``sce-video pretrain``: from a folder of videos to a network, in one run or several seeds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.labelled import GroupColumns, read_labelled, tell_repeated
from sce_video.datasets.named_files import check_exists, check_network, check_out, check_videos
from sce_video.datasets.sources import listed_extensions
from sce_video.engine.recipes import find_recipe, methods
from sce_video.options.measure import CompareOptions
from sce_video.options.training import FOLDERS, PretrainOptions, given_settings
from sce_video.utils.run_files import CONFIG, PUBLIC_TEACHER, check_planned
from sce_video.utils.storage import join

if TYPE_CHECKING:
    from sce_video.pages.compare_page import Chance
    from sce_video.runs.planned_training import RunFolder

#: Page that compares all seeds, in the folder of their runs
COMPARISON = "compare.html"
#: Method whose recipe declares every setting except those of distill
_USUAL_METHOD = "sce"


@dataclass(frozen=True)
class PretrainResult:
    """Result of a pretraining command.

    Attributes:
        folders: Folder of the run, or of each seed's run.
        status: 0 if all runs are trained, or 128 + n if signal n has stopped a run.
        kept: Sentence about each run that keeps its best checkpoint.
        chance: Means and standard deviations over seeds; None for fewer than two finished seeds.
        comparison: Page that compares all seeds; None if ``chance`` is None.
    """

    folders: tuple[Path, ...]
    status: int = 0
    kept: tuple[str, ...] = ()
    chance: Chance | None = None
    comparison: Path | None = None

    def lines(self) -> list[str]:
        """Return the result as text for a terminal."""
        lines = [] if self.chance is None else self.chance.lines()
        written = [] if self.comparison is None else [f"written: {self.comparison}"]
        return [*lines, *self.kept, *written]


def pretrain(options: PretrainOptions) -> PretrainResult:
    """Pretrain a network on a folder or a table of videos. Labels are not needed.

    Settings that are not given are chosen for the videos and the machine
    (:mod:`sce_video.runs.choices`), and written with reasons to ``run.json`` in the folder of the
    run. With several seeds, the settings are chosen once, so that the runs differ only in their
    seeds, and the time budget applies to each run.

    Raises:
        FileNotFoundError: If a network, teacher or file does not exist.
        ValueError: If the videos, the network and the settings do not match each other, or the
            folder contains an earlier training run.
    """
    begun = time.monotonic()  # a time budget includes the imports below
    _check_names(options)
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.engine.hooks.checkpoint_hook import restore_run
    from sce_video.engine.work_dir import claimed_folder
    from sce_video.runs.plan_pretraining import plan_pretraining
    from sce_video.runs.planned_training import is_restarted, write_plan

    runs = _run_folders(options)
    resumed = options.resume
    if any(is_restarted(run.path) for run in runs):
        resumed = True
    elif resumed:
        for run in runs:
            if run.mirror is not None:  # the mirror may contain newer checkpoints
                restore_run(run.mirror, run.path)
    with ExitStack() as claims:
        if resumed:
            _check_resumed(options, runs)
        else:
            for run in runs:
                claims.enter_context(claimed_folder(run.path, options.overwrite))
            write_plan(plan_pretraining(options, begun), runs, options.overwrite)
        if options.plan:
            return PretrainResult(tuple(run.path for run in runs))
        return _train(options, runs, resumed, begun)


def _check_names(options: PretrainOptions) -> None:
    """Raise an error for an unusable method, setting or file."""
    check_out(options.out)
    known = methods()
    if options.method is not None and options.method not in known:
        raise ValueError(f"--method must be one of {', '.join(known)}, got {options.method!r}")
    if options.start is not None:
        check_network(options.start)
    if options.teacher is not None:
        check_network(options.teacher)
    elif options.named_method == "distill" and not options.resume:
        check_network(PUBLIC_TEACHER)
    extensions = listed_extensions(options.all_files)
    if options.videos is not None:
        check_videos(options.videos, extensions)
    columns = GroupColumns(options.group_column, options.fold_column).check(options.labels)
    if options.labels not in (None, FOLDERS):
        check_exists(options.labels, "CSV file of labels")
        tell_repeated(read_labelled(options.labels, options.videos, columns=columns))
    settings = given_settings(options)
    if settings:
        from sce_video.engine.config.changes import available_settings
        from sce_video.engine.config.inheritance import read_config

        method = options.named_method or _USUAL_METHOD
        available = available_settings(read_config(find_recipe(known[method])))
        for name in settings.keys() - available.keys():
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is not a setting of --method {method}. Remove {flag}")
    if options.resume and options.mirror is None and not _found_seeds(Path(options.out)):
        check_planned(options.out)


def _run_folders(options: PretrainOptions) -> list[RunFolder]:
    """Return the folder of the run, or of each seed's run: ``out/seed0``, ``out/seed1``."""
    from sce_video.runs.planned_training import RunFolder

    out, seeds = Path(options.out), options.seeds
    if seeds is None and options.resume and not Path(out, CONFIG).is_file():
        seeds = tuple(_found_seeds(out))
    if not seeds:
        return [RunFolder(out, mirror=options.mirror)]
    names = {seed: f"seed{seed}" for seed in seeds}
    mirrors = {seed: options.mirror and join(options.mirror, name) for seed, name in names.items()}
    return [RunFolder(out / name, seed, mirrors[seed]) for seed, name in names.items()]


def _found_seeds(out: Path) -> list[int]:
    """Return the seeds whose runs in a folder have a config, in ascending order."""
    names = (path.parent.name.removeprefix("seed") for path in out.glob(f"seed*/{CONFIG}"))
    return sorted(int(name) for name in names if name.isdecimal())


def _check_resumed(options: PretrainOptions, runs: Sequence[RunFolder]) -> None:
    """Check that there is a run to resume, and give new seeds the plan of the other seeds.

    Raises:
        ValueError: If there is no run to resume, or the folder of a new seed is in use.
    """
    from sce_video.engine.run_json import read_run_json
    from sce_video.engine.work_dir import claimed_folder
    from sce_video.runs.planned_config import planned_config
    from sce_video.runs.planned_training import write_run

    found = _found_seeds(Path(options.out))
    for run in runs:
        if run.seed is None or not found:
            check_planned(run.path)
        if Path(run.path, CONFIG).is_file():
            continue
        with claimed_folder(run.path):
            first = Path(options.out, f"seed{found[0]}")
            write_run(run, planned_config(first, videos=options.videos), read_run_json(first))


def _train(
    options: PretrainOptions, runs: Sequence[RunFolder], resumed: bool, begun: float
) -> PretrainResult:
    """Train the written config of every run, one after another on the whole machine.

    A signal that stops one run also prevents those that follow.
    """
    from sce_video.runs.keep_best import kept_message
    from sce_video.runs.launch import end_training
    from sce_video.runs.page import train_with_page
    from sce_video.runs.planned_config import resumable_config
    from sce_video.runs.planned_training import count_seconds
    from sce_video.runs.report import compare

    folders, status, stopped = tuple(run.path for run in runs), 0, False
    for number, run in enumerate(runs, 1):
        if run.seed is not None:
            finished = resumed and _has_finished(run.path)
            kept = " has finished and is kept" * finished
            print(f"{run.path.name} ({number} of {len(runs)}){kept}", flush=True)
            if finished:
                continue
        cfg = resumable_config(
            run.path / CONFIG,
            resume=resumed,
            track=options.track,
            mirror=run.mirror,
            videos=options.videos,
        )
        if run.seed is None:
            count_seconds(cfg, begun)
        runner = train_with_page(cfg, options.overwrite)
        status = end_training(runner)
        stopped = getattr(runner.train_loop, "stopped_by", None) is not None
        if stopped:
            break
        del runner  # free its memory before building the next network
    messages = {folder: kept_message(folder) for folder in folders}
    kept_lines = tuple(f"{folder}: {text}" for folder, text in messages.items() if text)
    if stopped or len(runs) < 2:
        return PretrainResult(folders, status, kept_lines)
    page = Path(options.out, COMPARISON)
    compared = compare(CompareOptions(runs=tuple(map(str, folders)), out=str(page)))
    return PretrainResult(folders, status, kept_lines, compared.chance, page)


def _has_finished(folder: Path) -> bool:
    """Return whether the last start of a run has finished its training."""
    from sce_video.engine.run_json import FINISHED
    from sce_video.pages.run_record import last_end, read_history

    end = last_end(read_history(folder, damaged=[]))  # a killed run may leave half a line
    return end is not None and end.status == FINISHED
