"""Find the files of a data set that cannot be decoded completely, and what is wrong with them.

:func:`verify` is the command ``sce-video verify``. :func:`examine_file` decodes one file, and
:func:`verify_videos` all files of a list, as a batch job. :func:`find_problems` compares what was
found with the limits and the list. :func:`write_table` and :func:`describe_problems` show it.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import av.logging
import numpy as np

from sce_video import jobs
from sce_video.datasets.named_files import check_source, class_names_of
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.av_file import (
    best_video_stream,
    decoder_options,
    open_container,
)
from sce_video.datasets.readers.base import (
    DecodeLimits,
    FrameCountError,
    VideoDecodeError,
    VideoTimeoutError,
    check_deadline,
    check_regular_file,
    too_damaged,
)
from sce_video.datasets.sources import list_root, listed_extensions, scan_folder
from sce_video.datasets.video_list import VideoList, read_annotation_list
from sce_video.options.prepare import VerifyOptions
from sce_video.options.shared import MAX_PIXELS
from sce_video.utils.command import file_progress, printable_utf8
from sce_video.utils.files import regular_file, text_encoding, write_text

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

#: File extensions, and FFmpeg's names of the containers they may hold.
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
#: Codecs of .webm files; with any other codec the file is a Matroska file.
_WEBM_CODECS = frozenset({"vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9", "libaom-av1"})


@dataclass(frozen=True)
class _ToleranceSettings:
    """Deviations of a header up to which it is not reported; the larger tolerance applies."""

    #: Share of the stated value, which covers rounded durations of long videos.
    share: float = 0.1
    #: A writer may count a frame or two that it does not write.
    frames: int = 2
    #: Durations may be rounded.
    seconds: float = 0.5


_TOLERANCE = _ToleranceSettings()
# Bytes of an MPEG-4 picture that is "not coded": the frame before it stays, and none decodes.
_NOT_CODED = 19


@dataclass(frozen=True)
class Limits:
    """Minimum length of a video in frames and in seconds."""

    min_frames: int = VerifyOptions.min_frames
    min_duration: float = VerifyOptions.min_duration


@dataclass(frozen=True)
class Problem:
    """One problem of one entry of a list."""

    kind: str  # a key of :data:`KINDS`
    path: str  # as written in the list
    line: int | None  # line of the list, counted from 1; None for a folder
    detail: str  # description
    # Result of :func:`examine_file`; empty if the file was not opened for this entry.
    facts: dict[str, Any]


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
        jobs.StoreError: If the file of the records contains something else.
    """
    classes = class_names_of(options.classes)
    if classes == [""]:
        raise ValueError(f"the file of class names {options.classes!r} is empty")
    extensions = listed_extensions(options.all_files)
    check_source(options.source, options.data_root, extensions)
    videos, root, lines = listed_videos(options.source, options.data_root, extensions)
    source = Path(os.path.abspath(options.source))
    name = source.name if source.is_dir() else source.stem
    table = Path(options.out or source.with_name(f"{name}.verify.tsv"))
    job = VerifyJob(root, options.timeout, options.max_pixels)
    workers = jobs.Workers(options.workers, options.timeout, options.ray)
    show = file_progress("verify", "decoding")
    with open_records(table.with_suffix(".sqlite"), restart=options.restart) as store:
        facts = verify_videos(
            (videos.path(index) for index in range(len(videos))),
            job,
            store,
            workers,
            lambda done, total, known: show(done + known, total + known, False),
        )
        problems = find_problems(
            videos,
            facts,
            limits=Limits(options.min_frames, options.min_duration),
            lines=lines,
            num_classes=None if classes is None else len(classes),
        )
    write_table(table, problems)
    return VerifyResult(len(videos), problems, table)


def find_problems(
    videos: VideoList,
    facts: Callable[[str], dict[str, Any]],
    *,
    limits: Limits | None = None,
    lines: Sequence[int] | None = None,
    num_classes: int | None = None,
) -> list[Problem]:
    """All problems, in the order of the list.

    Args:
        videos: The list, N entries.
        facts: Facts of a path, from :func:`verify_videos`.
        limits: Minimum length; None for the defaults.
        lines: (N,) line number of every entry in its file.
        num_classes: Labels must lie in ``[0, num_classes)``; None does not check labels.
    """
    limits = limits or Limits()
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index in range(len(videos)):
        path, line = videos.path(index), None if lines is None else lines[index]
        label = int(videos.labels[index])
        found: list[tuple[str, str]] = []
        known: dict[str, Any] = {}
        earlier = first.setdefault(os.path.normpath(path), index)
        if earlier != index:
            where = f"entry {earlier + 1}" if lines is None else f"line {lines[earlier]}"
            before = int(videos.labels[earlier])
            other = f", which has label {before}; here it is {label}" if before != label else ""
            found.append(("duplicate", f"same file as {where}{other}"))
        else:
            # Of an entry that repeats another one the file was examined already.
            known = facts(path)
            found += file_problems(path, known, limits)
        if num_classes is not None and not 0 <= label < num_classes:
            what = "has no label" if label < 0 else f"label {label} is out of range"
            found.append(("label", f"{what}: labels are 0 to {num_classes - 1}"))
        problems += [Problem(kind, path, line, detail, known) for kind, detail in found]
    return problems


