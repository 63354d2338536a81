"""Refuse to overwrite files that repack did not make, or made from something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.job import RepackJob
from sce_video.data_tools.repack.plan import Plan
from sce_video.data_tools.repack.report import result_paths
from sce_video.jobs import Item, RecordStore
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


def check_origins(
    plan: Plan, job: RepackJob, items: list[Item], store: RecordStore, force: bool
) -> None:
    """Refuse outputs that exist and were made from other sources.

    Args:
        plan: The data set; two lists may share a folder, but not the name of an output in it.
        job: The repacking.
        items: Files of this shard, whose sources may not be other files of the same path.
        store: Records of the outputs.
        force: Allow the latter.
    """
    wanted = {item.output: item.key for item in plan.items}
    for output, made_from in store.outputs():
        path = wanted.get(output, made_from)
        if path != made_from:
            raise ValueError(
                f"{output!r} in the output folder was made from {made_from!r}, now it would be "
                f"made from {path!r}: choose another output folder"
            )
    for item in [] if force else items:
        record = store.get(item.key)
        if record is None or not record.done or record.facts["root"] == job.root:
            continue
        # Machines may mount one root at several paths; the file is the same if its state is.
        if item.source is not None and item.source != record.source:
            raise ValueError(
                f"{item.output!r} in the output folder was made from {item.key!r} in "
                f"{record.facts['root']!r}, and the one in {job.root!r} is another file: choose "
                "another output folder, or replace such files with --force"
            )


def check_outputs(todo: list[Item], job: RepackJob, store: RecordStore, force: bool) -> None:
    """Refuse to overwrite files that repack did not make."""
    for item in todo:
        assert item.output is not None
        output = os.path.join(job.folder, item.output)
        if os.path.isdir(output):
            raise ValueError(f"{output} is a folder, but an output must have that name")
        if force or not os.path.lexists(output):
            continue
        if not job.made_output(item, store.get(item.key)):
            raise ValueError(
                f"{output} exists and repack did not make it: choose another output folder, "
                "or replace such files with --force"
            )
