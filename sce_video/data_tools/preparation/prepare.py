"""Make annotation lists from official lists and files on disk, for any data set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sce_video.data_tools.preparation.check import CHECKS, CheckJob, check_files
from sce_video.data_tools.preparation.counts import count_rows, format_table
from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.data_tools.preparation.outputs import write_outputs
from sce_video.jobs import Workers
from sce_video.utils.printable import printable_lines

_SHOWN = 5  # examples of missing and unreadable files on the screen


@dataclass(frozen=True)
class Options:
    """Options of a preparation.

    Attributes:
        root: Folder of the data set; paths in the lists are relative to it.
        out: Folder of the lists, ``root`` if None.
        workers: Processes that check whether files can be read; None for all cores.
        time_limit: Seconds a file may take.
        ray: Address of a Ray cluster that checks them; see :class:`~sce_video.jobs.Workers`.
        check: Decode the first frame of every file (images whole), not only look whether it exists.
        keep_missing: Keep missing and unreadable files in the lists.
        force: Replace lists that differ.
    """

    root: Path
    out: Path | None = None
    workers: int | None = 1
    time_limit: float = 60.0
    ray: str | None = None
    check: bool = True
    keep_missing: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")


def prepare(
    official: OfficialLists,
    located: Mapping[str, Located],
    options: Options,
    stream: TextIO | None = None,
) -> bool:
    """Check the files, print the counts, write lists, class maps and reports.

    Args:
        official: Content of the official lists.
        located: Locations of the videos, by name.
        options: Options.
        stream: Stream for the counts, stdout by default.

    Returns:
        Whether all counts agree with the published ones.

    Raises:
        ValueError: Two names are the same file, a split has no video, or existing lists differ.
    """
    stream = stream if stream is not None else sys.stdout
    _check_distinct(located)
    missing = {name: location.missing for name, location in located.items() if location.missing}
    unreadable = _unreadable(official, located, options, missing)
    rows = count_rows(official, missing, unreadable, options.check)
    _print(format_table(rows), stream)
    for note in _notes(official, located, missing, unreadable, options):
        _print(note, stream)
    left_out = set() if options.keep_missing else {*missing, *unreadable}
    contents = _lists(official, located, left_out)
    contents |= {
        f"missing_{official.name}.txt": _report(located, missing),
        f"unreadable_{official.name}.txt": _report(located, unreadable),
    }
    folder = options.out or options.root
    for name, action in write_outputs(folder, contents, force=options.force).items():
        _print(f"{folder / name}: {action}", stream)
    return all(row.agrees is not False for row in rows)


def _print(text: str, stream: TextIO) -> None:
    print(printable_lines(text, stream), file=stream)


def _check_distinct(located: Mapping[str, Located]) -> None:
    """Refuse two names for one file: a video could be in train and test."""
    name_of: dict[str, str] = {}
    for name, location in located.items():
        other = name_of.setdefault(location.path, name)
        if other != name:
            raise ValueError(
                f"{other!r} and {name!r} of the lists are the same file, {location.path}"
            )


def _unreadable(
    official: OfficialLists,
    located: Mapping[str, Located],
    options: Options,
    missing: dict[str, str],
) -> dict[str, str]:
    """Problems of the existing files by name; broken links are added to ``missing``."""
    names = {located[name].path: name for name in located if name not in missing}
    if not options.check:
        there = (os.path.isfile(os.path.join(options.root, path)) for path in names)
        pairs = zip(names.values(), there, strict=True)
        missing |= {name: "no such file" for name, found in pairs if not found}
        return {}
    records = (options.out or options.root) / f"checked_{official.name}.sqlite"
    workers = Workers(options.workers, options.time_limit, options.ray)
    job = CheckJob(options.root, CHECKS[official.kind])
    found = check_files(list(names), job, records, workers)
    return {names[path]: reason for path, reason in found.items() if reason is not None}


def _notes(
    official: OfficialLists,
    located: Mapping[str, Located],
    missing: Mapping[str, str],
    unreadable: Mapping[str, str],
    options: Options,
) -> list[str]:
    """Notes that are printed below the table."""
    notes = [f"note: {note}" for note in official.notes]
    remarks: dict[str, list[str]] = {}
    for name, location in located.items():
        if location.remark is not None:
            remarks.setdefault(location.remark, []).append(name)
    for remark, names in remarks.items():
        example = f"{names[0]}: {located[names[0]].path}"
        notes.append(f"note: {len(names):,} files {remark}, for example {example}")
    treatment = (
        "kept in the lists (--keep-missing)" if options.keep_missing else "left out of the lists"
    )
    for what, reasons in (("missing", missing), ("unreadable", unreadable)):
        if reasons:
            report = f"{what}_{official.name}.txt"
            notes.append(f"{what} ({report}): {len(reasons):,} files, {treatment}")
            for name in sorted(reasons)[:_SHOWN]:
                notes.append(f"  {located[name].path}: {reasons[name]}")
            if len(reasons) > _SHOWN:
                notes.append(f"  and {len(reasons) - _SHOWN:,} more")
    return notes


def _lists(
    official: OfficialLists, located: Mapping[str, Located], left_out: set[str]
) -> dict[str, str | None]:
    """Content of the annotation lists and class maps, by file name."""
    contents: dict[str, str | None] = {}
    for split in official.splits:
        lines = [
            _line(located[entry.name].path, entry.label)
            for entry in split.entries
            if entry.name not in left_out
        ]
        if not lines:
            raise ValueError(
                f"none of the {len(split.entries):,} {official.kind}s of {split.list_name} is on "
                "disk and readable; nothing was written"
            )
        contents[split.list_name] = "".join(lines)
    for class_map in official.class_maps:
        contents[class_map.file_name] = "".join(f"{name}\n" for name in class_map.names)
    return contents


def _line(path: str, label: int) -> str:
    """A line of an annotation list, of the path alone for label -1; a tab if the path has one."""
    if label < 0:
        return f"{path}\n"
    return f"{path}\t{label}\n" if "\t" in path else f"{path} {label}\n"


def _report(located: Mapping[str, Located], reasons: Mapping[str, str]) -> str | None:
    """Sorted lines ``path<TAB>reason``; None without any."""
    lines = sorted(
        f"{located[name].path}\t{' '.join(reason.split())}\n" for name, reason in reasons.items()
    )
    return "".join(lines) or None