def file_problems(path: str, facts: dict[str, Any], limits: Limits) -> list[tuple[str, str]]:
    """(kind, detail) of all problems of a file.

    Args:
        path: Its name, for the extension.
        facts: From :func:`examine_file`, or with ``outcome`` ``missing`` or ``crash``.
        limits: Minimum length.
    """
    if facts["outcome"] == "missing":
        return [("missing", "there is no such file")]
    if facts["outcome"] != "decoded":
        return [("bad", facts["error"])]
    found = []
    incomplete = _describe_incomplete(facts)
    if incomplete:
        found.append(("bad", incomplete))
    frames, seconds = facts["frames"], facts["seconds"]
    if frames < limits.min_frames:
        count = f"{frames} frame{'s' if frames != 1 else ''}"
        found.append(("short", f"{count}, fewer than {limits.min_frames}"))
    elif seconds < limits.min_duration:
        found.append(("short", f"{seconds:.3f} s, less than {limits.min_duration:g} s"))
    extension, names = os.path.splitext(path)[1].lower(), facts["container"].split(",")
    codec = facts["codec"]
    if not CONTAINERS.get(extension, {*names}) & {*names}:
        found.append(("container", f"extension {extension}, but the file is {names[0]} ({codec})"))
    elif extension == ".webm" and codec not in _WEBM_CODECS:
        kind = f"the codec {codec} makes it a Matroska file"
        found.append(("container", f"extension {extension}, but {kind}"))
    if facts.get("restarts"):
        places = f"{facts['restarts']} place{'s' if facts['restarts'] != 1 else ''}"
        found.append(("clock", f"its clock restarts or jumps at {places}: time counts on there"))
    if incomplete:
        return found
    if facts["damaged"]:
        found.append(("damaged", f"{facts['damaged']} of {frames} frames are damaged"))
    differs = _describe_header(facts)
    return [*found, ("header", differs)] if differs else found


def _describe_header(facts: dict[str, Any]) -> str | None:
    """Describe how the header of a complete file differs from its frames; None if it does not."""
    frames, seconds = facts["frames"], facts["seconds"]
    counted, stated = facts["header_frames"], facts["header_seconds"]
    if counted and _less(counted, frames, _TOLERANCE.frames):
        return f"the header states {counted} frames, {frames} decode"
    if stated and (
        _less(stated, seconds, _TOLERANCE.seconds) or _less(seconds, stated, _TOLERANCE.seconds)
    ):
        whose = f"{stated:.2f} s for {'the file' if facts['header_of_file'] else 'the video'}"
        return f"the header states {whose}, its frames last {seconds:.2f} s"
    return None


def _describe_incomplete(facts: dict[str, Any]) -> str | None:
    """How a file fails to decode completely; None if it does not fail."""
    frames, seconds = facts["frames"], facts["seconds"]
    # Of a file cut short there are fewer packets than its header states, if it states a number.
    expected = max(facts["packets"], facts["header_frames"] or 0)
    if facts["refused"]:
        packets = f"{facts['refused']} packet{'s' if facts['refused'] != 1 else ''}"
        return f"{packets} cannot be decoded: {frames} of {expected} frames are usable"
    if _less(frames, expected, _TOLERANCE.frames):
        return f"is truncated: {frames} of {expected} frames decode"
    if too_damaged(facts["damaged"], frames):
        return f"{facts['damaged']} of {frames} frames are damaged"
    stated = facts["header_seconds"]
    if not facts["header_frames"] and stated is not None and not facts["header_of_file"]:
        if _less(seconds, stated, _TOLERANCE.seconds):
            return f"is truncated: {seconds:.2f} of {stated:.2f} s decode"
    return None


def _less(value: float, other: float, tolerance: float) -> bool:
    """Whether a value is smaller than the other by more than the tolerance and a tenth of it."""
    return other - value > max(tolerance, _TOLERANCE.share * other)


