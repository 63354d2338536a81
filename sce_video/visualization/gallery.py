"""A gallery of search results: frames of the query and of every result, as HTML or as a picture."""

from __future__ import annotations

import base64
import html
import os
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from matplotlib.figure import Figure

from sce_video.datasets import FrameCountError, VideoDecodeError, open_reader
from sce_video.datasets.clip_sampling import segment_positions
from sce_video.utils.atomic_file import write_text

_FRAMES = 4
_FRAME_HEIGHT, _FRAME_WIDTH = 150, 300  # most pixels of a frame
_JPEG_QUALITY = 80
_READ_SECONDS = 30.0

# Of the picture, inches.
_WIDTH, _MARGIN, _ROW, _TEXT, _HEAD = 11.0, 0.25, 1.25, 3.6, 0.75
_PAPER = "#f7f7f5"


@dataclass(frozen=True)
class GalleryEntry:
    """One video of a gallery.

    Attributes:
        name: As shown.
        file: Where it lies.
        frames: Small frames (h, w, 3) uint8 from all over the video; empty if it cannot be read.
        duration: Seconds; None if it cannot be read.
        problem: Why it cannot be read; empty if it can.
        rank: From 1; None for the query.
        similarity: Cosine with the query; None for the query.
    """

    name: str
    file: str
    frames: list[np.ndarray] = field(default_factory=list)
    duration: float | None = None
    problem: str = ""
    rank: int | None = None
    similarity: float | None = None


def read_entry(
    name: str,
    file: str | os.PathLike,
    rank: int | None = None,
    similarity: float | None = None,
    num_frames: int = _FRAMES,
) -> GalleryEntry:
    """Read the frames of a video; a missing or broken file gives an entry that says so."""
    file = os.fspath(file)
    try:
        if not os.path.exists(file):
            raise VideoDecodeError(file, "the file is missing")
        frames, duration = sample_frames(file, num_frames)
    except VideoDecodeError as error:
        return GalleryEntry(name, file, problem=error.reason, rank=rank, similarity=similarity)
    return GalleryEntry(name, file, frames, duration, "", rank, similarity)


def sample_frames(
    file: str | os.PathLike, num_frames: int = _FRAMES
) -> tuple[list[np.ndarray], float]:
    """Small frames from the middles of equal parts of a video, and its duration in seconds.

    Raises:
        VideoDecodeError: the file cannot be read.
    """
    path, deadline = os.fspath(file), time.monotonic() + _READ_SECONDS
    correction = None
    for _ in range(2):
        with open_reader(path, correction=correction, deadline=deadline) as reader:
            positions = segment_positions(len(reader.timestamps), num_frames)
            indices, places = np.unique(positions, return_inverse=True)
            try:
                frames = reader.read(indices)
            except FrameCountError as error:  # fewer frames than the header says
                correction = error.correction
                continue
            return [_small(frames[i]) for i in places], reader.duration
    raise VideoDecodeError(path, "its frames cannot be counted")


