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

from sce_video.commands.arguments import Parser, check_run, check_videos, pattern
from sce_video.utils.command import command
from sce_video.utils.storage import path_or_url

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


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit status."""
    args = parse_args(argv)
    check_run(args.run)
    for folder in filter(None, (args.test, args.gallery)):
        check_videos(folder)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch

    given = vars(args)
    launch.evaluate(given.pop("run"), given.pop("test"), **given)
    return 0
