"""Which starts of a training belong to one launch: those of torchrun, and of a requeued Slurm job.

torchrun and Slurm start a program again with the arguments of its first start. ``--overwrite``
would then remove what that has trained, and ``--resume PATH`` would go back to that file. So each
start notes in ``history.jsonl`` what has launched it, and a later one knows its predecessor.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from sce_video.utils.json_files import read_json_lines
from sce_video.utils.run_files import HISTORY

#: Variables with the number of earlier starts of a launch. tools/dist_train.sh has none: its id
#: is new for each launch. torchrun counts only the starts after a failure on the same machine.
_RESTARTS = {"slurm": "SLURM_RESTART_COUNT", "torchrun": "TORCHELASTIC_RESTART_COUNT"}
_started: set[Path] = set()


def slurm_job() -> str | None:
    """The Slurm job of this process as ``scontrol`` names it, None outside of one.

    A task of an array is ``ARRAY_TASK``: its first task has the number of the whole array as its
    job, and ``scontrol requeue`` with that number would requeue all tasks.
    """
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or None


def describe_launch() -> dict[str, dict[str, Any]]:
    """What has launched this process: ``slurm``, ``torchrun``, ``script``, each with ``id``.

    The id is the same in all starts of a launch and on all its machines; ``restarts`` counts them.
    """
    ids = {
        "slurm": slurm_job(),
        "torchrun": _torchrun(),
        "script": os.environ.get("SCE_VIDEO_LAUNCH"),
    }
    return {
        kind: {"id": identity, "restarts": _count(_RESTARTS.get(kind, ""))}
        for kind, identity in ids.items()
        if identity
    }


def _torchrun() -> str | None:
    """The run id of torchrun; on one machine without such an id the agent's host and process."""
    identity = os.environ.get("TORCHELASTIC_RUN_ID")
    if identity != "none":  # its default
        return identity
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return f"{socket.gethostname()}:{os.getppid()}" if alone else None


def _count(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def starts_of(folder: str | Path) -> list[dict[str, Any]]:
    """Starts in the ``history.jsonl`` of a work folder, oldest first; damaged lines left out."""
    path = Path(folder, HISTORY)
    rows = [row for _, row in read_json_lines(path, [])] if path.is_file() else []
    return [row for row in rows if row.get("event") == "start"]


def note_started(folder: str | Path) -> None:
    """Note that this process trains in a work folder: what it starts there again is no restart."""
    _started.add(Path(folder).resolve())


def is_restart(folder: str | Path) -> bool:
    """Whether an earlier start of this very launch has trained last in a work folder."""
    if Path(folder).resolve() in _started:
        return False
    launch, last = describe_launch(), starts_of(folder)[-1:]
    before = last[0].get("launch") if last else None
    if not isinstance(before, dict):
        return False
    return any(_follows(kind, now, before.get(kind)) for kind, now in launch.items())


def _follows(kind: str, now: dict[str, Any], before: Any) -> bool:
    if not isinstance(before, dict) or before.get("id") != now["id"]:
        return False
    count = before.get("restarts")
    return kind not in _RESTARTS or (isinstance(count, int) and count < now["restarts"])