def _small(frame: np.ndarray) -> np.ndarray:
    """At most ``_FRAME_HEIGHT`` x ``_FRAME_WIDTH``, in its proportions."""
    height, width = frame.shape[:2]
    scale = min(_FRAME_HEIGHT / height, _FRAME_WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def write_gallery(
    path: str | os.PathLike,
    query: GalleryEntry,
    results: Sequence[GalleryEntry],
    note: str = "",
) -> None:
    """Write a gallery as one HTML file that needs no other: the pictures are inside.

    Names link to the files, relative to the gallery. Nothing from outside is loaded, nothing runs.

    Args:
        path: The file; replaced whole or not at all.
        query: What was searched for.
        results: In the order of their rank.
        note: A line about the search.
    """
    place = Path(path)
    title = html.escape(f"Videos like {os.path.basename(_printable(query.name))}")
    cards = "\n".join(_card(entry, place) for entry in results)
    page = _PAGE.format(
        style=_STYLE,
        title=title,
        note=html.escape(_printable(note)),
        query=_card(query, place),
        count=len(results),
        results=cards or "<p>There is no other video in the index.</p>",
    )
    write_text(place, page)


def _card(entry: GalleryEntry, place: Path) -> str:
    """One video: a line of facts above its frames."""
    name = html.escape(_printable(entry.name))
    facts = []
    if entry.rank is not None:
        facts.append(f'<span class="rank">{entry.rank}</span>')
    if entry.problem:
        facts.append(f'<span class="name">{name}</span>')
    else:
        facts.append(f'<a class="name" href="{_link(entry.file, place)}">{name}</a>')
    if entry.similarity is not None:
        facts.append(
            f'<span class="fact">distance <b>{1 - entry.similarity:.4f}</b></span>'
            f'<span class="fact">similarity <b>{entry.similarity:.4f}</b></span>'
        )
    if entry.duration is not None:
        facts.append(f'<span class="fact">{format_duration(entry.duration)}</span>')
    body = "".join(
        f'<img alt="frame {i} of {len(entry.frames)}" src="{_data_uri(frame)}">'
        for i, frame in enumerate(entry.frames, start=1)
    )
    if entry.problem:
        body = f'<p class="problem">{html.escape(_printable(entry.problem))}</p>'
    kind = "card query" if entry.rank is None else "card"
    return (
        f'<article class="{kind}"><div class="facts">{"".join(facts)}</div>'
        f'<div class="frames">{body}</div></article>'
    )


def _data_uri(frame: np.ndarray) -> str:
    good, data = cv2.imencode(
        ".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    )
    assert good
    return "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode("ascii")


def _link(file: str, place: Path) -> str:
    """The file relative to the gallery, as a URL; whatever bytes its name has."""
    relative = os.path.relpath(os.path.abspath(file), place.resolve().parent)
    return "./" + urllib.parse.quote(os.fsencode(relative))


def format_duration(seconds: float) -> str:
    """4.25 as 4.2 s, 75 as 1:15."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _printable(text: str) -> str:
    """A file name need not be text: what is not becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def draw_gallery(query: GalleryEntry, results: Sequence[GalleryEntry], note: str = "") -> Figure:
    """The same gallery as a picture; save it with ``figure.savefig(path)``.

    Args:
        query: What was searched for.
        results: In the order of their rank.
        note: A line about the search.
    """
    height = 2 * _MARGIN + _HEAD + _ROW * (1 + len(results))
    figure = Figure(figsize=(_WIDTH, height), dpi=100, facecolor=_PAPER)
    _text(figure, _MARGIN, _MARGIN, f"Videos like {_printable(query.name)}", 13, "bold", "#111111")
    _text(figure, _MARGIN, _MARGIN + 0.28, _printable(note), 8.5, "normal", "#666666")
    top = _MARGIN + _HEAD
    for entry in (query, *results):
        _draw_row(figure, entry, top)
        top += _ROW
    return figure


def _draw_row(figure: Figure, entry: GalleryEntry, top: float) -> None:
    """Text on the left, frames to its right."""
    width, height = figure.get_size_inches()
    heading = "query" if entry.rank is None else f"{entry.rank}"
    lines = [_shortened(_printable(entry.name))]
    if entry.similarity is not None:
        lines.append(f"distance {1 - entry.similarity:.4f}   similarity {entry.similarity:.4f}")
    if entry.duration is not None:
        lines.append(format_duration(entry.duration))
    _text(figure, _MARGIN, top, heading, 11, "bold", "#111111")
    _text(figure, _MARGIN, top + 0.26, "\n".join(lines), 8.5, "normal", "#333333")
    left, tall = _MARGIN + _TEXT, _ROW - 0.12
    if entry.problem:
        _text(figure, left, top + 0.3, _printable(entry.problem), 9, "normal", "#b00020")
    room = (width - left - _MARGIN) / max(1, len(entry.frames))
    for frame in entry.frames:
        scale = min(tall / frame.shape[0], (room - 0.06) / frame.shape[1])
        wide, high = frame.shape[1] * scale, frame.shape[0] * scale
        box = (left / width, 1 - (top + high) / height, wide / width, high / height)
        axes = figure.add_axes(box)
        axes.imshow(frame, aspect="auto", interpolation="bilinear")
        axes.set_axis_off()
        left += room


def _shortened(name: str, letters: int = 46) -> str:
    """The end of a long name tells more than its beginning."""
    return name if len(name) <= letters else "…" + name[1 - letters :]


def _text(
    figure: Figure, left: float, top: float, text: str, size: float, weight: str, color: str
) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        left / width,
        1 - top / height,
        text.replace("$", r"\$"),
        fontsize=size,
        weight=weight,
        color=color,
        va="top",
    )


_STYLE = """
:root { color-scheme: light dark; --paper: #f7f7f5; --card: #fff; --ink: #1c1c1a; --soft: #6b6b66;
  --line: #e2e2dd; --accent: #1f5fbf; --bad: #b00020; }
@media (prefers-color-scheme: dark) { :root { --paper: #161614; --card: #21211f; --ink: #ecece8;
  --soft: #a0a09a; --line: #34342f; --accent: #8ab8ff; --bad: #ff8a9a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1320px; padding: 24px 20px 48px; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 28px 0 10px; }
.note { color: var(--soft); margin: 0 0 16px; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; margin: 0 0 12px; }
.query { border: 2px solid var(--accent); }
.facts { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; margin-bottom: 8px; }
.rank { font-weight: 700; min-width: 1.6em; font-size: 17px; }
.name { flex: 1 1 240px; overflow-wrap: anywhere; color: var(--accent); text-decoration: none; }
a.name:hover { text-decoration: underline; }
.fact { color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap; }
.fact b { color: var(--ink); font-weight: 600; }
.frames { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 6px; }
.frames img { max-height: 150px; max-width: calc(25% - 5px); border-radius: 4px; }
@media (max-width: 640px) { .frames img { max-width: calc(50% - 3px); } }
.problem { color: var(--bad); margin: 4px 0; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="note">{note}</p>
{query}
<h2>{count} most similar</h2>
{results}
</body>
</html>
"""
