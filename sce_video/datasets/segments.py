"""Segments of videos: paths with a start and an end, and CSV files of labelled segments.

A segment such as ``a.mp4@12.5-17`` is accepted like the path of a video. It contains the frames
that begin in ``[12.5, 17)`` seconds. This module does not need torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sce_video.datasets.clip_sampling import check_span
from sce_video.datasets.sources import is_elsewhere, open_video, video_exists
from sce_video.datasets.text_tables import read_csv_lines, write_csv
from sce_video.utils.seconds import parse_seconds

#: Columns of a file of segments. Predictions also have a ``score``. All other columns are ignored.
COLUMNS = ("path", "start", "end", "label")
#: Number of seconds by which a segment may exceed the stated duration, which may be rounded.
TOLERANCE = 0.5


@dataclass(frozen=True)
class Segment:
    """A labelled segment ``[start, end)`` of a video, in seconds. Predictions have a ``score``.

    ``path`` is relative to the root of the videos.
    """

    path: str
    start: float
    end: float
    label: str
    score: float | None = None


def format_seconds(seconds: float) -> str:
    """Format seconds with up to six decimals, such as 12.5 or 17."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def segment_path(path: str, start: float, end: float) -> str:
    """Return ``a.mp4@12.5-17`` for a path and its seconds."""
    return f"{path}@{format_seconds(start)}-{format_seconds(end)}"


def segment_of_row(where: str, start: str, end: str) -> tuple[float, float]:
    """Parse the start and end of a segment. A ValueError begins with ``where``."""
    times = []
    for name, text in (("start", start), ("end", end)):
        try:
            times.append(parse_seconds(text))
        except ValueError as error:
            raise ValueError(f"{where}: {name} is {error}") from None
    check_span(f"{where}: the segment", *times)
    return times[0], times[1]


def check_segment_files(rows: Iterable[tuple[str, str, float]]) -> None:
    """Raise ValueError if the video of a segment does not exist or is too short.

    Args:
        rows: For each segment, its place in a list (file and line), its video, and its end in
            seconds.
    """
    durations: dict[str, float | None] = {}
    for where, file, end in rows:
        if file not in durations:
            if not video_exists(file):
                raise ValueError(f"{where}: there is no video {file!r}")
            durations[file] = stated_duration(file)
        duration = durations[file]
        if duration is not None and end > duration + TOLERANCE:
            duration = durations[file] = stated_duration(file, end - TOLERANCE)
        if duration is not None and end > duration + TOLERANCE:
            raise ValueError(
                f"{where}: the segment ends at {format_seconds(end)} s, but {file} ends at "
                f"{duration:.2f} s"
            )


def stated_duration(file: str, least: float = 0.0) -> float | None:
    """Return the duration of a video that its header states, in seconds.

    Args:
        file: Path of the video.
        least: Duration in seconds. If the header states less, the timestamps of the frames are
            used, because FFmpeg computes a wrong duration for a file whose clock restarts.

    Returns:
        Duration in seconds; None if none is stated or the video cannot be opened.
    """
    from sce_video.datasets.readers.av_file import (
        best_video_stream,
        open_container,
        stated_seconds,
    )
    from sce_video.datasets.readers.base import VideoDecodeError

    try:
        if is_elsewhere(file):
            with open_video(file) as reader:
                return reader.duration
        with open_container(file) as container:
            stated = stated_seconds(container, best_video_stream(file, container))
        if stated is None or stated >= least:
            return stated
        with open_video(file) as reader:
            return reader.duration
    except (OSError, VideoDecodeError):  # bad files are reported when they are read
        return None


def read_segments(source: str) -> list[Segment]:
    """Read the labelled segments of a CSV file with the columns path, start, end and label.

    Times are parsed by :func:`~sce_video.utils.seconds.parse_seconds`. ValueError, with file and
    line, is raised for an invalid row. It is not checked whether the videos exist.
    """
    return [segment for _, segment in numbered_segments(source)]


def numbered_segments(source: str) -> Iterator[tuple[int, Segment]]:
    """Yield line number and segment of each row, as :func:`read_segments` reads it."""
    lines = list(read_csv_lines(source))
    header = [name.lower() for name in lines[0][1]] if lines else []
    if any(name not in header for name in COLUMNS):
        raise ValueError(
            f"{source} must begin with the columns {','.join(COLUMNS)}, but begins with "
            f"{','.join(header)!r:.100}"
        )
    columns = [header.index(name) for name in COLUMNS]
    for number, row in lines[1:]:
        where = f"{source}, line {number}"
        path, start, end, label = (row[i] if i < len(row) else "" for i in columns)
        if not path or not label:
            raise ValueError(f"{where}: there is no {'label' if path else 'path'}")
        times = segment_of_row(where, start, end)
        score = row[header.index("score")] if "score" in header[: len(row)] else ""
        try:
            value = float(score) if score else None
        except ValueError:
            raise ValueError(f"{where}: {score!r:.40} is not a score") from None
        yield number, Segment(path, *times, label, value)


def write_segment_file(file: str | Path, segments: Iterable[Segment]) -> None:
    """Write a file for :func:`read_segments`, with a column ``score`` if there are any scores."""
    segments = list(segments)
    scored = any(s.score is not None for s in segments)
    rows: list[list[str]] = [[*COLUMNS, *(("score",) * scored)]]
    for s in segments:
        rows.append([s.path, format_seconds(s.start), format_seconds(s.end), s.label])
        rows[-1] += [] if not scored else ["" if s.score is None else f"{s.score:.6f}"]
    write_csv(file, rows)
