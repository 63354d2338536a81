"""Refuse to overwrite files that repack did not make, or made from something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sce_video.data_tools.journal import Journal
from sce_video.data_tools.repack.file_status import FileStatus
from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.data_tools.repack.report import result_paths
from sce_video.data_tools.repack.work import COMMENT
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.containers import open_video
from sce_video.utils.json_files import read_json


def check_results(plan: Plan, folder: Path, force: bool) -> None:
    """Refuse to overwrite a list, failures or a report that were not made from this source.

    The report names the source: it must have the same path, or the same entries (the machines of a
    cluster may mount one list at several paths).
    """
    paths = result_paths(folder, plan)
    for path in paths:
        if os.path.isdir(path):
            raise ValueError(f"{path} is a folder, but a list or report must have that name")
    existing = [path for path in paths if os.path.lexists(path)]
    report = _read_report(paths[0])
    if force or not existing or (report is not None and _is_from(report, plan)):
        return
    what = "repack did not make it" if report is None else f"was made from {report['source']!r}"
    raise ValueError(
        f"{existing[-1]} exists and {what}, not from {plan.source!r}: choose another output "
        "folder, move it away, or replace it with --force"
    )


def _read_report(path: Path) -> dict[str, Any] | None:
    """The content of a report of repack; None if the file is missing or something else."""
    try:
        report = read_json(path)
    except (OSError, ValueError):
        return None
    wanted = {"source", "source_path", "entries", "settings"}
    return report if isinstance(report, dict) and wanted <= report.keys() else None


def _is_from(report: dict[str, Any], plan: Plan) -> bool:
    same_path = report["source_path"] == os.path.realpath(plan.source)
    return same_path or bool(report["entries"] == plan.digest)


def check_sources(plan: Plan, folder: Path) -> None:
    """Refuse outputs whose paths are those of sources, their own or those of other files."""
    real_folder: Callable[[str], str] = cache(os.path.realpath)  # there are few folders

    def location(path: str) -> str:
        parent, name = os.path.split(path)
        return os.path.join(real_folder(parent), name)

    outputs = {location(os.path.join(folder, item.output)) for item in plan.items}
    for item in plan.items:
        source = os.path.join(plan.root, item.path)
        taken = {location(source)}
        if os.path.islink(source):
            taken.add(os.path.realpath(source))
        if taken & outputs:
            raise ValueError(
                f"an output would overwrite {source!r}, which is a source: choose another output "
                "folder"
            )


def check_origins(plan: Plan, items: list[Item], status: FileStatus, force: bool) -> None:
    """Refuse outputs that exist and were made from other sources.

    Args:
        plan: The data set; two lists may share a folder, but not the name of an output in it.
        items: Files of this shard, whose sources may not be other files of the same path.
        status: Of the files.
        force: Allow the latter.
    """
    journal, wanted = status.journal, {item.output: item.path for item in plan.items}
    for entry in journal.entries.values():
        path = wanted.get(entry["output"])
        if entry["status"] == "done" and path is not None and path != entry["path"]:
            raise ValueError(
                f"{entry['output']!r} in the output folder was made from {entry['path']!r}, now "
                f"it would be made from {path!r}: choose another output folder"
            )
    for item in [] if force else items:
        entry = journal.entries.get(item.path, {})
        if entry.get("status") != "done" or entry["root"] == status.root:
            continue
        # Machines may mount one root at several paths; the file is the same if its state is.
        state = status.source(item) or {}
        if any(entry.get(name) != value for name, value in state.items()):
            raise ValueError(
                f"{item.output!r} in the output folder was made from {item.path!r} in "
                f"{entry['root']!r}, and the one in {status.root!r} is another file: choose "
                "another output folder, or replace such files with --force"
            )


def check_outputs(todo: list[Item], folder: Path, journal: Journal, force: bool) -> None:
    """Refuse to overwrite files that repack did not make."""
    for item in todo:
        output = folder / item.output
        if os.path.isdir(output):
            raise ValueError(f"{output} is a folder, but an output must have that name")
        if not force and os.path.lexists(output) and not is_ours(item, folder, journal):
            raise ValueError(
                f"{output} exists and repack did not make it: choose another output folder, "
                "or replace such files with --force"
            )


def is_ours(item: Item, folder: Path, journal: Journal) -> bool:
    """Whether repack made the file at an output's path, by the journal or the file's comment."""
    entry = journal.entries.get(item.path, {})
    if entry.get("status") == "done" and entry["output"] == item.output:
        return True
    try:
        with open_video(folder / item.output) as container:
            return container.metadata.get("comment", "").startswith(COMMENT)
    except VideoDecodeError:
        return False
