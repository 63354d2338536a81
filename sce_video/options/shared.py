"""Options that several commands have, each declared once."""

from __future__ import annotations

import os
import re
from typing import Any

from sce_video.options.declare import Spec

#: Largest frame that is decoded, height x width. A frame of 8K video (7680 x 4320) has 33 million
#: pixels.
MAX_PIXELS = 40_000_000
#: Longest time limit in seconds that the timers of all systems accept.
MAX_TIMEOUT = 1_000_000
_TABLE = re.compile(r".*\.lance/*", re.DOTALL)


def is_table(path: Any) -> bool:
    """Return whether a path or URL names a table, which ends with ``.lance``."""
    return isinstance(path, str | os.PathLike) and _TABLE.fullmatch(os.fspath(path)) is not None


def table_problem(path: str) -> str | None:
    """Return what is wrong with the name of a table that is written."""
    return None if is_table(path) else "must be the name of a table, which ends with .lance"


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa|xla|meta)(:\d{1,4})?")


def _device_problem(name: str) -> str | None:
    """Return what is wrong with the name of a device; torch finds out whether it is there."""
    return None if _DEVICE.fullmatch(name) else "must be cpu, cuda or cuda:1"


DEVICE = Spec(
    "device to run the network on: cuda:1, cpu, ... (default: a GPU if there is one)",
    metavar="DEVICE",
    problem=_device_problem,
)
CONFIG = Spec("config file, if the checkpoint contains none", metavar="FILE")
LABELS = Spec("list with 'path label' on every line", metavar="LIST")
DATA_ROOT = Spec(
    "folder that the paths of a list are relative to (default: the folder of the list or the "
    "current one)",
    metavar="DIR",
)
ALL_FILES = Spec("in folders, also read files of unknown extensions if they hold a video")
WORKERS = Spec(
    "number of processes (default: all cores; with --ray, all cores of the cluster)",
    least=1,
)
MAX_VIEWS = Spec("largest number of views that the network sees together", least=1)
RAY = Spec(
    "run on the Ray cluster at this address; 'auto' finds the cluster that this machine belongs "
    "to. --workers then limits the files in progress (default: run on this machine)",
    metavar="ADDRESS",
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
