"""Decoding every file of a data set completely, and saying which ones are not sound."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import av
import av.logging
import numpy as np

from sce_video.data_tools.process_pool import GuardedPool, Outcome
from sce_video.datasets.errors import FrameCountError, VideoDecodeError, VideoTimeoutError
from sce_video.datasets.readers import AvReader, VideoReader
from sce_video.datasets.readers.base import check_deadline, check_regular_file
from sce_video.datasets.video_list import VideoList, read_annotation_list, scan_folder
from sce_video.utils.atomic_file import write_text

#: What can be wrong, with the words of a summary.
KINDS = {
    "missing": "not there",
    "bad": "cannot be opened, break off, or take too long",
    "short": "too short",
    "container": "another container than their ending says",
    "header": "header disagrees with what decodes",
    "duplicate": "listed more than once",
    "label": "label missing or out of range",
}

#: Endings and the names FFmpeg gives the containers that belong to them.
CONTAINERS: dict[str, frozenset[str]] = {
    ending: frozenset(names.split())
    for endings, names in (
        (".mp4 .m4v .mov .3gp .3g2 .m4a", "mov mp4"),
        (".mkv .webm", "matroska webm"),
        (".avi", "avi"),
        (".wmv .asf", "asf"),
        (".flv", "flv live_flv"),
        (".gif", "gif"),
        (".mpg .mpeg", "mpeg mpegvideo mpegts"),
        (".ts .mts .m2ts", "mpegts"),
        (".ogv .ogg", "ogg"),
    )
    for ending in endings.split()
}
#: A .webm file holds these; with anything else in it, it is a Matroska file.
_WEBM_CODECS = frozenset({"vp8", "vp9", "av1", "libdav1d", "libvpx", "libvpx-vp9", "libaom-av1"})

_JOURNAL = {"journal": "sce_video verification", "version": 1}
# How far a header may be off before it is reported: rounding of durations, a frame or two that the
# writer counted and never wrote.
_SHARE, _FRAMES, _SECONDS = 0.1, 2, 0.5
_FIRST_LOOK = 20  # entries of a list that are looked for on the disk


@dataclass(frozen=True)
class Limits:
    """What a video must have at least.

    Attributes:
        min_frames: Frames; 8 give the smallest networks of the recipes different pictures.
        min_duration: Seconds; 0.25 lets 8 frames at 30 per second (0.27 s) pass.
    """

    min_frames: int = 8
    min_duration: float = 0.25


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one entry.

    Attributes:
        kind: A key of :data:`KINDS`.
        path: As it stands in the list.
        line: Line of the list from 1, or None for a folder.
        detail: What is wrong, in words.
        facts: What :func:`examine_file` found; empty where the file was not opened.
    """

    kind: str
    path: str
    line: int | None
    detail: str
    facts: dict[str, Any]


# -- one file ------------------------------------------------------------------------------


def examine_file(request: tuple[str, float]) -> dict[str, Any]:
    """Decode a file from its first to its last frame; nothing is converted or kept.

    Args:
        request: Path, and seconds it may take.

    Returns:
        Plain facts. ``outcome``: ``decoded`` (some frames at least), ``unreadable`` or
        ``timeout``; ``error``: why, or None. With ``decoded``: ``frames`` that can be used, that
        is without those after a damaged packet up to the next key frame (see :class:`AvReader`),
        ``seconds`` they last, ``packets`` (frames the file should have), ``refused`` packets,
        ``damaged`` frames that the decoder patched up, ``header_frames`` and ``header_seconds``
        (None where the container states none), ``header_of_file`` (the seconds are those of the
        whole file, sound included), ``container``, ``codec``, ``height``, ``width``.
    """
    path, seconds = request
    av.logging.set_libav_level(av.logging.FATAL)
    deadline = time.monotonic() + seconds
    try:
        check_regular_file(path)
        with AvReader(path, deadline=deadline) as reader:
            facts = _decode_all(path, deadline)
            facts["packets"] = len(reader.timestamps)
            facts["seconds"] = reader.duration
            if facts["frames"] != facts["packets"] or facts["refused"]:
                facts.update(_usable(reader))
    except VideoTimeoutError:
        return {"outcome": "timeout", "error": f"not done after {seconds:g} s"}
    except VideoDecodeError as error:
        return {"outcome": "unreadable", "error": error.reason}
    return {"outcome": "decoded", "error": None, **facts}


