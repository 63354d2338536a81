"""Train a classifier of videos from a network, with settings chosen for it, and test it.

    sce-video finetune SOURCE --train TRAIN --test TEST --out RUN [--few 10] [--hours 2]
    sce-video finetune SOURCE --train clips.csv --group-column person --out RUN

SOURCE is a run, a checkpoint, a model of transformers (hf:NAME), an exported folder, or none for
random weights. TRAIN and TEST are folders with a sub-folder for each class, tables, lists of 'path
label' as the search page writes them, or CSV files with the columns path and label; without --test
a quarter of the videos is held out. Prints the chosen settings with a reason each, writes them to
RUN/config.py, trains, tests with several views of each video, and writes the page RUN/run.html.
Ctrl-C, SIGTERM or SIGHUP completes the current step and writes a checkpoint; --out RUN --resume
continues from it, and reads RUN/run.json as data. `python tools/train.py RUN/config.py` is the
same training, and runs that file. Then: sce-video predict RUN VIDEOS
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sce_video.commands.arguments import (
    RUN,
    add_columns,
    command_line,
    given_columns,
    number,
    output,
    pattern,
    tell_repeated,
)
from sce_video.commands.pretrain import PRECISIONS, check_network, parse_settings
from sce_video.datasets.labelled import NO_COLUMNS, read_pair
from sce_video.datasets.named_files import check_exists, check_videos
from sce_video.datasets.sources import is_table
from sce_video.engine.config.changes import read_config
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command, printable
from sce_video.utils.run_files import CONFIG

#: Of :mod:`sce_video.runs`, whose import takes seconds.
FINETUNING, NONE, HEADS = "r3d18_folder", "none", ("linear", "attentive")
_HELP = {
    "frozen": "stages of the network that are not trained: -1 none, 4 all",
    "width": "channels of the stem, with none as source",
    "dropout": "share of the features that the classifier does not see in a step",
    "clip_duration": "seconds that a clip spans",
    "frames": "frames of a clip",
    "size": "height and width of a clip, pixels",
    "flip": "probability that a clip is mirrored; 0 where left and right are classes",
    "batch": "videos of an optimiser step, of all processes together",
    "epochs": "epochs to train",
    "warmup": "epochs in which the learning rate rises",
    "lr": "learning rate after the warm-up",
    "weight_decay": "of AdamW",
    "clips": "clips of a test video, whose probabilities are averaged",
    "crops": "crops of each of them, 1 or 3",
    "workers": "processes that decode",
    "seed": "of all random numbers",
}


def parse_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line, and the settings of the recipe in it."""
    parser, add = command_line(
        "Train a classifier of videos from a pretrained network, and test it.", allow_abbrev=False
    )
    add("source SOURCE", f"{RUN}; or none", nargs="?")
    labelled = "class folders, table (v.lance), list or CSV file"
    add("--train TRAIN", f"videos to train with: {labelled}")
    add("--test TEST", "to test with, likewise (default: a quarter of TRAIN, held out)")
    add("--out RUN", "folder of the run", output(Path), required=True)
    add.shared("--data-root", "--all-files")
    add("--group-pattern REGEX", "without --test: hold whole groups out, person(\\d+)", pattern)
    add_columns(add)
    add("--few N", "train with N videos of each class, drawn by the seed", number(int, 1))
    add("--hours", "budget of the command, instead of --epochs", number(float, above=0))
    add("--head", "classifier (default: chosen)", choices=HEADS)
    add("--precision", "default: what is fast here", choices=PRECISIONS)
    add("--plan", "write RUN/config.py, do not train", bool)
    start = add.exclusive()
    start("--resume", "continue the training in RUN", bool)
    start("--overwrite", "remove the training in RUN first", bool)
    args, settings = parse_settings(parser, add, read_config(find_recipe(FINETUNING)), _HELP, argv)
    args.columns = given_columns(args, args.train)
    return args, settings


def _check(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Raise an error for options, sets or a source that cannot be meant."""
    config = args.out / CONFIG
    if args.resume:
        names = ("source", "train", "test", "hours", "few", "head", "precision")
        given = [getattr(args, name) for name in names]
        if any(value is not None for value in given) or settings:
            raise ValueError("--resume takes everything from RUN/run.json: give --out RUN alone")
        if not config.is_file():
            raise ValueError(f"no training in {args.out} to resume: there is no {config}")
        return
    if args.source is None or args.train is None:
        raise ValueError("give SOURCE (a run, a checkpoint, or none) and --train, or --resume")
    if args.hours is not None and "epochs" in settings:
        raise ValueError("give hours or epochs, not both")
    if settings.get("crops", 1) not in (1, 3):
        raise ValueError(f"--crops must be 1 or 3, got {settings['crops']}")
    if args.test is not None and (args.group_pattern is not None or args.columns != NO_COLUMNS):
        raise ValueError("groups and folds are held out where there is no --test. Remove one")
    if args.source != NONE:
        check_network(args.source, settings)
    _check_sets(args)


def _check_sets(args: argparse.Namespace) -> None:
    """Raise an error for videos that cannot be meant."""
    sets = [path for path in (args.train, args.test) if path is not None]
    if any(map(is_table, sets)):  # their rows are read later
        for path in sets:
            check_exists(path, "table or folder")
        return
    for path in filter(os.path.isdir, sets):
        check_videos(path)
    videos, tested = read_pair(args.train, args.test, args.data_root, args.columns)
    tell_repeated(videos, tested)
    if videos.folds:
        videos.in_fold(args.columns)
    if args.few is not None:
        videos.few(args.few, 0)


@command(interrupted="interrupted; --resume continues from the last checkpoint, if there is one")
def main(argv: Sequence[str] | None = None) -> int:
    """Plan, train and test; the status is that of ``tools/train.py``."""
    args, settings = parse_args(argv)
    _check(args, settings)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from mmengine.dist import is_main_process

    from sce_video.runs.choices import process_began
    from sce_video.runs.classifier_test import guessing_alarm
    from sce_video.runs.finetune import planned_finetuning
    from sce_video.runs.launch import end_training
    from sce_video.runs.page import train_with_page
    from sce_video.runs.planned_config import resumable_config
    from sce_video.runs.pretrain import PlannedTraining, claimed_plan, count_seconds
    from sce_video.utils.distributed import leave_process_group

    # A budget in hours counts the imports, too.
    begun, config = process_began(), args.out / CONFIG
    names = ("test", "data_root", "group_pattern", "columns", "few", "hours")
    given = {name: getattr(args, name) for name in names}
    words = {"precision": args.precision, "head": args.head}
    chosen = settings | {name: word for name, word in words.items() if word is not None}

    def plan() -> PlannedTraining:
        planned = planned_finetuning(
            args.source, args.train, args.out, settings=chosen, begun=begun, **given
        )
        print("\n".join(map(printable, planned.lines())), flush=True)
        return planned

    with ExitStack() as stack:
        if not args.resume:
            stack.enter_context(claimed_plan(args.out, plan, args.overwrite))
            if args.plan:
                return 0
        cfg = count_seconds(resumable_config(config, resume=args.resume), begun)
        status = end_training(train_with_page(cfg, args.overwrite))
    if status == 0 and is_main_process():
        # The command for its predictions would recommend a classifier that guesses.
        alarm = guessing_alarm(args.out)
        predict = f"next: sce-video predict {shlex.quote(str(args.out))} VIDEOS"
        print(printable(predict if alarm is None else f"alarm {alarm.alarm}: {alarm}"))
    leave_process_group(status)
    return status
