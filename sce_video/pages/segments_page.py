"""The page of predicted segments: a player for each video, a time line with a lane per class."""

from __future__ import annotations

import json
import math
import os
import urllib.parse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sce_video.datasets.clip_sampling import Windows, format_duration, format_moment
from sce_video.datasets.segments import Segment, write_segment_file
from sce_video.datasets.sources import is_elsewhere
from sce_video.inference.class_timeline import ClassTimeline
from sce_video.utils.command import printable_values
from sce_video.utils.files import atomic_file, write_text
from sce_video.utils.html_template import render_template

#: Number of columns in a score curve. For a longer video, each is the largest score of a stretch.
_COLUMNS = 1500
#: Maximum number of classes whose curves are drawn.
_LANES = 40
_COLOURS = 8  # number of colours in theme.css
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)  # seconds


def score_columns(edges: np.ndarray, scores: np.ndarray, columns: int = _COLUMNS) -> np.ndarray:
    """Return the largest score in each of at most ``columns`` equal stretches, (n,) float64.

    ``edges`` (C + 1,) are the bounds in seconds of cells with ``scores`` (C,).
    """
    count = min(columns, max(1, math.ceil(edges[-1] / float(np.diff(edges).min()))))
    borders = np.linspace(0.0, edges[-1], count + 1)
    # The cell that holds the beginning of a column, up to the one that holds its end.
    first = np.clip(np.searchsorted(edges, borders[:-1], side="right") - 1, 0, len(scores) - 1)
    last = np.clip(np.searchsorted(edges, borders[1:], side="left") - 1, first, None)
    found = np.maximum.reduceat(np.append(scores, 0.0), np.stack([first, last + 1], 1).ravel())
    return found[::2]


def video_lanes(
    name: str,
    file: str,
    edges: np.ndarray,
    lanes: Sequence[tuple[str, np.ndarray, Sequence[Segment]]],
) -> dict[str, Any]:
    """Return JSON values for what the page shows of a video.

    Args:
        name: Name that is displayed.
        file: Path of the video.
        edges: (C + 1,) bounds of the cells in seconds.
        lanes: Name, scores (C,) and segments of each class that has segments.
    """
    duration = float(edges[-1])
    step = next((tick for tick in _TICKS if duration / tick <= 8), _TICKS[-1])
    shown = []
    for number, (label, scores, segments) in enumerate(lanes[:_LANES]):
        columns = score_columns(edges, scores)
        curve = " ".join(f"{i},{1 - v:.3f} {i + 1},{1 - v:.3f}" for i, v in enumerate(columns))
        marks = [
            {
                "start": s.start,
                "left": 100 * s.start / duration,
                "width": 100 * (s.end - s.start) / duration,
                "title": f"{label}, {format_moment(s.start, s.end)}, score {s.score or 0:.2f}",
            }
            for s in segments
        ]
        shown.append(
            {
                "label": label,
                "colour": number % _COLOURS,
                "columns": len(columns),
                "curve": f"0,1 {curve} {len(columns)},1",
                "marks": marks,
            }
        )
    return {
        "name": name,
        "file": "" if is_elsewhere(file) else os.path.abspath(file),
        "duration": duration,
        "length": format_duration(duration),
        "lanes": shown,
        "left_out": len(lanes) - len(shown),
        "count": sum(len(segments) for *_, segments in lanes),
        "ticks": [
            {"left": 100 * at / duration, "text": format_duration(at) if at else "0"}
            for at in range(0, max(1, math.ceil(duration - step / 3)), step)
        ],
    }


def write_segments_page(
    path: str | os.PathLike, videos: Sequence[dict[str, Any]], note: str
) -> None:
    """Write the page of videos from :func:`video_lanes`; it loads only the files that it plays."""
    folder = Path(path).resolve().parent
    shown = []
    for video in videos:
        link = ""
        if video["file"]:
            relative = os.path.relpath(video["file"], folder)
            link = "./" + urllib.parse.quote(os.fsencode(relative))
        shown.append({**video, "link": link})
    values = {"videos": shown, "note": note}
    write_text(Path(path), render_template("sce_video.pages", "segments.html", values))


class SegmentReport:
    """Writer of segments as videos are processed: CSV, JSON, page. It is used as a context.

    The files appear at the end, even after Ctrl-C, with the videos so far.

    Args:
        csv_file: File with the columns ``path,start,end,label,score``. None writes no such file.
        json_file: File with windows, scores of all classes and segments. None writes no such file.
        page: HTML file. None writes no such file.
        classes: Names of the outputs.
        windows: Windows to describe in the note on the page and in the JSON file.
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
        self._shown: list[dict[str, Any]] = []
        self.videos = 0

    @property
    def segments(self) -> int:
        """Return the number of segments so far."""
        return len(self._all)

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """Return file, start and end of each segment."""
        return [(s.path, s.start, s.end) for s in self._all]

    def __enter__(self) -> SegmentReport:
        if self._json_file is not None:
            unfinished = self._stack.enter_context(atomic_file(self._json_file))
            self._json = self._stack.enter_context(open(unfinished, "w", encoding="utf-8"))
            head = {"windows": self._windows.to_dict(), "classes": list(self._classes)}
            self._json.write(json.dumps(printable_values(head))[:-1] + ', "videos": [')
        return self

    def add(self, path: str, timeline: ClassTimeline, segments: Sequence[Segment]) -> None:
        """Add a video."""
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
            self._shown.append(video_lanes(path, path, timeline.edges, lanes))
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
            write_segments_page(self._page, self._shown, str(self._windows))