def _decode_all(path: str, deadline: float) -> dict[str, Any]:
    frames = refused = damaged = 0
    with av.open(path, metadata_errors="ignore") as container:
        stream = container.streams.best("video")
        facts = _header(container, stream)
        stream.codec_context.thread_count = 1  # the processes fill the cores
        for packet in _packets(container, stream):
            check_deadline(path, deadline)
            try:
                pictures = packet.decode()
            except (av.FFmpegError, OSError):
                refused += 1
                continue
            frames += len(pictures)
            damaged += sum(picture.is_corrupt for picture in pictures)
    if frames == 0:
        raise VideoDecodeError(path, "no frame can be decoded")
    return {**facts, "frames": frames, "refused": refused, "damaged": damaged}


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    packets = container.demux(stream)
    try:
        yield from packets
    except (av.FFmpegError, OSError, IndexError):
        return  # cut short: the counts will tell
    finally:
        packets.close()  # see AvFile.packets


def _header(container: Any, stream: Any) -> dict[str, Any]:
    """What the container says of its video."""
    seconds: float | None = None
    atomic_file = False
    if stream.duration and stream.time_base:
        seconds = float(stream.duration * stream.time_base)
    elif (tagged := _clock(stream.metadata.get("DURATION", ""))) is not None:
        seconds = tagged
    elif container.duration:
        seconds, atomic_file = container.duration / 1e6, len(container.streams) > 1
    return {
        "container": container.format.name,
        "codec": stream.codec_context.name,
        "height": stream.codec_context.height,
        "width": stream.codec_context.width,
        "header_frames": stream.frames or None,
        "header_seconds": seconds,
        "header_of_file": atomic_file,
    }


def _clock(text: str) -> float | None:
    """``00:00:10.333`` of a Matroska tag, in seconds."""
    parts = text.split(":")
    try:
        hours, minutes, seconds = (float(part) for part in parts)
    except ValueError:
        return None
    return 3600 * hours + 60 * minutes + seconds


def _usable(reader: VideoReader) -> dict[str, Any]:
    """Frames and seconds that the package's reader gives of a file that is not whole."""
    last = len(reader.timestamps) - 1
    try:
        reader.read(np.array([last]))
    except FrameCountError as error:
        left = reader.duration - float(reader.timestamps[-1])
        return {
            "frames": len(error.timestamps),
            "seconds": float(error.timestamps[-1]) + left,
        }
    return {}


# -- judging -------------------------------------------------------------------------------


def find_problems(
    videos: VideoList,
    facts: dict[str, dict[str, Any]],
    *,
    limits: Limits | None = None,
    lines: Sequence[int] | None = None,
    num_classes: int | None = None,
) -> list[Problem]:
    """Everything that is wrong, in the order of the list.

    Args:
        videos: The list.
        facts: What was found of every path, see :func:`verify_videos`.
        limits: What a video must have; None for the defaults.
        lines: (N,) line of every entry in its file.
        num_classes: Labels lie in ``[0, num_classes)``; None does not look at labels.
    """
    limits = limits or Limits()
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index in range(len(videos)):
        path, line = videos.path(index), None if lines is None else lines[index]
        found = []
        earlier = first.setdefault(os.path.normpath(path), index)
        if earlier != index:
            found.append(("duplicate", _describe_duplicate(videos, earlier, index, lines)))
        else:
            found.extend(file_problems(path, facts[path], limits))
        label = int(videos.labels[index])
        if num_classes is not None and not 0 <= label < num_classes:
            what = "has no label" if label < 0 else f"label {label} is out of range"
            found.append(("label", f"{what}: labels are 0 to {num_classes - 1}"))
        known = {} if earlier != index else facts[path]
        problems.extend(Problem(kind, path, line, detail, known) for kind, detail in found)
    return problems


