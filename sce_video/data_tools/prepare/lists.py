"""Make annotation lists from official lists and files on disk, for any data set.

Every file is opened once, as a batch job; what is found is counted beside the published numbers;
lists are written atomically, and replace other content only on demand.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sce_video.data_tools.prepare.official import Located, OfficialLists, Split
from sce_video.datasets.readers import open_reader
from sce_video.datasets.readers.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.readers.limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.jobs import (
    BatchJob,
    Item,
    Record,
    RecordStore,
    Workers,
    file_state,
    is_current,
    run_job,
)
from sce_video.utils.files import write_text
from sce_video.utils.printable import printable_lines
from sce_video.utils.progress import Progress


def write_outputs(
    folder: Path, contents: Mapping[str, str | None], *, force: bool = False
) -> dict[str, str]:
    """Write, replace or remove files of a folder so that they have the given contents.

    All files are compared before the first is written, and each is replaced atomically.

    Args:
        folder: Made if needed.
        contents: Text by file name; None for a file that should not exist.
        force: Replace or remove files whose content differs.

    Returns:
        By file name ``written``, ``unchanged``, ``replaced`` or ``removed``. Files that should not
        exist and do not are left out.

    Raises:
        ValueError: Files differ and ``force`` is False; the message names them.
    """
    actions: dict[str, str] = {}
    for name, text in contents.items():
        path = folder / name
        old = _read(path)
        if old is None:
            if text is not None:
                actions[name] = "written"
        elif text is None:
            actions[name] = "removed"
        else:
            actions[name] = "unchanged" if old == _encode(text) else "replaced"
    # Lists that belong together change together, or not at all.
    differing = [name for name, action in actions.items() if action in ("replaced", "removed")]
    if differing and not force:
        listed = ", ".join(str(folder / name) for name in differing)
        raise ValueError(
            f"existing files differ from the new result: {listed}. Nothing was written; --force "
            "replaces them, --out DIR writes elsewhere"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, action in actions.items():
        if action == "removed":
            (folder / name).unlink()
        elif action != "unchanged":
            write_text(folder / name, contents[name] or "")
    return actions


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


HEADER = ("", "in the list", "found on disk", "missing", "unreadable", "published", "result")


@dataclass(frozen=True)
class Row:
    """A row of the table, as text; ``agrees`` is None where no count is published."""

    title: str
    listed: str
    found: str = ""
    missing: str = ""
    unreadable: str = ""
    published: str = ""
    agrees: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The cells, in the order of :data:`HEADER`."""
        result = {None: "", True: "ok", False: "differs"}[self.agrees]
        counts = (self.listed, self.found, self.missing, self.unreadable)
        return (self.title, *counts, self.published, result)


def count_rows(
    official: OfficialLists,
    missing: Container[str],
    unreadable: Container[str],
    checked: bool = True,
) -> list[Row]:
    """Rows for the classes, for all videos and for each split.

    A split agrees with the published number if its list has that many videos, and as many as can
    still be downloaded are on disk and readable.

    Args:
        official: The official lists.
        missing: Names of missing videos.
        unreadable: Names of unreadable videos.
        checked: Whether the files were opened.
    """
    rows = [
        Row(
            title=class_map.file_name.removesuffix(".txt"),
            listed=f"{len(class_map.names):,}",
            published="" if class_map.published is None else f"{class_map.published:,}",
            agrees=None
            if class_map.published is None
            else len(class_map.names) == class_map.published,
        )
        for class_map in official.class_maps
    ]
    names = official.names()
    if official.published_videos is not None:
        published = official.published_videos
        rows.append(_row("videos", names, published, published, missing, unreadable, checked))
    for split in official.splits:
        wanted = split.published if split.published_files is None else split.published_files
        listed = [entry.name for entry in split.entries]
        rows.append(
            _row(split.title, listed, split.published, wanted, missing, unreadable, checked)
        )
        if split.per_class is not None:
            rows.append(_per_class_row(split))
    return rows


def _row(
    title: str,
    names: Sequence[str],
    published: int | None,
    wanted: int | None,
    missing: Container[str],
    unreadable: Container[str],
    checked: bool,
) -> Row:
    absent = sum(name in missing for name in names)
    bad = sum(name in unreadable for name in names)
    agrees, text = None, ""
    if published is not None and wanted is not None:
        agrees = len(names) == published and len(names) - absent - bad >= wanted
        text = f"{published:,}" if wanted == published else f"{published:,} ({wanted:,})"
    return Row(
        title=title,
        listed=f"{len(names):,}",
        found=f"{len(names) - absent:,}",
        missing=f"{absent:,}",
        unreadable=f"{bad:,}" if checked else "not checked",
        published=text,
        agrees=agrees,
    )