def examine_file(path: str, seconds: float, max_pixels: int = MAX_PIXELS) -> dict[str, Any]:
    """Decode a file from its first to its last frame, without keeping the frames.

    Args:
        path: The file.
        seconds: That it may take.
        max_pixels: Height x width of the largest frames that are decoded.

    Returns:
        Facts that JSON can hold. ``outcome``: ``decoded`` (at least some frames), ``unreadable``
        or ``timeout``; ``error``: the reason, or None. With ``decoded`` also:

        - ``frames``: usable frames, excluding those between a damaged packet and the next key
          frame (as :class:`AvReader` does); ``seconds``: their duration.
        - ``packets``: frames the file should have; ``refused``: packets the decoder rejects;
          ``damaged``: frames in which the decoder concealed errors; ``hidden``: samples without a
          frame of their own, since an edit list hides it or it was dropped when recording.
        - ``header_frames`` (without hidden samples), ``header_seconds``: what the container states,
          or None;
          ``header_of_file``: whether these seconds are the duration of the container, which
          includes audio, and not that of the video stream.
        - ``restarts``: places where the clock of the time stamps restarts or jumps.
        - ``container``, ``codec``, ``height``, ``width``.
    """
    av.logging.set_libav_level(av.logging.FATAL)
    deadline = time.monotonic() + seconds
    try:
        check_regular_file(path)
        limits = DecodeLimits(max_pixels)
        with AvReader(path, deadline=deadline, limits=limits) as reader:
            facts = _decode_all(path, deadline, limits)
            facts["packets"] = len(reader.timestamps) - facts.pop("skipped")
            facts["seconds"], facts["restarts"] = reader.duration, reader.restarts
            if reader.restarts:  # FFmpeg has computed it from the first and the last time stamp
                facts["header_seconds"] = None
            # Frames between a damaged packet and the next key frame decode, and show garbage:
            # those that the reader returns of a file that is not intact count.
            if facts["frames"] != facts["packets"] or facts["refused"]:
                try:
                    reader.read(np.array([len(reader.timestamps) - 1]))
                except FrameCountError as error:
                    last = float(error.timestamps[-1])
                    facts["frames"] = len(error.timestamps)
                    facts["seconds"] = last + reader.duration - float(reader.timestamps[-1])
    except VideoTimeoutError:
        return {"outcome": "timeout", "error": f"not done after {seconds:g} s"}
    except VideoDecodeError as error:
        return {"outcome": "unreadable", "error": error.reason}
    return {"outcome": "decoded", "error": None, **facts}


def _decode_all(path: str, deadline: float, limits: DecodeLimits) -> dict[str, Any]:
    frames = refused = damaged = samples = hidden = skipped = 0
    end = None  # of the last packet, in ticks of the container
    with open_container(path, decoder_options=decoder_options(limits)) as container:
        stream = best_video_stream(path, container)
        facts = _header(container, stream)
        stream.codec_context.options = decoder_options(limits)
        stream.codec_context.thread_count = 1  # there is one process per core
        for packet in demux_packets(container, stream):
            check_deadline(path, deadline)
            if packet.dts is not None:
                samples, end = samples + 1, max(end or 0, packet.dts + 1)
                hidden += packet.is_discard or not packet.size
                if not packet.size:  # decoding it would end the stream
                    continue
            try:
                decoded = packet.decode()
            except (av.FFmpegError, OSError):
                refused += 1
                continue
            if not decoded and 0 < packet.size <= _NOT_CODED and facts["codec"] == "mpeg4":
                skipped += 1
            for frame in decoded:
                limits.check_frame(path, frame.height, frame.width)
            frames += len(decoded)
            damaged += sum(frame.is_corrupt for frame in decoded)
        if container.format.name == "avi":
            hidden = (end or 0) - samples  # a tick per frame, also for those dropped or empty
        hidden = _hidden_samples(container, stream, hidden, samples) + skipped
    if frames == 0:
        raise VideoDecodeError(path, "no frame can be decoded")
    if facts["header_frames"]:
        facts["header_frames"] = max(0, facts["header_frames"] - hidden) or None
    counts = {"frames": frames, "refused": refused, "damaged": damaged, "hidden": hidden}
    return {**facts, **counts, "skipped": skipped}


