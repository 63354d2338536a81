"""Nothing is written over that repack did not make, or made of something else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import av

from sce_video.data_tools.repack.journal import Journal
from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.data_tools.repack.report import result_paths
from sce_video.data_tools.repack.standing import Standing
from sce_video.data_tools.repack.work import COMMENT


def check_results(plan: Plan, folder: Path, force: bool) -> None:
    """Refuse to write over a list, failures or a report that were not made of this source.

    The report tells of what: of the same place, or of another one with the same entries (the
    machines of a cluster may see one list under several paths).
    """
    paths = result_paths(folder, plan)
    for path in paths:
        if os.path.isdir(path):
            raise ValueError(f"{path} is a folder, and a list or report should get its name")
    there = [path for path in paths if os.path.lexists(path)]
    report = _read_report(paths[0])
    if force or not there or (report is not None and _is_of(report, plan)):
        return
    what = "repack did not make it" if report is None else f"was made of {report['source']!r}"
    raise ValueError(
        f"{there[-1]} is there and {what}, not of {plan.source!r}: choose another output folder, "
        "move it away, or replace it with --force"
    )


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(report, dict) and isinstance(report.get("source"), str)
    return report if known and isinstance(report.get("settings"), dict) else None


def _is_of(report: dict[str, Any], plan: Plan) -> bool:
    if "entries" not in report:  # an older version's, which says no more than the command line did
        before, now = (os.path.normpath(path) for path in (report["source"], plan.source))
        return os.path.basename(before) == os.path.basename(now)
    same_place = report.get("source_path") == os.path.realpath(plan.source)
    return same_place or bool(report["entries"] == plan.digest)


def check_sources(plan: Plan, folder: Path) -> None:
    """Refuse an output that would take the place of a source, of its own or of another file."""
    real_folder: Callable[[str], str] = cache(os.path.realpath)  # there are few folders

    def place(path: str) -> str:
        parent, name = os.path.split(path)
        return os.path.join(real_folder(parent), name)

    outputs = {place(os.path.join(folder, item.output)) for item in plan.items}
    for item in plan.items:
        source = os.path.join(plan.root, item.path)
        taken = {place(source)}
        if os.path.islink(source):
            taken.add(os.path.realpath(source))
        if taken & outputs:
            raise ValueError(
                f"an output would be written over {source!r}, which is a source: choose another "
                "output folder"
            )


def check_owners(plan: Plan, mine: list[Item], standing: Standing, force: bool) -> None:
    """Two lists may share a folder, but not a name in it."""
    journal, wanted = standing.journal, {item.output: item.path for item in plan.items}
    for entry in journal.entries.values():
        path = wanted.get(entry["output"])
        if entry["status"] == "done" and path is not None and path != entry["path"]:
            raise ValueError(
                f"{entry['output']!r} in the output folder was made from {entry['path']!r}, now "
                f"it would be made from {path!r}: choose another output folder"
            )
    for item in [] if force else mine:
        entry = journal.entries.get(item.path, {})
        if entry.get("status") != "done" or entry.get("root", standing.root) == standing.root:
            continue
        # Machines may see one root under several paths: then the file is the same.
        state = standing.source(item) or {}
        if any(entry.get(name) != value for name, value in state.items()):
            raise ValueError(
                f"{item.output!r} in the output folder was made from {item.path!r} in "
                f"{entry['root']!r}, and the one in {standing.root!r} is another file: choose "
                "another output folder, or replace such files with --force"
            )


def check_foreign(todo: list[Item], folder: Path, journal: Journal, force: bool) -> None:
    """Refuse to write over what repack did not make."""
    for item in todo:
        output = folder / item.output
        if os.path.isdir(output):
            raise ValueError(f"{output} is a folder, and an output should get its name")
        if not force and os.path.lexists(output) and not is_ours(item, folder, journal):
            raise ValueError(
                f"{output} is there and repack did not make it: choose another output folder, "
                "or replace such files with --force"
            )


def is_ours(item: Item, folder: Path, journal: Journal) -> bool:
    """Whether what has the name of an output is one: the journal or the file itself says so."""
    entry = journal.entries.get(item.path, {})
    if entry.get("status") == "done" and entry["output"] == item.output:
        return True
    try:
        with av.open(str(folder / item.output), metadata_errors="ignore") as container:
            return container.metadata.get("comment", "").startswith(COMMENT)
    except (av.FFmpegError, OSError, ValueError):
        return False