def _per_class_row(split: Split) -> Row:
    counts = sorted(Counter(entry.label for entry in split.entries).values())
    low, high = counts[0], counts[-1]
    return Row(
        title=f"{split.title}, per class",
        listed=f"{low:,}" if low == high else f"{low:,} to {high:,}",
        published=f"{split.per_class:,}",
        agrees=low == high == split.per_class,
    )


def format_counts(rows: Sequence[Row]) -> str:
    """The table as text, first column aligned left, the others right."""
    cells = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


Check = Callable[[str], Any]


def first_frame_error(path: str) -> str | None:
    """Why the first frame of a file cannot be decoded; None if it can."""
    try:
        with open_reader(path) as reader:
            reader.read(np.zeros(1, dtype=np.int64))
    except VideoDecodeError as error:
        return error.reason
    except FrameCountError:
        return "its first frame cannot be decoded"
    return None


def image_error(path: str) -> str | None:
    """Why an image cannot be decoded completely; None if it can."""
    try:
        read_image(path, DecodeLimits(MAX_IMAGE_PIXELS))
    except VideoDecodeError as error:
        return error.reason
    return None


#: The check of a file by the kind of the lists.
CHECKS: dict[str, Check] = {"video": first_frame_error, "image": image_error}


class CheckJob(BatchJob):
    """Calls a function with the path of every file; what it returns stands until the file changes.

    Args:
        root: Folder that the keys of the items are relative to.
        check: Returns what was found, as a JSON value; defined at the top level of a module.
    """

    name = "check"

    def __init__(self, root: str | Path, check: Check) -> None:
        self.root = os.path.abspath(root)  # other machines have other current folders
        self.check = check
        self.settings = {"check": check.__name__}

    def process(self, item: Item) -> dict[str, Any]:
        """What was found."""
        return {"found": self.check(os.path.join(self.root, item.key))}


def check_files(
    paths: Sequence[str], job: CheckJob, records: Path | None, workers: Workers
) -> dict[str, Any]:
    """What was found for each file; a file that hangs or crashes its process affects no other file.

    Args:
        paths: The files, relative to ``job.root``.
        job: What is done with each.
        records: File of the records, so that an interrupted check resumes and unchanged files are
            not opened again; None keeps them in memory.
        workers: Processes of this machine or of a Ray cluster.

    Returns:
        By path, in the order of ``paths``: what the check returned, or a reason.

    Raises:
        BusyStoreError, StoreError, StorageError: The records cannot be used or written.
        UserError: The processes cannot start, or the cluster is lost.
    """
    if not paths:
        return {}
    items = [Item(path, file_state(os.path.join(job.root, path))) for path in paths]
    with RecordStore(records, job.name) as store:
        due = [item for item in items if not is_current(job, item, store)]
        progress = Progress(len(items), "checking", begin=len(items) - len(due))
        run_job(job, due, store, workers.at_most(len(due)), lambda item, record: progress.advance())
        progress.finish()
        return {path: _found(store.get(path)) for path in paths}


def _found(record: Record | None) -> Any:
    assert record is not None
    if record.done:
        return record.facts["found"]
    return f"the decoder crashed: {record.reason}" if record.kind == "crash" else record.reason


_SHOWN = 5  # examples of missing and unreadable files on the screen


@dataclass(frozen=True)
class PrepareOptions:
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
    options: PrepareOptions,
    stream: TextIO | None = None,
) -> bool:
    """Check the files, print the counts, write lists, class maps and reports.

    Args:
        official: Content of the official lists.
        located: Locations of the videos, by name.
        options: PrepareOptions.
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
    _print(format_counts(rows), stream)
    for note in _notes(official, located, missing, unreadable, options):
        _print(note, stream)
    left_out = set() if options.keep_missing else {*missing, *unreadable}
    contents = _lists(official, located, left_out)
    for what, reasons in (("missing", missing), ("unreadable", unreadable)):
        by_path = {located[name].path: reason for name, reason in reasons.items()}
        contents[f"{what}_{official.name}.txt"] = failure_report(by_path)
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
    options: PrepareOptions,
    missing: dict[str, str],
) -> dict[str, str]:
    """Problems of the existing files by name; broken links are added to ``missing``."""
    # Records are by path: another spelling of a name in a list opens no file again.
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
    options: PrepareOptions,
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


def failure_report(reasons: Mapping[str, str]) -> str | None:
    """Sorted lines ``path<TAB>reason``; None without any."""
    lines = sorted(f"{path}\t{' '.join(reason.split())}\n" for path, reason in reasons.items())
    return "".join(lines) or None
