"""Find the files of a dataset that cannot be decoded completely, and describe their problems.

:func:`verify` is the command ``sce-video verify``. :func:`verify_videos` decodes all files in a
batch job. :func:`find_problems` compares the facts about the files with the limits and the list.
:func:`write_table` and :func:`describe_problems` show the problems.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sce_video import jobs
from sce_video.data_tools.examination import FileFacts, VideoFacts, examine_file
from sce_video.data_tools.listed_videos import listed_videos
from sce_video.datasets.named_files import class_names_of
from sce_video.datasets.sources import listed_extensions
from sce_video.datasets.text_tables import tsv_cell
from sce_video.datasets.video_list import VideoList
from sce_video.options.prepare import VerifyOptions
from sce_video.options.shared import MAX_PIXELS
from sce_video.utils.command import file_progress, shown_failures
from sce_video.utils.files import write_text
from sce_video.utils.records import read_record

#: Kinds of problems, with their descriptions in the summary.
KINDS = {
    "missing": "no such file",
    "bad": "cannot be opened, are truncated or damaged, or take too long",
    "damaged": "errors in a few frames, which are used",
    "short": "too short",
    "container": "container does not match the file extension",
    "header": "header disagrees with the decoded frames",
    "clock": "clock restarts or jumps; they can be read",
    "duplicate": "listed more than once",
    "label": "label missing or out of range",
}

#: FFmpeg's names for the containers in which files with each extension may be stored.
CONTAINERS: dict[str, frozenset[str]] = {
    extension: frozenset(names.split())
    for extensions, names in (
        (".mp4 .mov .3gp .3g2 .m4a .f4v .qt .ismv", "mov mp4"),
        (".m4v", "mov mp4 m4v"),
        (".mkv .webm .mk3d", "matroska webm"),
        (".avi .divx", "avi"),
        (".wmv .asf", "asf"),
        (".flv", "flv live_flv"),
        (".gif", "gif"),
        (".mpg .mpeg .mpe .mpv", "mpeg mpegvideo mpegts"),
        (".vob .vro .mod .tod .m2p", "mpeg mpegts"),
        (".ts .mts .m2ts .m2t .trp", "mpegts"),
        (".m1v .m2v", "mpegvideo mpeg"),
        (".ogv .ogm .ogg", "ogg"),
        (".rm .rmvb", "rm"),
        (".mxf", "mxf"),
        (".dv .dif", "dv"),
    )
    for extension in extensions.split()
}
#: Codecs of WebM. A .webm file with any other codec is a Matroska file.
_WEBM_CODECS = frozenset({"vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9", "libaom-av1"})


@dataclass(frozen=True)
class Problem:
    """One problem of a listed file.

    Attributes:
        kind: Key of :data:`KINDS`.
        path: Path as written in the list.
        line: Line of the list, counted from 1; None for a folder.
        detail: Description.
        video: Facts about the file, if it was decoded for this entry.
    """

    kind: str
    path: str
    line: int | None
    detail: str
    video: VideoFacts | None = None


@dataclass(frozen=True)
class VerifyResult:
    """Result of ``sce-video verify``.

    Attributes:
        files: Number of entries of the list.
        problems: Problems in the order of the list.
        table: Path of the table that lists the problems.
    """

    files: int
    problems: list[Problem]
    table: Path


def verify(options: VerifyOptions) -> VerifyResult:
    """Decode every file of a dataset, compare the files with the list, and write a table.

    Raises:
        ValueError: If the list, the folder or the file of class names is missing or empty.
        jobs.StoreError: If the file for the records exists, but is not a record store.
    """
    classes = class_names_of(options.classes)
    if classes == [""]:
        raise ValueError(f"the file of class names {options.classes!r} is empty")
    extensions = listed_extensions(options.all_files)
    listed = listed_videos(options.source, options.data_root, extensions)
    videos = listed.videos
    source = Path(os.path.abspath(options.source))
    name = source.name if source.is_dir() else source.stem
    table = Path(options.out or source.with_name(f"{name}.verify.tsv"))
    job = VerifyJob(listed.root, options.timeout, options.max_pixels)
    workers = jobs.Workers(options.workers, options.timeout, options.ray)
    paths = (videos.path(index) for index in range(len(videos)))
    show = file_progress("verify", "decoding")
    with _open_records(table.with_suffix(".sqlite"), options.restart) as store:
        problems = find_problems(
            videos,
            verify_videos(paths, job, store, workers, show),
            min_frames=options.min_frames,
            min_duration=options.min_duration,
            lines=listed.lines,
            num_classes=None if classes is None else len(classes),
        )
    write_table(table, problems)
    return VerifyResult(len(videos), problems, table)


def find_problems(
    videos: VideoList,
    facts: Callable[[str], FileFacts],
    *,
    min_frames: int = VerifyOptions.min_frames,
    min_duration: float = VerifyOptions.min_duration,
    lines: Sequence[int] | None = None,
    num_classes: int | None = None,
) -> list[Problem]:
    """Return all problems, in the order of the list.

    Args:
        videos: The list, N entries.
        facts: Function that returns the facts about a path, from :func:`verify_videos`.
        min_frames: Minimum length of a video in frames.
        min_duration: Minimum length of a video in seconds.
        lines: (N,) line number of each entry in the file of the list.
        num_classes: Number of classes, which labels must be below. None skips this check.
    """
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index in range(len(videos)):
        path, line = videos.path(index), None if lines is None else lines[index]
        label = int(videos.labels[index])
        found: list[tuple[str, str]] = []
        video: VideoFacts | None = None
        earlier = first.setdefault(os.path.normpath(path), index)
        if earlier != index:
            where = f"entry {earlier + 1}" if lines is None else f"line {lines[earlier]}"
            before = int(videos.labels[earlier])
            other = f", which has label {before}; here it is {label}" if before != label else ""
            found.append(("duplicate", f"same file as {where}{other}"))
        else:
            # Examine each file only at its first entry.
            known = facts(path)
            video = known.video
            found += file_problems(path, known, min_frames, min_duration)
        if num_classes is not None and not 0 <= label < num_classes:
            what = "has no label" if label < 0 else f"label {label} is out of range"
            found.append(("label", f"{what}: labels are 0 to {num_classes - 1}"))
        problems += [Problem(kind, path, line, detail, video) for kind, detail in found]
    return problems


def file_problems(
    path: str,
    facts: FileFacts,
    min_frames: int = VerifyOptions.min_frames,
    min_duration: float = VerifyOptions.min_duration,
) -> list[tuple[str, str]]:
    """Return the kind and the details of every problem in a file.

    Args:
        path: Path of the file, which ends with its extension.
        facts: Facts about the file.
        min_frames: Minimum length in frames.
        min_duration: Minimum length in seconds.
    """
    video = facts.video
    if video is None:
        return [("missing" if facts.outcome == "missing" else "bad", str(facts.error))]
    found = []
    incomplete = video.incomplete
    if incomplete:
        found.append(("bad", incomplete))
    frames, seconds = video.frames, video.seconds
    if frames < min_frames:
        count = f"{frames} frame{'s' if frames != 1 else ''}"
        found.append(("short", f"{count}, fewer than {min_frames}"))
    elif seconds < min_duration:
        found.append(("short", f"{seconds:.3f} s, less than {min_duration:g} s"))
    extension, names = os.path.splitext(path)[1].lower(), video.container.split(",")
    codec = video.codec
    if not CONTAINERS.get(extension, {*names}) & {*names}:
        found.append(("container", f"extension {extension}, but the file is {names[0]} ({codec})"))
    elif extension == ".webm" and codec not in _WEBM_CODECS:
        kind = f"the codec {codec} makes it a Matroska file"
        found.append(("container", f"extension {extension}, but {kind}"))
    if video.restarts:
        places = f"{video.restarts} place{'s' if video.restarts != 1 else ''}"
        found.append(("clock", f"its clock restarts or jumps at {places}, where time continues"))
    if incomplete:
        return found
    if video.damaged:
        found.append(("damaged", f"{video.damaged} of {frames} frames are damaged"))
    differs = video.wrong_header
    return [*found, ("header", differs)] if differs else found


def _open_records(path: Path, restart: bool) -> jobs.RecordStore:
    try:
        return jobs.RecordStore(path, VerifyJob.name, restart=restart)
    except jobs.BusyStoreError:
        raise
    except jobs.StoreError as error:
        raise jobs.StoreError(f"{error}. Choose another name with --out") from error


class VerifyJob(jobs.BatchJob):
    """Job that decodes one file completely.

    If the limits change, only some files are decoded again (:meth:`holds`), so the limits are not
    settings of the records.

    Args:
        root: Folder that the keys of the items are relative to.
        timeout: Time limit for a file in seconds.
        max_pixels: Largest number of pixels (height x width) that a frame may have.
    """

    name = "verify"

    def __init__(self, root: str, timeout: float, max_pixels: int = MAX_PIXELS) -> None:
        self.root = os.path.abspath(root)  # the current folder may differ between machines
        self.timeout = timeout
        self.max_pixels = max_pixels

    def process(self, item: jobs.Item) -> dict[str, Any]:
        """Return the facts of :func:`examine_file`."""
        path = os.path.join(self.root, item.key)
        return asdict(examine_file(path, self.timeout, self.max_pixels))

    def holds(self, item: jobs.Item, record: jobs.Record) -> bool:
        """Return whether a file need not be decoded again.

        Files are decoded again if they crashed a process, if they exceeded a time limit that is
        longer now, or if a new ``max_pixels`` changes whether they are decoded.
        """
        facts = facts_of(record)
        if facts.outcome == "timeout":
            return self.timeout <= (record.time_limit or 0.0)
        if facts.outcome == "unreadable":
            return self.max_pixels <= facts.max_pixels
        return facts.video is not None and facts.video.height * facts.video.width <= self.max_pixels


def verify_videos(
    paths: Iterable[str],
    job: VerifyJob,
    store: jobs.RecordStore,
    workers: jobs.Workers,
    on_progress: Callable[[int, int, bool], None] = lambda done, total, failed: None,
) -> Callable[[str], FileFacts]:
    """Decode all files that have no record of their present state.

    Args:
        paths: Paths of the files, relative to the job's ``root``. Repeated paths are decoded once.
        job: Job that is applied to each file.
        store: Results of earlier runs, to which the results of this run are added.
        workers: Processes or cluster that run the job.
        on_progress: Called with (files done, all files, False) at the start and after each file.

    Returns:
        Function that returns the facts about a path. It reads them from the store when it is
        called, so that only the paths of millions of files are in memory.
    """
    unique = dict.fromkeys(paths)

    def existing() -> Iterator[jobs.Item]:
        items = (jobs.Item(p, jobs.file_state(os.path.join(job.root, p))) for p in unique)
        return (item for item in items if item.source is not None)

    found = {item.key: jobs.is_current(job, item, store) for item in existing()}
    due = len(found) - sum(found.values())
    done = itertools.count(len(unique) - due)

    def report(*_: object) -> None:
        on_progress(next(done), len(unique), False)

    report()
    if due:
        jobs.run_job(job, existing(), store, workers.at_most(due), report)

    def facts(path: str) -> FileFacts:
        if path not in found:
            return FileFacts(outcome="missing", error="there is no such file")
        record = store.get(path)
        assert record is not None
        return facts_of(record)

    return facts


def facts_of(record: jobs.Record) -> FileFacts:
    """Return the facts in a record, also if the file could not be examined."""
    if record.done:
        try:
            return read_record(FileFacts, record.facts)
        except ValueError:
            return FileFacts(outcome="crash", error="its record has another form")
    if record.kind == "timeout":
        return FileFacts(outcome="timeout", error=record.reason)
    words = "the decoder crashed" if record.kind == "crash" else "examining it failed"
    return FileFacts(outcome="crash", error=f"{words}: {record.reason}")


def write_table(path: str | os.PathLike[str], problems: Sequence[Problem]) -> None:
    """Write a table of problems, as Markdown if the name ends with ``.md``, otherwise as TSV.

    Without problems, the table contains only the header.
    """
    path = Path(path)
    rows = [["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"]]
    for problem in problems:
        video = problem.video
        cells: list[str | int | None] = [problem.kind, problem.path, problem.line, problem.detail]
        if video is None:
            cells += [None] * 4
        else:
            container = video.container.split(",")[0]
            cells += [video.frames, f"{video.seconds:.3f}", container, video.codec]
        rows.append([tsv_cell(cell) for cell in cells])
    if path.suffix == ".md":
        rows = [rows[0], ["---"] * 8, *([t.replace("|", "\\|") for t in row] for row in rows[1:])]
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    else:
        text = "".join("\t".join(row) + "\n" for row in rows)
    write_text(path, text)


def describe_problems(problems: Sequence[Problem], num_files: int) -> str:
    """Describe the problems for the terminal: the number and the first files of each kind."""
    affected = len({problem.path for problem in problems})
    if not problems:
        return f"{num_files} files, no problems"
    lines = [f"{num_files} files, {num_files - affected} good, {affected} with problems:"]
    for kind, words in KINDS.items():
        of_kind = [(problem.path, problem.detail) for problem in problems if problem.kind == kind]
        if of_kind:
            lines.append(f"  {kind}: {len(of_kind)} ({words})")
            lines += [f"  {line}" for line in shown_failures(of_kind, most=5)]
    return "\n".join(lines)
