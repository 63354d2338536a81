"""``sce-video finetune``: from a network and labelled videos to a tested classifier."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.datasets.labelled import GroupColumns, read_pair, tell_repeated
from sce_video.datasets.named_files import check_exists, check_network, check_out, check_videos
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.engine.recipes import finetunings
from sce_video.options.training import NONE, FinetuneOptions
from sce_video.utils.files import read_json
from sce_video.utils.run_files import CONFIG, RESULTS, check_planned

if TYPE_CHECKING:
    from sce_video.utils.errors import Alarm


@dataclass(frozen=True)
class FinetuneResult:
    """Result of a finetuning command.

    Attributes:
        folder: Folder of the run.
        status: 0 if the classifier is trained and tested, or 128 + n if signal n has stopped the
            run.
        metrics: Test metrics by name, as in ``results.json``; empty without a test.
        alarm: Warning if the classifier is not better than guessing; otherwise None.
    """

    folder: Path
    status: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    alarm: Alarm | None = None


def finetune(options: FinetuneOptions) -> FinetuneResult:
    """Train a video classifier from a pretrained network, test it, and write a page.

    Settings that are not given are chosen for source, videos and machine
    (:mod:`sce_video.runs.finetune_choices`), and written with reasons to ``run.json``.

    Raises:
        FileNotFoundError: If the source does not exist.
        ValueError: If the sets cannot be used, or do not match each other or the source, or the
            folder contains an earlier training run.
    """
    begun = time.monotonic()  # a time budget includes the imports below
    _check_names(options)
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.engine.work_dir import claimed_folder
    from sce_video.runs.after_training import guessing_alarm
    from sce_video.runs.launch import end_training
    from sce_video.runs.page import train_with_page
    from sce_video.runs.plan_finetuning import plan_finetuning
    from sce_video.runs.plan_frozen import PlannedFit
    from sce_video.runs.planned_config import resumable_config
    from sce_video.runs.planned_training import (
        RunFolder,
        count_seconds,
        is_restarted,
        write_plan,
    )

    folder = Path(options.out)
    resumed = options.resume or is_restarted(folder)
    with ExitStack() as claims:
        if not resumed:
            claims.enter_context(claimed_folder(folder, options.overwrite))
            planned = plan_finetuning(options, begun)
            write_plan(planned, [RunFolder(folder)], options.overwrite)
            if isinstance(planned, PlannedFit):
                planned.write_features()
        if options.plan:
            return FinetuneResult(folder)
        cfg = count_seconds(resumable_config(folder / CONFIG, resume=resumed), begun)
        runner = train_with_page(cfg, options.overwrite)
    status = end_training(runner)
    if getattr(runner.train_loop, "stopped_by", None) is not None:
        return FinetuneResult(folder, status)
    results = folder / RESULTS
    metrics = read_json(results)["metrics"] if results.is_file() else {}
    return FinetuneResult(folder, status, metrics, guessing_alarm(folder))


def _check_names(options: FinetuneOptions) -> None:
    """Raise an error for an unusable recipe, source, sets or run."""
    check_out(options.out)
    if options.resume:
        check_planned(options.out)
        return
    if options.recipe is not None and options.recipe not in (known := finetunings()):
        raise ValueError(
            f"--recipe must be one of {', '.join(known)}, got {options.recipe!r}. To use your own "
            "recipe, register it in a module (register_recipe), and name the module with --import"
        )
    columns = GroupColumns(options.group_column, options.fold_column).check(options.train)
    if options.source != NONE:
        check_network(str(options.source))
    extensions = listed_extensions(options.all_files)
    train, test = str(options.train), options.test
    sets = [train] if test is None else [train, test]
    if any(map(is_table, sets)):  # table rows are read later
        for path in sets:
            check_exists(path, "table or folder")
        return
    for path in filter(os.path.isdir, sets):
        check_videos(path, extensions)
    videos, tested = read_pair(train, test, options.data_root, columns, extensions)
    tell_repeated(videos, tested)
    if videos.folds:
        videos.in_fold(columns)
    if options.few is not None:
        videos.few(options.few, 0)
