"""Options that several commands share, each declared once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sce_video.options.declare import Group, OptionError, Spec
from sce_video.utils.own_parts import imported_classes
from sce_video.utils.seconds import parse_seconds

#: Maximum number of pixels in a decoded frame. An 8K frame (7680 x 4320) has 33 million.
MAX_PIXELS = 40_000_000
#: Largest time limit, in seconds, that the timers of all systems accept
MAX_TIMEOUT = 1_000_000
_TABLE = r".*\.lance/*"


def is_table(path: Any) -> bool:
    """Return whether a path or URL is the name of a table, which ends with ``.lance``."""
    return isinstance(path, str | os.PathLike) and bool(
        re.fullmatch(_TABLE, os.fspath(path), re.DOTALL)
    )


def matching(pattern: str, problem: str) -> Callable[[str], str | None]:
    """Return a ``problem`` function for text that must match a regular expression.

    Args:
        pattern: Regular expression.
        problem: Description of the problem if the text does not match: ``"must be ..."``.
    """
    return lambda text: None if re.fullmatch(pattern, text, re.DOTALL) else problem


def _time_problem(text: str) -> str | None:
    try:
        parse_seconds(text)
    except ValueError:
        return "must be a time like 5s, 2.5, 500ms, 2m, 1h or 1:02:03.5"
    return None


def check_windows(options: Any) -> None:
    """Raise OptionError if ``stride`` or ``shots`` is given without ``windows``."""
    if options.windows is None and (options.stride is not None or options.shots):
        raise OptionError("{stride} and {shots} need {windows}, for example {windows} 5s")


def check_dataset(options: Any, *others: str) -> None:
    """Raise OptionError for options that have no effect with a user-defined ``dataset``.

    Args:
        options: The options.
        others: Names of these options.
    """
    given = [name for name in others if getattr(options, name)]
    if options.dataset is not None and given:
        raise OptionError(f"{{dataset}} lists the videos. Remove it or {{{given[0]}}}")


def check_classes(options: Any, *lists: str) -> None:
    """Raise OptionError if ``classes`` is given without any list whose labels it could name."""
    if options.classes is not None and all(getattr(options, name) is None for name in lists):
        raise OptionError(f"{{classes}} names the labels of a list. Add {{{lists[0]}}} LIST")


def check_fast(options: Any) -> None:
    """Raise OptionError if ``fast`` is given without ``clips``."""
    if options.fast and options.clips is None:
        raise OptionError("{fast} has an effect only on {clips}. Add {clips} DIR")


def check_seeds(options: Any) -> None:
    """Raise OptionError if ``seeds`` is empty or contains a number twice."""
    if options.seeds is not None and len({*options.seeds}) < max(1, len(options.seeds)):
        raise OptionError("{seeds} must be one or more different numbers", options.seeds)


def check_folds(options: Any) -> None:
    """Raise OptionError if ``folds`` has no groups to divide, or if a fold is selected.

    The options also have ``group_pattern``, ``group_column`` and ``fold_column``.
    """
    if "=" in (options.fold_column or ""):
        raise OptionError(
            "all folds are tested, so {fold_column} must be the name of a column, without =VALUE"
        )
    has_groups = options.group_pattern is not None or options.group_column is not None
    if options.folds is not None and (not has_groups or options.fold_column):
        raise OptionError(
            "{folds} divides groups, which only {group_pattern} or {group_column} defines"
        )


#: Trained network. The function of each command checks the format and whether the file exists.
RUN = Spec(
    "network: a run or a checkpoint (a path or s3://...), or a transformers or timm model (FOLDER "
    "or hf:OWNER/MODEL). NAME:POOL changes how the features of frames are pooled "
    "(docs/encoders.md)",
    metavar="RUN",
)
PROCESSES = Group("processes")
WINDOWED = Group("windows of long videos, with --windows")
TIME = Spec("", metavar="TIME", problem=_time_problem)
WINDOWS = replace(
    TIME,
    help="divide every video into windows of this length, for example 5s or 0:30 (default: whole "
    "videos)",
)
STRIDE = replace(TIME, help="time between window starts (default: the length of a window)")
SHOTS = Spec("detect cuts first, so that no window contains one")
#: Device of the network. Its name is checked here, and torch checks whether it is available.
DEVICE = Spec(
    "device to run the network on, for example cuda:1 or cpu (default: a GPU if there is one)",
    metavar="DEVICE",
    problem=matching(
        r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa|xla|meta)(:\d{1,4})?", "must be cpu, cuda or cuda:1"
    ),
)
CONFIG = Spec("config file, if the checkpoint contains none", metavar="FILE")
LABELS = Spec("list of labels, with 'path label' on every line", metavar="LIST")
#: Function that checks the name of a table that a command writes
table_problem = matching(_TABLE, "must be the name of a table, which ends with .lance")
DATA_ROOT = Spec(
    "folder to which the paths in a list are relative (default: the folder of the list if it "
    "contains the videos, else the current folder)",
    metavar="DIR",
)
ALL_FILES = Spec("in folders, also read files with unknown extensions if they contain a video")
CLASSES = Spec("file of class names, one per line", metavar="FILE")
JSON = Spec("JSON file for the metrics and their provenance", metavar="OUT")
GROUP_COLUMN = Spec(
    "column of the CSV file that assigns each video to a group, such as a person or a scene. "
    "The videos of a group are held out together",
    metavar="NAME",
)
FOLD_COLUMN = Spec(
    "column of the CSV file that assigns each video to a fold. These folds are used unchanged",
    metavar="NAME",
)
FOLDS = Spec(
    "with groups: number of folds, or loo for one fold per group (default: loo below 20 groups, "
    "else 10)",
    metavar="K|loo",
    least=2,
    words=("loo",),
)


def _pattern_problem(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return f"must be a valid regular expression ({error})"
    return None


GROUP_PATTERN = Spec(
    "regular expression to find in each video's path. Its one capturing group, as in "
    "person(\\d+), names the video's group. A video is compared only with videos of other groups",
    metavar="REGEX",
    problem=_pattern_problem,
)
#: Command-line names of protocols for frozen features
PROTOCOLS = tuple("clip_retrieval few_shot knn lidar linear rankme retrieval time".split())


def protocol_problem(name: str) -> str | None:
    """Return the problem with the name of a shipped or user-defined protocol."""
    known = [*PROTOCOLS, *imported_classes("metric")]
    if name in known:
        return None
    return f"must be one of {', '.join(known)}, or a metric that a module of --import registers"


def _dataset_problem(name: str) -> str | None:
    known = imported_classes("dataset")
    if name in known:
        return None
    has = f"registers ({', '.join(known)})" if known else "registers (docs/extend.md)"
    return f"must be the name of a dataset that a module of --import {has}"


DATASET = Spec(
    "dataset class of your own that lists the videos in VIDEOS. --import must name its module",
    metavar="NAME",
    problem=_dataset_problem,
)
PAIRS = Spec(
    "with --protocols time: also report the accuracy for pairs of opposite classes",
    choices=("ssv2",),
)
FACTORS = Spec(
    "with --protocols time: template that divides class names into parts, for example "
    "'{appearance}_{motion}'. The accuracy is also reported for each part",
    metavar="TEMPLATE",
)
WORKERS = Spec(
    "number of processes (default: one per core; with --ray, one per core of the cluster)", least=1
)
MAX_VIEWS = Spec("maximum number of views that the network processes at a time", least=1)
RAY = Spec(
    "run on the Ray cluster at this address or, with 'auto', on the cluster that this machine "
    "belongs to. --workers then limits how many files are processed at a time (default: run on "
    "this machine)",
    metavar="ADDRESS",
)
PROCESSES_PER_GPU = Spec("with --ray: number of processes that share a GPU", least=1)
CHANGES = Spec(
    "change config values, for example test_dataloader.num_workers=8. Unknown keys are refused",
    metavar="KEY=VALUE",
    problem=matching(r"[^=]+=.*", "must be KEY=VALUE, for example train_cfg.max_epochs=100"),
)
BACKEND = Spec(
    "video decoder: av, decord or torchcodec (default: the one in the config)", metavar="NAME"
)
LAUNCHER = Spec("launcher of a distributed run", choices=("none", "pytorch", "slurm"))
TIMEOUT = Spec(
    "time limit per file, in seconds. A file that takes longer fails",
    metavar="SECONDS",
    above=0,
    most=MAX_TIMEOUT,
)
PIXELS = Spec(
    "maximum size of a decoded frame, height x width in pixels. A file with larger frames fails",
    metavar="PIXELS",
    least=1,
)
