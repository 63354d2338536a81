"""One planned pretraining with several seeds, one run after another, and their pooled metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.restarts import is_restart
from sce_video.engine.run_json import RunDescription, read_run_json
from sce_video.engine.work_dir import CONFIG, claimed_folder, remove_training
from sce_video.pages.compare_page import Chance
from sce_video.pages.curves import read_history
from sce_video.pages.run_record import FINISHED
from sce_video.runs.compare import write_comparison
from sce_video.runs.continued import Start, start_from
from sce_video.runs.launch import end_training
from sce_video.runs.page import train_with_page
from sce_video.runs.planned_config import planned_config, resumable_config
from sce_video.runs.pretrain import (
    PlannedTraining,
    planned_pretraining,
    write_run,
)
from sce_video.runs.sweep import check_seeds
from sce_video.utils.storage import join

#: The page of all seeds in the folder that holds their runs.
COMPARISON = "compare.html"
_MAX_SEED = 2**32 - 1  # numpy's


@dataclass(frozen=True)
class SeedRuns:
    """Folders of the runs of several seeds; 0 if all have ended, or 128 + n for signal n.

    ``chance`` has means and standard deviations over two seeds or more that have ended.
    """

    folders: list[Path]
    status: int
    chance: Chance = field(default_factory=Chance)


def seed_folder(out: str | Path, seed: int) -> Path:
    """The folder of the run of a seed: ``out/seed0``."""
    return Path(out, f"seed{seed}")


def found_seeds(out: str | Path) -> list[int]:
    """The seeds that have a config below ``out``, ascending."""
    names = (path.parent.name.removeprefix("seed") for path in Path(out).glob(f"seed*/{CONFIG}"))
    return sorted(int(name) for name in names if name.isdecimal())


@contextmanager
def claimed_seeds(
    out: str | Path,
    seeds: Sequence[int],
    plan: Callable[[], PlannedTraining],
    overwrite: bool = False,
) -> Iterator[None]:
    """Plan once for several seeds, in folders that nobody else uses, and write their configs.

    As :func:`~sce_video.runs.pretrain.claimed_plan`: all folders are locked first, each until its
    training has ended, and all earlier trainings are removed before the first config is written.
    """
    with ExitStack() as stack:
        for folder in (seed_folder(out, seed) for seed in seeds):
            stack.enter_context(claimed_folder(folder, overwrite))
        planned = plan()
        for seed in seeds if overwrite else ():
            if removed := remove_training(seed_folder(out, seed)):
                print(removed, flush=True)
        _write_runs(planned.config, planned.description(), out, seeds)
        yield


def _write_runs(config: Config, run: RunDescription, out: str | Path, seeds: Sequence[int]) -> None:
    """Write config and description of each seed to the folder of its run: only the seed differs."""
    for seed in seeds:
        own = copy.deepcopy(config)
        own.merge_from_dict({"randomness.seed": seed})
        own.work_dir = str(seed_folder(out, seed).resolve())
        write_run(seed_folder(out, seed), own, run)


def resumed_seeds(
    out: str | Path, seeds: Sequence[int] | None, videos: str | Path | None = None
) -> list[int]:
    """The seeds to resume: those given, or all found. A new one gets the config of the first found.

    Raises:
        ValueError: there is no run of a seed, or the folder of a new one is used.
    """
    found = found_seeds(out)
    if not found:
        raise ValueError(
            f"no training of a seed in {out} to resume: there is no {Path(out, 'seed0', CONFIG)}"
        )
    wanted = found if seeds is None else list(seeds)
    for seed in (seed for seed in wanted if seed not in found):
        with claimed_folder(seed_folder(out, seed)):
            first = seed_folder(out, found[0])
            config = planned_config(first, None, (), videos)
            _write_runs(config, read_run_json(first), out, [seed])
    return wanted


def train_seeds(
    out: str | Path,
    seeds: Sequence[int],
    *,
    resume: bool = False,
    overwrite: bool = False,
    track: Sequence[str] = (),
    mirror: str | None = None,
    videos: str | Path | None = None,
) -> SeedRuns:
    """Train the written config of every seed, one after another, and pool what they have logged.

    A signal that stops one of them ends all. With two finished runs or more ``out/compare.html``
    shows them beside each other.

    Args:
        out: Folder of the folders of the runs.
        seeds: In the order of the trainings.
        resume: Keep finished runs, resume stopped ones, start the others.
        overwrite: Remove earlier trainings of these seeds.
        track: As ``mirror``, see :func:`~sce_video.runs.launch.training_config`; each seed has a
            folder in the mirror.
        videos: Table in a store that the configs may name.

    Raises:
        ValueError: a folder holds an earlier training.
    """
    folders = [seed_folder(out, seed) for seed in seeds]
    # One after another: each training takes the whole machine, and budgets are for each run.
    for number, folder in enumerate(folders, 1):
        named = f"{folder.name} ({number} of {len(folders)})"
        continued = resume or is_restart(folder)
        last = read_history(folder, damaged=[])[-1:] if continued else []  # damaged: half a line
        if last and last[0].get("event") == "end" and last[0].get("status") == FINISHED:
            print(f"{named} has finished and is kept", flush=True)
            continue
        print(named, flush=True)
        own_mirror = None if mirror is None else join(mirror, folder.name)
        cfg = resumable_config(
            folder / CONFIG, resume=continued, track=track, mirror=own_mirror, videos=videos
        )
        runner = train_with_page(cfg, overwrite)
        if getattr(runner.train_loop, "stopped_by", None) is not None:
            return SeedRuns(folders, end_training(runner))
        del runner  # its memory, before the next network is built
    if len(folders) < 2:
        return SeedRuns(folders, 0)
    return SeedRuns(folders, 0, write_comparison(folders, Path(out, COMPARISON)))


def pretrain_seeds(
    videos: str | Path,
    out: str | Path,
    seeds: Sequence[int],
    *,
    method: str | None = None,
    hours: float | None = None,
    precision: str | None = None,
    overwrite: bool = False,
    keep: str | None = None,
    start: str | Path | Start | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SeedRuns:
    """:func:`~sce_video.pretrain` with several seeds, to ``out/seed0``, ``out/seed1``, ...

    The settings are chosen once, so that the runs differ in their seed only (the videos that are
    held out are the same), and hours are the budget of each run. ``out/compare.html`` shows them
    beside each other.

    Args:
        seeds: Different numbers.
        start: Network that all of them start from; :func:`~.continued.start_from` makes one with
            frozen quarters or adapters.
        settings: Those that the recipe declares, by name, as ``{"frames": 16}``; no ``seed``. All
            other arguments are those of :func:`~sce_video.pretrain`.

    Raises:
        ValueError: repeated seeds, or as :func:`~sce_video.pretrain`.
    """
    check_seeds(seeds, "--seeds")
    if wrong := [seed for seed in seeds if not 0 <= seed <= _MAX_SEED]:
        raise ValueError(f"--seeds: a seed is a whole number from 0 to {_MAX_SEED}, got {wrong[0]}")
    if "seed" in (settings or ()):
        raise ValueError("give seed or seeds, not both")

    def plan() -> PlannedTraining:
        return planned_pretraining(
            videos,
            out,
            method=method,
            hours=hours,
            precision=precision,
            settings=settings,
            start=start if isinstance(start, Start) else start_from(start, None, None),
            keep=keep,
        )

    restarted = any(is_restart(seed_folder(out, seed)) for seed in seeds)
    if restarted:  # not planned again, as of one training
        resumed_seeds(out, seeds, videos)
    with nullcontext() if restarted else claimed_seeds(out, seeds, plan, overwrite):
        return train_seeds(out, seeds, resume=restarted, overwrite=overwrite, videos=videos)
