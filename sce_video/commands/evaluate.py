"""Evaluate a pretraining on labelled videos: kNN, linear probe, retrieval.

    sce-video evaluate RUN --gallery TRAIN_VIDEOS --test TEST_VIDEOS [--random]
    sce-video evaluate RUN --test VIDEOS --group-pattern 'person(\\d+)'   # leave one person out

A class per first-level sub-folder. RUN is the folder of a training (its newest checkpoint) or a
checkpoint in it. Prints a table and writes the results with their provenance as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sce_video.apis import launch
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.engine.runner import RANDOM
from sce_video.engine.work_dir import config_of_run
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Evaluate a pretraining on labelled videos.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or its checkpoint")
    parser.add_argument("--test", required=True, type=Path, help="folder, a class per sub-folder")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gallery", type=Path, help="labelled videos to classify the test by")
    source.add_argument(
        "--group-pattern",
        metavar="REGEX",
        help="instead: the test videos themselves, without those whose paths have the same group",
    )
    parser.add_argument("--random", action="store_true", help="the same with random weights")
    parser.add_argument("--out", type=Path, help="JSON file (default: RUN/results.json)")
    return parser.parse_args(argv)


def options(args: argparse.Namespace) -> list[str]:
    """The changes of the run's config."""
    data = [f"test_dataloader.dataset.data_root={args.test}"]
    if args.gallery is not None:
        return [*data, f"test_cfg.gallery_dataloader.dataset.data_root={args.gallery}"]
    pattern = f"test_cfg.group_pattern={args.group_pattern}"
    return [*data, "test_cfg.gallery_dataloader=None", pattern]


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit status."""
    args = parse_args(argv)
    folder = args.run if args.run.is_dir() else args.run.parent
    name = "results_random.json" if args.random else "results.json"
    checkpoint = RANDOM if args.random else newest_checkpoint(args.run)
    launch.test(
        launch.testing_config(
            config_of_run(args.run),
            checkpoint,
            work_dir=folder / "evaluation",
            out=args.out or folder / name,
            cfg_options=options(args),
        )
    )
    return 0