def _hidden_samples(container: Any, stream: Any, found: int, samples: int) -> int:
    """How many of the samples that the header counts have no frame of their own.

    Args:
        container: The container, demuxed to its end.
        stream: Its video.
        found: Hidden and empty packets; of an AVI file ticks without a packet.
        samples: All packets.
    """
    # FFmpeg's index (PyAV 18) lists what the packets must give.
    entries = list(getattr(stream, "index_entries", ()))
    stored = [entry for entry in entries if entry.size]
    if container.format.name == "avi":
        found -= max(0, len(stored) - samples)  # damaged, not dropped
    elif stored and container.format.name.startswith("mov,"):
        # It ends where the edit list does, and so does the stated duration; else it is damaged.
        ends = entries[-1].timestamp >= (1 - _TOLERANCE.share) * (stream.duration or np.inf)
        if found or ends or len(stored) < len(entries):
            shown = sum(not entry.is_discard for entry in stored)
            found = max(found, stream.frames - shown)
    return max(0, found)


def demux_packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream, to the place where a file is cut short."""
    packets = container.demux(stream)
    try:
        yield from packets
    except (av.FFmpegError, OSError, IndexError):
        return  # truncated: the frame counts show it
    finally:
        packets.close()  # see AvFile.packets


#: The form of Matroska's DURATION tags, 00:00:10.333.
_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d*)?)")


def _header(container: Any, stream: Any) -> dict[str, Any]:
    """What the container states about its video stream."""
    seconds: float | None = None
    of_file = False
    clock = _CLOCK.fullmatch(stream.metadata.get("DURATION", ""))
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif clock is not None:
        seconds = 3600 * float(clock[1]) + 60 * float(clock[2]) + float(clock[3])
    elif container.duration:
        seconds, of_file = container.duration / 1e6, len(container.streams) > 1
    return {
        "container": container.format.name,
        "codec": stream.codec_context.name,
        "height": stream.codec_context.height,
        "width": stream.codec_context.width,
        "header_frames": stream.frames or None,
        "header_seconds": seconds,
        "header_of_file": of_file,
    }


def listed_videos(
    source: str, data_root: str | None, extensions: Sequence[str] | None = None
) -> tuple[VideoList, str, list[int] | None]:
    """The videos of an annotation list or a folder, the root of their paths, and line numbers.

    The paths of a list are relative to ``data_root``; None takes the folder of the list or the
    current one, whichever holds one of the first files. The (N,) line numbers from 1 are None for a
    folder.

    Raises:
        ValueError: There are no videos, or none of the first files of the list exists.
    """
    if os.path.isdir(source):
        if data_root is not None:
            raise ValueError(f"{source} is a folder: --data-root goes with an annotation list")
        return scan_folder(source, extensions), source, None
    videos = read_annotation_list(source)
    root = list_root(source, data_root, videos)
    encoding = text_encoding(source)
    with open(source, encoding=encoding, errors="surrogateescape", opener=regular_file) as file:
        lines = [number for number, line in enumerate(file, 1) if line.strip()]
    return videos, root, lines


def open_records(path: str | os.PathLike[str], restart: bool = False) -> jobs.RecordStore:
    """The records of a verification; ``restart`` discards what the file holds.

    Raises:
        jobs.StoreError: The file holds something else, or another run writes it.
        StorageError: It cannot be written.
    """
    try:
        return jobs.RecordStore(Path(path), VerifyJob.name, restart=restart)
    except jobs.BusyStoreError:
        raise
    except jobs.StoreError as error:
        raise jobs.StoreError(f"{error}; choose another name with --out") from error


class VerifyJob(jobs.BatchJob):
    """Decodes one file completely.

    Its limits are no settings of the records: what was found tells whether other limits would find
    something else.

    Args:
        root: Folder that the keys of the items are relative to.
        timeout: Seconds a file may take.
        max_pixels: Height x width of the largest frames that are decoded.
    """

    name = "verify"

    def __init__(self, root: str, timeout: float, max_pixels: int = MAX_PIXELS) -> None:
        self.root = os.path.abspath(root)  # other machines have other current folders
        self.timeout = timeout
        self.max_pixels = max_pixels

    def process(self, item: jobs.Item) -> dict[str, Any]:
        """Facts of :func:`examine_file`, and the limit of its frames."""
        path = os.path.join(self.root, item.key)
        facts = examine_file(path, self.timeout, self.max_pixels)
        return {**facts, "max_pixels": self.max_pixels}

    def holds(self, item: jobs.Item, record: jobs.Record) -> bool:
        """Whether a file need not be decoded again.

        Files that crashed a process are, files that timed out if the limit is longer now, and files
        that another ``max_pixels`` may admit or refuse.
        """
        facts = facts_of(record)
        if facts["outcome"] == "timeout":
            return self.timeout <= (record.time_limit or 0.0)
        if facts["outcome"] == "unreadable":
            return self.max_pixels <= facts.get("max_pixels", 0)
        if facts["outcome"] != "decoded":
            return False
        if "hidden" not in facts and _describe_incomplete(facts):
            return False  # of a version that took hidden samples for missing frames
        return facts.get("height", 0) * facts.get("width", 0) <= self.max_pixels


def verify_videos(
    paths: Iterable[str],
    job: VerifyJob,
    store: jobs.RecordStore,
    workers: jobs.Workers,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> Callable[[str], dict[str, Any]]:
    """Decode all files whose present state has no record.

    Args:
        paths: Files; a path given twice is decoded once.
        job: What is done with each, relative to its ``root``.
        store: Results of earlier runs; the results of this run are added.
        workers: Where it runs.
        on_progress: Called with (files decoded, files to decode, files known or missing) at the
            start and after each file.

    Returns:
        The facts of a path, read from the store when they are asked for (of millions of files only
        the names are in memory): those of :func:`examine_file`, with two more values of
        ``outcome``: ``missing`` (not recorded) and ``crash``.
    """
    unique = dict.fromkeys(paths)

    def existing() -> Iterator[jobs.Item]:
        items = (jobs.Item(p, jobs.file_state(os.path.join(job.root, p))) for p in unique)
        return (item for item in items if item.source is not None)

    found = {item.key: jobs.is_current(job, item, store) for item in existing()}
    due = len(found) - sum(found.values())
    report = on_progress or (lambda done, total, known: None)
    report(0, due, len(unique) - due)
    done = itertools.count(1)

    def add(_item: jobs.Item, _record: jobs.Record | None) -> None:
        report(next(done), due, len(unique) - due)

    if due:
        jobs.run_job(job, existing(), store, workers.at_most(due), add)

    def facts(path: str) -> dict[str, Any]:
        if path not in found:
            return {"outcome": "missing", "error": "there is no such file"}
        record = store.get(path)
        assert record is not None
        return facts_of(record)

    return facts


def facts_of(record: jobs.Record) -> dict[str, Any]:
    """The facts of a record, whether or not its file could be examined.

    Of a failed file they are ``outcome``, ``timeout`` or ``crash`` (also for other failures), and
    ``error``, the reason.
    """
    if record.done:
        return record.facts
    if record.kind == "timeout":
        return {"outcome": "timeout", "error": record.reason}
    words = "the decoder crashed" if record.kind == "crash" else "examining it failed"
    return {"outcome": "crash", "error": f"{words}: {record.reason}"}


def write_table(path: str | os.PathLike[str], problems: Sequence[Problem]) -> None:
    """Write a table of problems: markdown if the name ends in ``.md``, else tab-separated.

    The file is replaced atomically; without problems it holds the header row only.
    """
    path = Path(path)
    rows = [["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"]]
    for problem in problems:
        facts, seconds = problem.facts, problem.facts.get("seconds")
        duration = None if seconds is None else f"{seconds:.3f}"
        container = (facts.get("container") or "").split(",")[0]
        cells = [problem.kind, problem.path, problem.line, problem.detail]
        cells += [facts.get("frames"), duration, container, facts.get("codec")]
        # A name may contain what separates cells and rows.
        escapes = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
        rows.append(["" if cell is None else str(cell).translate(escapes) for cell in cells])
    if path.suffix == ".md":
        rows = [rows[0], ["---"] * 8, *([t.replace("|", "\\|") for t in row] for row in rows[1:])]
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    else:
        text = "".join("\t".join(row) + "\n" for row in rows)
    write_text(path, text)


def describe_problems(problems: Sequence[Problem], num_files: int) -> str:
    """Lines for the terminal: the number of files with each problem, and the first of them."""
    affected = len({problem.path for problem in problems})
    if not problems:
        return f"{num_files} files, no problems"
    lines = [f"{num_files} files, {num_files - affected} good, {affected} with problems:"]
    for kind, words in KINDS.items():
        of_kind = [f"{p.path}: {p.detail}" for p in problems if p.kind == kind]
        if of_kind:
            lines += [f"  {kind}: {len(of_kind)} ({words})", *first_lines(of_kind)]
    return "\n".join(lines)


def first_lines(texts: Sequence[str]) -> list[str]:
    """The first five of many texts, for the terminal, and how many more there are."""
    lines = [f"    {printable_utf8(text)}" for text in texts[:5]]
    return [*lines, f"    ... and {len(texts) - 5} more"] if len(texts) > 5 else lines
