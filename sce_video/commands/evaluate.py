"""Evaluate a pretraining on labelled videos: kNN, linear probe, retrieval.

    sce-video evaluate RUN --gallery TRAIN_VIDEOS --test TEST_VIDEOS [--no-random]
    sce-video evaluate RUN --test VIDEOS --group-pattern 'person(\\d+)' [--folds 5 | --folds loo]
    sce-video evaluate RUN --test clips.csv --group-column person [--fold-column fold]
    sce-video evaluate RUN --gallery A --test B --protocols time [--factors '{appearance}_{motion}']
    sce-video evaluate RUN --test VIDEOS --protocols rankme lidar clip_retrieval   # without labels

A class per first-level sub-folder, the labels of a table (v.lance), a list, or a CSV file of
videos (path,label) or segments (path,start,end,label). From 20 groups on, 10 folds of whole groups
are tested in turn, otherwise each group alone. RUN is the folder of a
training (its newest checkpoint) or a checkpoint in it; the config inside the checkpoint is read as
data, and RUN/config.py is not run. Prints a table, in which chance and random weights stand next to
every number, and writes the results with their provenance.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from sce_video.commands.arguments import (
    FOLDS,
    RUN,
    add_columns,
    command_line,
    fold_count,
    given_columns,
    output,
    pattern,
)
from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns, read_labelled, tell_repeated
from sce_video.datasets.named_files import check_run, check_videos
from sce_video.utils.command import command
from sce_video.utils.storage import path_or_url

#: Of :data:`sce_video.evaluation.PROTOCOLS`, whose import takes seconds.
PROTOCOLS = (
    *("clip_retrieval", "few_shot", "knn", "lidar", "linear", "rankme", "retrieval", "time"),
)
#: Those that need no labels, and so no others to compare with.
LABEL_FREE = frozenset(("clip_retrieval", "lidar", "rankme"))


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit status."""
    parser, add = command_line("Evaluate a pretraining on labelled videos.")
    add("run RUN", RUN, path_or_url)
    labelled = "folder, a class per sub-folder; table with labels (v.lance); list or CSV file"
    add("--test", labelled, required=True)
    source = add.exclusive()
    source("--gallery", "labelled videos to classify the test by")
    others = "instead: the test videos, but those whose paths have the same group"
    source("--group-pattern REGEX", others, pattern)
    add_columns(add)
    add("--folds K|loo", FOLDS, fold_count)
    add.shared("--data-root")
    protocols = "default: the recipe's; time: from shuffled, reversed and still clips"
    add("--protocols", protocols, nargs="+", choices=PROTOCOLS)
    add("--pairs", "with time: accuracy within pairs of opposite classes", choices=["ssv2"])
    add("--factors FORM", "with time: accuracy of parts of class names, '{appearance}_{motion}'")
    add.shared("--all-files")
    weights = add.exclusive()
    weights("--random", "random weights instead", bool)
    weights("--no-random", "leave out the numbers of random weights", bool)
    out = "JSON file or URL (default: RUN/results.json; of a model work_dirs/MODEL/results.json)"
    add("--out", out, output(path_or_url))
    args = parser.parse_args(argv)
    for name in ("pairs", "factors"):
        if getattr(args, name) is not None and "time" not in (args.protocols or ()):
            parser.error(f"--{name} belongs to the protocol time, which is not in --protocols")
    columns = given_columns(args, args.test)
    grouped = args.group_pattern is not None or columns != NO_COLUMNS
    if not (args.gallery or grouped or LABEL_FREE.issuperset(args.protocols or ("",))):
        parser.error("one of the arguments --gallery --group-pattern --group-column is required")
    if args.gallery is not None and columns != NO_COLUMNS:
        parser.error("groups and folds divide the test videos: leave out --gallery")
    if args.folds is not None and (not grouped or columns.fold is not None):
        parser.error("--folds divides groups: give --group-pattern or --group-column alone")
    if "=" in (columns.fold or ""):
        parser.error("each fold is tested in turn: give --fold-column the name alone")
    check_run(args.run)
    _check_sets(args, columns)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch

    given = vars(args)
    launch.evaluate(given.pop("run"), given.pop("test"), columns=columns, **given)
    return 0


def _check_sets(args: argparse.Namespace, columns: GroupColumns) -> None:
    """Read files of videos or segments, line by line and within a second, and look into folders."""
    sources = [source for source in (args.test, args.gallery) if source is not None]
    files = [source for source in sources if os.path.isfile(source)]
    if args.data_root is not None and not files:
        raise ValueError("--data-root goes with a list or a CSV file. Leave it out")
    for source in sources:
        if source not in files:
            check_videos(source)
            continue
        found = read_labelled(
            source, args.data_root, columns=columns if source is args.test else NO_COLUMNS
        )
        tell_repeated(found)