def _describe_duplicate(
    videos: VideoList, earlier: int, index: int, lines: Sequence[int] | None
) -> str:
    where = f"line {lines[earlier]}" if lines is not None else f"entry {earlier + 1}"
    labels = int(videos.labels[earlier]), int(videos.labels[index])
    if labels[0] != labels[1]:
        return f"the file of {where}, there with label {labels[0]}, here with {labels[1]}"
    return f"the file of {where} once more"


def file_problems(path: str, facts: dict[str, Any], limits: Limits) -> list[tuple[str, str]]:
    """(kind, detail) of all that is wrong with a file.

    Args:
        path: Its name, for the ending.
        facts: From :func:`examine_file`, or ``outcome`` ``missing`` or ``crash``.
        limits: What it must have.
    """
    if facts["outcome"] == "missing":
        return [("missing", "there is no such file")]
    if facts["outcome"] != "decoded":
        return [("bad", facts["error"])]
    found = []
    broken = _breaks_off(facts)
    if broken:
        found.append(("bad", broken))
    if facts["frames"] < limits.min_frames:
        frames = f"{facts['frames']} frame{'s' if facts['frames'] != 1 else ''}"
        found.append(("short", f"{frames}, wanted are {limits.min_frames}"))
    elif facts["seconds"] < limits.min_duration:
        found.append(("short", f"{facts['seconds']:.3f} s, wanted are {limits.min_duration:g} s"))
    mislabelled = _wrong_container(path, facts)
    if mislabelled:
        found.append(("container", mislabelled))
    header = _wrong_header(facts) if not broken else None
    if header:
        found.append(("header", header))
    return found


def _breaks_off(facts: dict[str, Any]) -> str | None:
    """Why a file does not decode to its end, if it does not."""
    frames, seconds = facts["frames"], facts["seconds"]
    promised = max(facts["packets"], facts["header_frames"] or 0)
    if facts["refused"]:
        packets = f"{facts['refused']} packet{'s' if facts['refused'] != 1 else ''}"
        return f"{packets} cannot be decoded: {frames} of {promised} frames are usable"
    if _less(frames, promised, _FRAMES):
        return f"breaks off: {frames} of {promised} frames decode"
    if facts["damaged"]:
        return f"{facts['damaged']} of {frames} frames are damaged"
    stated = facts["header_seconds"]
    if not facts["header_frames"] and stated is not None and not facts["header_of_file"]:
        if _less(seconds, stated, _SECONDS):
            return f"breaks off: {seconds:.2f} of {stated:.2f} s decode"
    return None


def _wrong_header(facts: dict[str, Any]) -> str | None:
    """How the header disagrees with what was decoded, where it does so strongly."""
    frames, stated = facts["frames"], facts["header_frames"]
    if stated and _less(stated, frames, _FRAMES):
        return f"the header says {stated} frames, {frames} decode"
    seconds, stated = facts["seconds"], facts["header_seconds"]
    if stated and (_less(stated, seconds, _SECONDS) or _less(seconds, stated, _SECONDS)):
        whose = "the file" if facts["header_of_file"] else "the video"
        return f"the header says {whose} lasts {stated:.2f} s, its frames last {seconds:.2f} s"
    return None


def _less(value: float, other: float, tolerance: float) -> bool:
    """Whether a value is smaller by more than can be an accident."""
    return other - value > max(tolerance, _SHARE * other)


def _wrong_container(path: str, facts: dict[str, Any]) -> str | None:
    ending = os.path.splitext(path)[1].lower()
    expected = CONTAINERS.get(ending)
    if expected is None:
        return None
    names = facts["container"].split(",")
    if not expected & set(names):
        return f"ends in {ending}, is {names[0]} ({facts['codec']})"
    if ending == ".webm" and facts["codec"] not in _WEBM_CODECS:
        return f"ends in {ending}, is matroska with {facts['codec']}, which webm cannot hold"
    return None


