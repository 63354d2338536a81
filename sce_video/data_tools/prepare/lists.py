"""Make annotation lists from official lists and files on disk, for any dataset.

Every file is opened once, in a batch job. Counts are printed next to the published numbers.
Existing lists with other content are replaced only on demand.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video import jobs
from sce_video.data_tools.prepare.official import Located, OfficialLists
from sce_video.datasets.readers import open_reader
from sce_video.datasets.readers.base import (
    MAX_IMAGE_PIXELS,
    DecodeLimits,
    FrameCountError,
    VideoDecodeError,
)
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.text_tables import tsv_cell
from sce_video.datasets.video_list import annotation_line
from sce_video.options.data_commands import PrepareOptions
from sce_video.utils.command import Progress, printable_lines, shown_failures
from sce_video.utils.files import read_bytes, write_text

# -- the table of counts ----------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of the table. ``agrees`` is None if no count is published."""

    title: str
    listed: int | str
    found: int | str = ""
    missing: int | str = ""
    unreadable: int | str = ""
    published: int | str | None = None
    agrees: bool | None = None

    def cells(self) -> list[str]:
        """Return the cells as text, in the order of the columns."""
        counts = (self.listed, self.found, self.missing, self.unreadable, self.published)
        texts = [f"{n:,}" if isinstance(n, int) else n or "" for n in counts]
        return [self.title, *texts, {None: "", True: "ok", False: "differs"}[self.agrees]]


def count_rows(
    official: OfficialLists,
    missing: Container[str],
    unreadable: Container[str],
    checked: bool = True,
) -> list[Row]:
    """Return rows for the classes, for all videos and for each split.

    A split agrees with the published number if its list contains that many videos, and if all
    videos that can still be downloaded are on disk and readable.

    Args:
        official: The official lists.
        missing: Names of missing videos.
        unreadable: Names of unreadable videos.
        checked: Whether the files were opened.
    """

    def row(title: str, names: list[str], published: int | None, wanted: int | None) -> Row:
        absent = sum(name in missing for name in names)
        bad = sum(name in unreadable for name in names)
        found = len(names) - absent
        agrees, text = None, ""
        if published is not None and wanted is not None:
            agrees = len(names) == published and found - bad >= wanted
            text = f"{published:,}" if wanted == published else f"{published:,} ({wanted:,})"
        return Row(
            title, len(names), found, absent, bad if checked else "not checked", text, agrees
        )

    rows = []
    for classes in official.class_maps:
        count, published = len(classes.names), classes.published
        agrees = None if published is None else count == published
        title = classes.file_name.removesuffix(".txt")
        rows.append(Row(title, count, published=published, agrees=agrees))
    total = official.published_videos
    if total is not None:
        rows.append(row("videos", official.names(), total, total))
    for split in official.splits:
        wanted = split.published if split.published_files is None else split.published_files
        names = [entry.name for entry in split.entries]
        rows.append(row(split.title, names, split.published, wanted))
        if split.per_class is not None:
            counts = Counter(entry.label for entry in split.entries).values()
            low, high = min(counts), max(counts)
            listed = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            agrees = low == high == split.per_class
            title = f"{split.title}, per class"
            rows.append(Row(title, listed, published=split.per_class, agrees=agrees))
    return rows


