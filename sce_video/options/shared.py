"""Options that several commands share, each declared once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sce_video.options.declare import OptionError, Spec
from sce_video.utils.own_parts import imported_classes
from sce_video.utils.seconds import parse_seconds

#: Largest number of pixels in a decoded frame. A frame of 8K video (7680 x 4320) has 33 million.
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


def time_problem(text: str) -> str | None:
    """Return the problem with a time, or None if it is valid."""
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
    """Raise OptionError for options that have no effect with a ``dataset`` of the user's own.

    Args:
        options: The options.
        others: Names of these options.
    """
    given = [name for name in others if getattr(options, name)]
    if options.dataset is not None and given:
        raise OptionError(f"{{dataset}} lists the videos. Remove it or {{{given[0]}}}")


#: A trained network. Each command's function checks the format and that the file exists.
RUN = Spec(
    "run or checkpoint, also s3://...; or a model of transformers or timm: FOLDER, hf:OWNER/MODEL. "
    "NAME:POOL pools the frames of an image network in another way (docs/encoders.md)",
    metavar="RUN",
)
#: Title of the options that divide videos into windows
OF_WINDOWS = "windows of long videos"
TIME = Spec("", metavar="TIME", problem=time_problem)
WINDOWS = replace(
    TIME,
    help="divide every video into windows of this length, 5s or 0:30 (default: whole videos)",
    group=OF_WINDOWS,
)
STRIDE = replace(
    TIME,
    help="time between window starts (default: the length of a window)",
    group=OF_WINDOWS,
)
SHOTS = Spec("find cuts first, so that no window crosses one", group=OF_WINDOWS)
#: Device name, whose availability only torch can check
DEVICE = Spec(
    "device to run the network on: cuda:1, cpu, ... (default: a GPU if there is one)",
    metavar="DEVICE",
    problem=matching(
        r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa|xla|meta)(:\d{1,4})?", "must be cpu, cuda or cuda:1"
    ),
)
CONFIG = Spec("config file, if the checkpoint contains none", metavar="FILE")
LABELS = Spec("list with 'path label' on every line", metavar="LIST")
#: Describes the problem with the name of a table to write
table_problem = matching(_TABLE, "must be the name of a table, which ends with .lance")
DATA_ROOT = Spec(
    "folder that the paths of a list are relative to (default: the folder of the list or the "
    "current one)",
    metavar="DIR",
)
ALL_FILES = Spec("in folders, also read files with unknown extensions if they contain a video")
CLASSES = Spec("class names, one per line", metavar="FILE")
JSON = Spec("JSON file for the metrics and their provenance", metavar="OUT")
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
    "regular expression with one group: a sample is compared with samples whose paths have "
    "another group",
    metavar="REGEX",
    problem=_pattern_problem,
)
#: Names of the protocols on frozen features on the command line
PROTOCOLS = (
    "clip_retrieval",
    "few_shot",
    "knn",
    "lidar",
    "linear",
    "rankme",
    "retrieval",
    "time",
)


def protocol_problem(name: str) -> str | None:
    """Return what is wrong with the name of a protocol, shipped or of the user's own."""
    known = [*PROTOCOLS, *imported_classes("metric")]
    if name in known:
        return None
    return f"must be one of {', '.join(known)}, or a metric that a module of --import registers"


def _dataset_problem(name: str) -> str | None:
    """Return what is wrong with the name of a dataset of the user's own."""
    known = imported_classes("dataset")
    if name in known:
        return None
    has = f"registers ({', '.join(known)})" if known else "registers (docs/extend.md)"
    return f"must be the name of a dataset that a module of --import {has}"


#: The user's own class that lists the videos of a folder.
DATASET = Spec(
    "dataset of your own, which lists the videos of VIDEOS; name its module with --import",
    metavar="NAME",
    problem=_dataset_problem,
)
PAIRS = Spec("with the protocol time: accuracy in pairs of opposite classes", choices=("ssv2",))
FACTORS = Spec(
    "with the protocol time: accuracy for each part of class names such as '{appearance}_{motion}'",
    metavar="FORM",
)
WORKERS = Spec(
    "number of processes (default: all cores; with --ray, all cores of the cluster)",
    least=1,
)
MAX_VIEWS = Spec("largest number of views that the network processes at a time", least=1)
RAY = Spec(
    "run on the Ray cluster at this address; 'auto' finds the cluster that this machine belongs "
    "to. --workers then limits the files in progress (default: run on this machine)",
    metavar="ADDRESS",
)
PROCESSES_PER_GPU = Spec("with --ray, number of processes that share a GPU of the cluster", least=1)
CHANGES = Spec(
    "change the config, for example test_dataloader.num_workers=8; unknown keys are refused",
    metavar="KEY=VALUE",
    problem=matching(r"[^=]+=.*", "must be KEY=VALUE, for example train_cfg.max_epochs=100"),
)
BACKEND = Spec(
    "decoder of all videos: av, decord or torchcodec (default: the one in the config)",
    metavar="NAME",
)
LAUNCHER = Spec(
    "how the processes of a distributed run are started", choices=("none", "pytorch", "slurm")
)
TIMEOUT = Spec(
    "time limit for one file, in seconds. A file that takes longer fails",
    metavar="SECONDS",
    above=0,
    most=MAX_TIMEOUT,
)
PIXELS = Spec(
    "largest frame that is decoded, height x width. A file with larger frames fails",
    metavar="PIXELS",
    least=1,
)
