"""Evaluate a pretraining on labelled videos: kNN, linear probe, retrieval.

    sce-video evaluate RUN --gallery TRAIN_VIDEOS --test TEST_VIDEOS [--random]
    sce-video evaluate RUN --test VIDEOS --group-pattern 'person(\\d+)'   # leave one person out
    sce-video evaluate RUN --gallery A --test B --protocols time [--factors '{appearance}_{motion}']

A class per first-level sub-folder, or the labels of a table (v.lance). RUN is the folder of a
training (its newest checkpoint) or a checkpoint in it; the config inside the checkpoint is read as
data, and RUN/config.py is not run. Prints a table and writes the results with
their provenance as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sce_video.commands.arguments import Parser, check_run, check_videos, pattern
from sce_video.utils.command import command
from sce_video.utils.run_files import is_model, newest_checkpoint
from sce_video.utils.storage import is_url, join, path_or_url

#: Of :data:`sce_video.evaluation.PROTOCOLS`, whose import takes seconds.
PROTOCOLS = ("few_shot", "knn", "linear", "retrieval", "time")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="Evaluate a pretraining on labelled videos.")
    parser.add_argument(
        "run",
        type=path_or_url,
        metavar="RUN",
        help="folder of a run, or its checkpoint; may be in an object store (s3://...); or a model "
        "of transformers: hf:FOLDER, hf:OWNER/MODEL",
    )
    parser.add_argument(
        "--test",
        required=True,
        help="folder, a class per sub-folder; or a table with labels (v.lance)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gallery", help="labelled videos to classify the test by")
    source.add_argument(
        "--group-pattern",
        type=pattern,
        metavar="REGEX",
        help="instead: the test videos themselves, without those whose paths have the same group",
    )
    parser.add_argument(
        "--protocols",
        nargs="+",
        choices=PROTOCOLS,
        help="instead of those of the run's recipe; time: the sense of time, from shuffled, "
        "reversed and still clips",
    )
    parser.add_argument(
        "--pairs", choices=["ssv2"], help="with time: accuracy within pairs of opposite classes"
    )
    parser.add_argument(
        "--factors",
        metavar="FORM",
        help="with time: accuracy of the parts of the class names, '{appearance}_{motion}'",
    )
    parser.add_argument("--random", action="store_true", help="the same with random weights")
    parser.add_argument(
        "--out",
        type=path_or_url,
        help="JSON file or URL (default: RUN/results.json; of a model "
        "work_dirs/MODEL/results.json)",
    )
    args = parser.parse_args(argv)
    for name in ("pairs", "factors"):
        if getattr(args, name) is not None and "time" not in (args.protocols or ()):
            parser.error(f"--{name} belongs to the protocol time, which is not in --protocols")
    return args


def evaluator(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Configs of the metrics of the chosen protocols, with their options."""
    from sce_video.evaluation import PROTOCOLS as METRICS

    given = {name: getattr(args, name) for name in ("pairs", "factors")}
    of_time = {name: value for name, value in given.items() if value is not None}
    return [
        {"type": METRICS[name].__name__, **(of_time if name == "time" else {})}
        for name in args.protocols
    ]


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The changes of the run's config, by key: as text a folder ``2023`` would be a number."""
    from sce_video.datasets import dataset_settings

    folders = {"test_dataloader": args.test, "test_cfg.gallery_dataloader": args.gallery}
    changes: dict[str, Any] = {
        f"{loader}.dataset.{name}": value
        for loader, folder in folders.items()
        if folder is not None
        for name, value in dataset_settings(folder).items()
    }
    if args.gallery is None:
        changes["test_cfg.gallery_dataloader"] = None
        changes["test_cfg.group_pattern"] = args.group_pattern
    return changes


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit status."""
    args = parse_args(argv)
    check_run(args.run)
    for folder in filter(None, (args.test, args.gallery)):
        check_videos(folder)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.engine.runner import RANDOM
    from sce_video.engine.work_dir import folder_of_run
    from sce_video.inference.encoders.run import run_of_model
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs import launch

    run = run_of_model(args.run) if is_model(args.run) else args.run
    # The run of a model is in a cache, which is no folder for results.
    folder = Path("work_dirs", Path(run).name) if is_model(args.run) else folder_of_run(run)
    name = "results_random.json" if args.random else "results.json"
    checkpoint = newest_checkpoint(run)
    cfg = launch.testing_config(
        stored_test(checkpoint),
        RANDOM if args.random else checkpoint,
        work_dir=Path("work_dirs" if is_url(folder) else folder, "evaluation"),
        out=args.out or join(folder, name),
        cfg_options=options(args),
    )
    if args.protocols is not None:
        cfg.test_evaluator = evaluator(args)
    launch.test(cfg)
    return 0