# -- the whole list ------------------------------------------------------------------------


class Journal:
    """Facts about files, one JSON object a line, appended as they come.

    A last line that was cut off in the middle is dropped, so a killed run loses one file at most.
    Of several lines about a path the last one counts.

    Args:
        path: The file; made if needed.
        restart: Forget what is in it.

    Raises:
        ValueError: The file is something else, cannot be written, or another run holds it.
    """

    def __init__(self, path: str | os.PathLike[str], restart: bool = False) -> None:
        self.path = Path(path)
        self.entries: dict[str, dict[str, Any]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = open(self.path, "a+", encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"cannot write {self.path}: {error.strerror}; choose another place with --out"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"another run is writing {self.path}: wait for it") from None
        except OSError:
            pass  # a file system without locks
        try:
            self._load(restart)
        except ValueError:
            self._file.close()
            raise

    def _load(self, restart: bool) -> None:
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        if text and (not lines or _parse(lines[0]) != _JOURNAL):
            raise ValueError(f"{self.path} is no journal of verify: choose another name with --out")
        if restart or not text:
            self._file.truncate(0)
            self._write(_JOURNAL)
            return
        if whole != text:
            self._file.truncate(len(whole.encode("utf-8")))
        for line in lines[1:]:
            entry = _parse(line)
            if entry is not None and "path" in entry:
                self.entries[entry["path"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry, which has a ``path``, and hand it to the operating system."""
        self.entries[entry["path"]] = entry
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def verify_videos(
    paths: Iterable[str],
    root: str,
    journal: Journal,
    *,
    workers: int = 1,
    timeout: float = 120.0,
    on_progress: Callable[[int, int, int], None] | None = None,
    examine: Callable[[tuple[str, float]], dict[str, Any]] = examine_file,
) -> dict[str, dict[str, Any]]:
    """Decode all files that the journal does not know as they are now.

    A file is known when its size and time of change are the journal's. One on which a process died
    is tried again, and so is one that timed out, if ``timeout`` has grown.

    Args:
        paths: Files; the same path twice is decoded once.
        root: Folder they are relative to.
        journal: What earlier runs found; gets what this one finds.
        workers: Processes.
        timeout: Seconds a file may take.
        on_progress: Called with (files done, files to do, files known before) at the start and
            after each.
        examine: What a process does with (path, seconds); for tests.

    Returns:
        Facts by path as given; see :func:`examine_file`. Also ``outcome`` ``missing`` (not in the
        journal) and ``crash``.
    """
    facts: dict[str, dict[str, Any]] = {}
    todo: list[tuple[str, dict[str, Any]]] = []
    for path in dict.fromkeys(paths):
        state = _state(os.path.join(root, path))
        if state is None:
            facts[path] = {"outcome": "missing", "error": "there is no such file"}
            continue
        known = journal.entries.get(path)
        if known is not None and _still_holds(known, state, timeout):
            facts[path] = known
        else:
            todo.append((path, state))
    tell = on_progress or (lambda done, total, known: None)
    before = len(facts)
    tell(0, len(todo), before)
    if not todo:
        return facts
    states = dict(todo)
    pool = GuardedPool(
        examine,
        workers=min(workers, len(todo)),
        timeout=timeout,
        preload=("sce_video.data_tools.verification",),
    )
    requests = ((path, (os.path.join(root, path), timeout)) for path, _ in todo)
    for done, (path, outcome) in enumerate(pool.run(requests), 1):
        entry = {"path": path, **states[path], "timeout": timeout, **_facts_of(outcome)}
        journal.add(entry)
        facts[path] = entry
        tell(done, len(todo), before)
    return facts


def _state(path: str) -> dict[str, Any] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _still_holds(known: dict[str, Any], state: dict[str, Any], timeout: float) -> bool:
    if any(known.get(name) != value for name, value in state.items()):
        return False
    if known.get("outcome") == "timeout":
        return timeout <= known.get("timeout", 0.0)
    return known.get("outcome") in ("decoded", "unreadable")


def _facts_of(outcome: Outcome) -> dict[str, Any]:
    if outcome.fault is None:
        return outcome.value
    if outcome.fault == "timeout":
        return {"outcome": "timeout", "error": outcome.detail}
    words = {"crash": "the decoder crashed", "error": "examining it failed"}[outcome.fault]
    return {"outcome": "crash", "error": f"{words}: {outcome.detail}"}


# -- lists and tables ----------------------------------------------------------------------


def read_videos(source: str, data_root: str | None) -> tuple[VideoList, str, list[int] | None]:
    """An annotation list or a folder, the folder its paths are relative to, and line numbers.

    Args:
        source: Annotation list, or a folder to search.
        data_root: Folder the paths of a list are relative to. None takes the folder of the list
            or the current one, whichever holds one of the first files.

    Raises:
        ValueError: Nothing to read, or none of the first files of the list is there.
    """
    if os.path.isdir(source):
        if data_root is not None:
            raise ValueError(f"{source} is a folder: --data-root goes with an annotation list")
        return scan_folder(source), source, None
    videos = read_annotation_list(source)
    first = [videos.path(i) for i in range(min(len(videos), _FIRST_LOOK))]
    roots = [os.path.dirname(source) or ".", "."] if data_root is None else [data_root]
    for root in roots:
        if any(os.path.exists(os.path.join(root, path)) for path in first):
            with open(source, encoding="utf-8-sig", errors="surrogateescape") as file:
                lines = [number for number, line in enumerate(file, 1) if line.strip()]
            return videos, root, lines
    raise ValueError(
        f"none of the first {len(first)} videos of {source!r} exist, for example "
        f"{os.path.join(roots[0], first[0])!r}: say with --data-root where they lie"
    )


def write_table(path: str | os.PathLike[str], problems: Sequence[Problem]) -> None:
    """Write a table of problems, as markdown where the name ends in ``.md``, else tab-separated.

    It is replaced in one step; without problems it has its head only.
    """
    path = Path(path)
    head = ["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"]
    rows = [[_cell(text) for text in _row(problem)] for problem in problems]
    if path.suffix == ".md":
        table = [head, ["---"] * len(head), *([_escape(text) for text in row] for row in rows)]
        text = "".join(f"| {' | '.join(row)} |\n" for row in table)
    else:
        text = "".join("\t".join(row) + "\n" for row in [head, *rows])
    write_text(path, text)


def _row(problem: Problem) -> list[Any]:
    facts = problem.facts
    seconds = facts.get("seconds")
    return [
        problem.kind,
        problem.path,
        problem.line,
        problem.detail,
        facts.get("frames"),
        None if seconds is None else f"{seconds:.3f}",
        (facts.get("container") or "").split(",")[0],
        facts.get("codec"),
    ]


def _printable(path: str) -> str:
    """A path that any terminal takes, also where it is no text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def summarize(problems: Sequence[Problem], num_files: int, examples: int = 5) -> str:
    """A few lines for the terminal: how many files have which problem, and the first of each."""
    affected = len({problem.path for problem in problems})
    if not problems:
        return f"{num_files} files, all sound"
    lines = [f"{num_files} files, {num_files - affected} sound, {affected} with problems:"]
    counts = Counter(problem.kind for problem in problems)
    for kind, words in KINDS.items():
        if not counts[kind]:
            continue
        lines.append(f"  {kind}: {counts[kind]} ({words})")
        of_kind = [problem for problem in problems if problem.kind == kind]
        lines.extend(f"    {_printable(p.path)}: {p.detail}" for p in of_kind[:examples])
        if len(of_kind) > examples:
            lines.append(f"    ... and {len(of_kind) - examples} more")
    return "\n".join(lines)
