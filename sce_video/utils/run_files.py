"""Files of JSON lines that a training writes into its work folder, a row each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sce_video.utils.atomic_file import append_text, write_text

#: Logged numbers: losses, schedules, collapse metrics, speed, evaluations (docs/logging.md).
METRICS = "metrics.jsonl"
#: Alarms that a training has raised.
ALARMS = "alarms.jsonl"
#: Rows of the online evaluation.
EVALUATIONS = "online_evaluation.jsonl"
#: When the training was started, with what, and how each start ended.
HISTORY = "history.jsonl"
#: The page of the run, and the features of the videos that it shows.
PAGE = "run.html"
PAGE_FEATURES = "run_page_features.npz"

#: Files by which the folder of a training is known.
_MARKS = (METRICS, HISTORY, EVALUATIONS, "*/vis_data/scalars.json")
_CHECKPOINTS = ("epoch_*.pth", "iter_*.pth")


def is_run_folder(folder: str | Path) -> bool:
    """Whether a folder holds a training: a log, a history or a checkpoint."""
    patterns = (*_MARKS, *_CHECKPOINTS)
    return any(path.is_file() for pattern in patterns for path in Path(folder).glob(pattern))


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append a row; NaN and infinity, which JSON does not have, become null.

    Raises:
        WriteError: nothing was appended.
        ValueError: a value inside a list or dict is not finite.
    """
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v
              for k, v in row.items()}  # fmt: skip
    append_text(path, json.dumps(finite, allow_nan=False) + "\n")


def keep_rows_until(
    path: str | Path, iteration: int, accumulated: tuple[int, int] = (1, 1)
) -> None:
    """Remove the rows after an iteration, which a resumed training computes again.

    Damaged lines stay, since nobody knows what they were; a half-written last one is removed.

    Args:
        path: The file; it may be missing.
        iteration: The last one that stays.
        accumulated: Iterations of an optimiser step when the rows were written, and now. Where they
            differ the rows get the numbers that the same steps have now.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = Path(path)
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith(b"\n")]
    if accumulated[0] != accumulated[1]:
        kept = [_recounted(line, *accumulated) for line in kept]
    kept = [line for line in kept if not _is_after(line, iteration)]
    if kept != lines:
        write_text(path, b"".join(kept).decode("utf-8", errors="surrogateescape"))


def _recounted(line: bytes, before: int, now: int) -> bytes:
    try:
        row = json.loads(line)
        row["iter"] = -(-row["iter"] * now // before)
    except (ValueError, KeyError, TypeError):
        return line
    return json.dumps(row).encode() + b"\n"


def _is_after(line: bytes, iteration: int) -> bool:
    try:
        return json.loads(line)["iter"] > iteration
    except (ValueError, KeyError, TypeError):
        return False


def half_written_lines(path: str | Path) -> int:
    """1 if the last line of a file has no end yet, else 0.

    Its writer is about to end it, or was killed; :func:`~.json_files.read_json_lines` leaves such a
    line out.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return 0
        file.seek(size - 1)
        return int(file.read(1) != b"\n")