def format_counts(rows: Sequence[Row]) -> str:
    """Return the table as text. The first column is aligned left, all others right."""
    header = ["", "in the list", "found on disk", "missing", "unreadable", "published", "result"]
    lines = [header, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


# -- the check of the files -------------------------------------------------------------------


def first_frame_error(path: str) -> str | None:
    """Return why the first frame of a file cannot be decoded; None if it can."""
    try:
        with open_reader(path) as reader:
            reader.read(np.zeros(1, dtype=np.int64))
    except VideoDecodeError as error:
        return error.reason
    except FrameCountError:
        return "its first frame cannot be decoded"
    return None


def image_error(path: str) -> str | None:
    """Return why an image cannot be decoded completely; None if it can."""
    try:
        read_image(path, DecodeLimits(MAX_IMAGE_PIXELS))
    except VideoDecodeError as error:
        return error.reason
    return None


class CheckJob(jobs.BatchJob):
    """Job that calls a function with every path. Results are kept until the file changes.

    Keys of items are paths relative to ``root``. ``check`` is defined at the top level of a module,
    and returns a JSON value.
    """

    name = "check"

    def __init__(self, root: str | Path, check: Callable[[str], Any]) -> None:
        self.root = os.path.abspath(root)  # the current folder may differ between machines
        self.check = check
        self.settings = {"check": check.__name__}

    def process(self, item: jobs.Item) -> dict[str, Any]:
        """Return the result of the check."""
        return {"found": self.check(os.path.join(self.root, item.key))}


# -- the lists --------------------------------------------------------------------------------


def lists_folder(options: PrepareOptions) -> Path:
    """Return the folder of the lists."""
    return Path(options.out or options.root)


def check_files(
    folder: Path,
    paths: Sequence[str],
    check: Callable[[str], Any],
    name: str,
    options: PrepareOptions,
) -> dict[str, Any]:
    """Check each file. A file that hangs or crashes does not affect other files.

    Args:
        folder: Folder of the files.
        paths: Paths relative to the folder.
        check: Function that is called with each file, see :class:`CheckJob`.
        name: Name of the records, from which an interrupted check is resumed.
        options: Options that contain the folder of the records and the number of processes.

    Returns:
        Result of the check, or the reason why it failed, by path, in the order of ``paths``.
    """
    if not paths:
        return {}
    job = CheckJob(folder, check)
    workers = jobs.Workers(options.workers, options.time_limit, options.ray)
    items = [jobs.Item(path, jobs.file_state(os.path.join(job.root, path))) for path in paths]
    found: dict[str, Any] = {}
    with jobs.RecordStore(lists_folder(options) / f"checked_{name}.sqlite", job.name) as store:
        due = [item for item in items if not jobs.is_current(job, item, store)]
        progress = Progress(len(items), "checking", begin=len(items) - len(due))
        jobs.run_job(
            job, due, store, workers.at_most(len(due)), lambda item, record: progress.advance()
        )
        progress.finish()
        for path in paths:
            record = store.get(path)
            assert record is not None
            crashed = "the decoder crashed: " if record.kind == "crash" else ""
            found[path] = record.facts["found"] if record.done else crashed + record.reason
    return found


def write_lists(
    official: OfficialLists, located: Mapping[str, Located], options: PrepareOptions
) -> bool:
    """Check the files, print the counts, and write lists, class maps and reports.

    Args:
        official: The official lists.
        located: Places of the files by name.
        options: Options of the command.

    Returns:
        True if all counts agree with the published counts.

    Raises:
        ValueError: If two names are the same file, a split has no video, or existing lists differ.
    """
    name_of: dict[str, str] = {}
    for name, place in located.items():  # otherwise, a video could be in both train and test
        other = name_of.setdefault(place.path, name)
        if other != name:
            raise ValueError(f"{other!r} and {name!r} of the lists are the same file, {place.path}")
    missing = {name: place.missing for name, place in located.items() if place.missing}
    unreadable: dict[str, str] = {}
    # Records are stored by path, so a file is not opened again if its name is spelled differently.
    names = {located[name].path: name for name in located if name not in missing}
    root = Path(options.root)
    if not options.no_check:
        check = image_error if official.kind == "image" else first_frame_error
        found = check_files(root, list(names), check, official.name, options)
        unreadable = {names[path]: why for path, why in found.items() if why is not None}
    else:
        gone = (path for path in names if not os.path.isfile(os.path.join(root, path)))
        missing |= {names[path]: "no such file" for path in gone}

    rows = count_rows(official, missing, unreadable, not options.no_check)
    notes = [f"note: {note}" for note in official.notes]
    remarks: dict[str, list[str]] = {}
    for name, place in located.items():
        if place.remark is not None:
            remarks.setdefault(place.remark, []).append(name)
    for remark, remarked in remarks.items():
        example = f"{remarked[0]}: {located[remarked[0]].path}"
        notes.append(f"note: {len(remarked):,} files {remark}, for example {example}")
    reports: dict[str, str | None] = {}
    for what, reasons in (("missing", missing), ("unreadable", unreadable)):
        report = f"{what}_{official.name}.txt"
        by_path = {located[name].path: reasons[name] for name in sorted(reasons)}
        notes += failure_notes(f"{what} ({report})", "files", by_path, options)
        reports[report] = failure_report(by_path)
    show_counts(rows, notes)
    contents: dict[str, str | None] = {}
    left_out = set() if options.keep_missing else {*missing, *unreadable}
    for split in official.splits:
        entries = [entry for entry in split.entries if entry.name not in left_out]
        if not entries:
            raise ValueError(
                f"none of the {len(split.entries):,} {official.kind}s of {split.list_name} is on "
                "disk and readable. Nothing was written"
            )
        lines = (annotation_line(located[entry.name].path, entry.label) for entry in entries)
        contents[split.list_name] = "".join(f"{line}\n" for line in lines)
    for class_map in official.class_maps:
        contents[class_map.file_name] = "".join(f"{name}\n" for name in class_map.names)
    write_outputs(contents | reports, options)
    return all(row.agrees is not False for row in rows)


def failure_notes(
    what: str, kind: str, reasons: Mapping[str, str], options: PrepareOptions
) -> Iterator[str]:
    """Yield lines for the terminal: the number of missing or unreadable files, and some files."""
    if reasons:
        kept = "kept in the lists (--keep-missing)"
        treatment = kept if options.keep_missing else "left out of the lists"
        yield f"{what}: {len(reasons):,} {kind}, {treatment}"
    yield from shown_failures(list(reasons.items()), most=5)


def failure_report(reasons: Mapping[str, str]) -> str | None:
    """Return sorted lines ``path<TAB>reason``, or None if nothing failed."""
    rows = ((path, " ".join(reason.split())) for path, reason in reasons.items())
    lines = sorted(f"{tsv_cell(path)}\t{tsv_cell(reason)}\n" for path, reason in rows)
    return "".join(lines) or None


def show_counts(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Print the table of counts, with notes below it."""
    print(printable_lines("\n".join([format_counts(rows), *notes])))


def write_outputs(contents: Mapping[str, str | None], options: PrepareOptions) -> None:
    """Write, replace or remove files, and print what was done with each.

    All files are compared before the first is written, and each is replaced atomically.

    Args:
        contents: Text by file name; None for a file that should not exist.
        options: Options that contain the folder, and whether existing files may be replaced.

    Raises:
        ValueError: If existing files differ and may not be replaced.
    """
    folder, actions = lists_folder(options), dict[str, str]()
    for name, text in contents.items():
        old = read_bytes(folder / name) if (folder / name).exists() else None
        if text is None and old is None:
            continue
        new = None if text is None else text.encode("utf-8", errors="surrogateescape")
        changed = "written" if old is None else "removed" if new is None else "replaced"
        actions[name] = "unchanged" if old == new else changed
    # Lists that belong together are replaced together, or not at all.
    differing = [name for name, action in actions.items() if action in ("replaced", "removed")]
    if differing and not options.force:
        listed = ", ".join(str(folder / name) for name in differing)
        raise ValueError(
            f"existing files differ from the new result: {listed}. Nothing was written. Replace "
            "them with --force, or write to another folder with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, action in actions.items():
        if action == "removed":
            (folder / name).unlink()
        elif action != "unchanged":
            write_text(folder / name, contents[name] or "")
        print(printable_lines(f"{folder / name}: {action}"))
