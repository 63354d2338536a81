"""Evaluate a pretraining on labelled videos: kNN, linear probe, retrieval.

    sce-video evaluate RUN --gallery TRAIN_VIDEOS --test TEST_VIDEOS [--no-random]
    sce-video evaluate RUN --test VIDEOS --group-pattern 'person(\\d+)' [--folds 5 | --folds loo]
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

import os
from collections.abc import Sequence

from sce_video.commands.arguments import (
    FOLDS,
    RUN,
    check_run,
    check_videos,
    command_line,
    fold_count,
    pattern,
)
from sce_video.datasets.labelled import read_labelled
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
    add("--folds K|loo", FOLDS, fold_count)
    protocols = "default: the recipe's; time: from shuffled, reversed and still clips"
    add("--protocols", protocols, nargs="+", choices=PROTOCOLS)
    add("--pairs", "with time: accuracy within pairs of opposite classes", choices=["ssv2"])
    add("--factors FORM", "with time: accuracy of parts of class names, '{appearance}_{motion}'")
    weights = add.exclusive()
    weights("--random", "random weights instead", bool)
    weights("--no-random", "leave out the numbers of random weights", bool)
    out = "JSON file or URL (default: RUN/results.json; of a model work_dirs/MODEL/results.json)"
    add("--out", out, path_or_url)
    args = parser.parse_args(argv)
    for name in ("pairs", "factors"):
        if getattr(args, name) is not None and "time" not in (args.protocols or ()):
            parser.error(f"--{name} belongs to the protocol time, which is not in --protocols")
    if not (args.gallery or args.group_pattern or LABEL_FREE.issuperset(args.protocols or ("",))):
        parser.error("one of the arguments --gallery --group-pattern is required")
    if args.folds is not None and args.group_pattern is None:
        parser.error("--folds divides groups: add --group-pattern")
    check_run(args.run)
    for source in filter(None, (args.test, args.gallery)):
        # A file of videos or segments is read here: line by line, and within a second.
        read_labelled(source) if os.path.isfile(source) else check_videos(source)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch

    given = vars(args)
    launch.evaluate(given.pop("run"), given.pop("test"), **given)
    return 0
