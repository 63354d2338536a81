"""Output of predicted segments: a CSV file, a JSON file, and a page with a player per video."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from sce_video.datasets.clip_sampling import Windows, format_duration, format_moment
from sce_video.datasets.segments import Segment, write_segment_file
from sce_video.inference.class_timeline import ClassTimeline
from sce_video.pages.gallery import file_link
from sce_video.utils.command import printable_values
from sce_video.utils.files import atomic_file, write_text
from sce_video.utils.html_template import render_template

#: Maximum number of columns in a score curve. Each column shows the maximum over a stretch of time.
_COLUMNS = 1500
#: Maximum number of classes whose curves are drawn.
_LANES = 40
#: Number of colours defined in theme.css.
_COLOURS = 8
#: Possible distances in seconds between the ticks of the time axis.
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)


def score_columns(edges: np.ndarray, scores: np.ndarray, columns: int = _COLUMNS) -> np.ndarray:
    """Return the largest score (n,) float64 in each of at most ``columns`` equal stretches.

    Args:
        edges: (C + 1,) bounds of the cells in seconds.
        scores: (C,) scores of the cells.
        columns: Largest number of stretches.
    """
    count = min(columns, max(1, math.ceil(edges[-1] / float(np.diff(edges).min()))))
    borders = np.linspace(0.0, edges[-1], count + 1)
    # Find the first and last cell that each column covers.
    first = np.clip(np.searchsorted(edges, borders[:-1], side="right") - 1, 0, len(scores) - 1)
    last = np.clip(np.searchsorted(edges, borders[1:], side="left") - 1, first, None)
    found = np.maximum.reduceat(np.append(scores, 0.0), np.stack([first, last + 1], 1).ravel())
    return found[::2]


class Lane(NamedTuple):
    """Lane of a class on the time line of a video."""

    label: str
    colour: int  # number of its colour in theme.css
    columns: int  # number of columns in the curve
    curve: str  # the curve's points for an SVG polygon
    # Of each segment: start in seconds, place and width in percent of the duration, and title.
    marks: list[tuple[float, float, float, str]]


class VideoLanes(NamedTuple):
    """Everything that the page shows about a video."""

    name: str
    link: str  # URL of the file; empty if a browser cannot open it
    duration: float  # in seconds
    length: str  # duration as text
    lanes: list[Lane]
    left_out: int  # number of further classes that have segments
    segments: int  # number of segments
    ticks: list[tuple[float, str]]  # place of each tick in percent, and its time as text


def video_lanes(
    name: str, link: str, edges: np.ndarray, lanes: Sequence[tuple[str, np.ndarray, list[Segment]]]
) -> VideoLanes:
    """Lay out the lanes of a video.

    Args:
        name: Displayed name of the video.
        link: URL of the file; empty if a browser cannot open it.
        edges: (C + 1,) bounds of the cells in seconds.
        lanes: Name, scores (C,) and segments of each class that has segments.
    """
    duration = float(edges[-1])
    step = next((tick for tick in _TICKS if duration / tick <= 8), _TICKS[-1])
    shown = []
    for number, (label, scores, segments) in enumerate(lanes[:_LANES]):
        columns = score_columns(edges, scores)
        curve = " ".join(f"{i},{1 - v:.3f} {i + 1},{1 - v:.3f}" for i, v in enumerate(columns))
        marks = []
        for s in segments:
            title = f"{label}, {format_moment(s.start, s.end)}, score {s.score or 0:.2f}"
            width = 100 * (s.end - s.start) / duration
            marks.append((s.start, 100 * s.start / duration, width, title))
        polygon = f"0,1 {curve} {len(columns)},1"
        shown.append(Lane(label, number % _COLOURS, len(columns), polygon, marks))
    times = range(0, max(1, math.ceil(duration - step / 3)), step)
    return VideoLanes(
        name=name,
        link=link,
        duration=duration,
        length=format_duration(duration),
        lanes=shown,
        left_out=len(lanes) - len(shown),
        segments=sum(len(segments) for *_, segments in lanes),
        ticks=[(100 * at / duration, format_duration(at) if at else "0") for at in times],
    )


class SegmentReport:
    """Context that collects the segments of videos and writes the requested files.

    The files appear when the block ends, after Ctrl-C with the videos up to then.

    Args:
        csv_file: File with the columns ``path,start,end,label,score``; None for no CSV file.
        json_file: File with windows, scores of all classes and segments; None for no JSON file.
        page: HTML file; None for no page.
        classes: Names of the network's outputs.
        windows: Windows, which the page and the JSON file describe.

    Attributes:
        videos: Number of videos so far.
    """

    def __init__(
        self,
        csv_file: str | None,
        json_file: str | None,
        page: str | None,
        classes: Sequence[str],
        windows: Windows,
    ) -> None:
        self._classes, self._windows, self._page = classes, windows, page
        self._csv_file, self._json_file = csv_file, json_file
        self._stack = ExitStack()
        self._json: TextIO | None = None
        self._all: list[Segment] = []
        self._shown: list[VideoLanes] = []
        self.videos = 0

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """File, start and end of each segment."""
        return [(s.path, s.start, s.end) for s in self._all]

    def __enter__(self) -> SegmentReport:
        if self._json_file is not None:
            unfinished = self._stack.enter_context(atomic_file(self._json_file))
            self._json = self._stack.enter_context(open(unfinished, "w", encoding="utf-8"))
            head = {"windows": self._windows.to_dict(), "classes": list(self._classes)}
            self._json.write(json.dumps(printable_values(head))[:-1] + ', "videos": [')
        return self

    def add(self, path: str, timeline: ClassTimeline, segments: Sequence[Segment]) -> None:
        """Add the segments of a video."""
        self._all += segments
        if self._json is not None:
            found = timeline.found
            video = {
                "path": path,
                "starts": np.round(found.starts, 3).tolist(),
                "ends": np.round(found.ends, 3).tolist(),
                "scores": np.round(found.values.astype(np.float64), 4).tolist(),
                "segments": [
                    {name: getattr(s, name) for name in ("start", "end", "label", "score")}
                    for s in segments
                ],
                "problem": found.reason,
            }
            self._json.write((", " if self.videos else "") + json.dumps(printable_values(video)))
        if self._page is not None:
            own = {name: [s for s in segments if s.label == name] for name in self._classes}
            lanes = [
                (name, timeline.scores(i), own[name])
                for i, name in enumerate(self._classes)
                if own[name]
            ]
            link = file_link(path, self._page)
            self._shown.append(video_lanes(path, link, timeline.edges, lanes))
        self.videos += 1

    def __exit__(self, *error: Any) -> None:
        if self._json is not None:
            self._json.write("]}\n")
        self._stack.__exit__(*error)
        if error[0] is not None:
            return
        if self._csv_file is not None:
            write_segment_file(self._csv_file, self._all)
        if self._page is not None:
            values = {"videos": self._shown, "note": str(self._windows)}
            html = render_template("sce_video.pages", "segments.html", values)
            write_text(Path(self._page), html)
