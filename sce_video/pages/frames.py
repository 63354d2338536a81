"""Frames as images on pages and in figures, and reading of the clips that a page shows."""

from __future__ import annotations

import io
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import cv2
import numpy as np
from PIL import Image

from sce_video.datasets.clip_sampling import format_duration
from sce_video.pages.gallery import (
    GalleryEntry,
    data_uri,
    read_entry,
)
from sce_video.utils.command import Progress, printable_utf8
from sce_video.utils.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Minimum time in seconds for which a strip shows a frame, so that short clips are not too fast.
_FASTEST = 0.06
#: Maximum time in seconds for which a strip shows each frame, so that long clips still move.
_SLOWEST = 0.4
#: Maximum width and height of a clip in a row, in CSS pixels.
_TILE = (132, 110)
#: Possible heights in pixels, image qualities and numbers of frames for such a clip, best first.
_TILE_SIZES = ((120, 65, 16), (96, 60, 12), (84, 50, 10), (64, 45, 8), (48, 40, 6), (48, 40, 1))


@dataclass(frozen=True)
class Strip:
    """Frames of one size, side by side in an image that ``parts.css`` plays."""

    uri: str  # ``data:`` URI of the image; empty if the page has no room for it
    count: int  # number of frames
    width: int  # width of a frame in pixels
    height: int
    seconds: float  # playing time of all frames in seconds

    @property
    def positions(self) -> list[str]:
        """Position of each frame in the image as a CSS background position, 0% to 100%."""
        return [f"{100 * i / max(1, self.count - 1):.4g}%" for i in range(self.count)]

    @property
    def middle(self) -> str:
        """Position of the middle frame."""
        return self.positions[self.count // 2]


class Quality(NamedTuple):
    """Size, image quality and number of the frames in a strip."""

    height: int  # maximum height in pixels
    quality: int  # WebP quality, 0 to 100
    frames: int  # maximum number of frames, at equal steps


T = TypeVar("T")
#: Keyword arguments of matplotlib's ``text``
TextStyle = dict[str, Any]


def equal_steps(count: int, most: int) -> np.ndarray:
    """Return the indices of at most ``most`` of ``count`` items at equal steps, ends included."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(int)


def make_strip(
    frames: Sequence[np.ndarray], seconds: float, quality: Quality, animated: bool = False
) -> Strip:
    """Encode the frames (h, w, 3) uint8 RGB of a clip as a strip.

    Args:
        frames: Frames of one size. They are reduced to the quality, but never enlarged.
        seconds: Duration of the clip. Each frame is shown for 0.06 to 0.4 seconds.
        quality: Size, image quality and number of the frames.
        animated: Whether to create an animated image instead of frames side by side.
    """
    small = [frames[i] for i in equal_steps(len(frames), quality.frames)]
    height, width = small[0].shape[:2]
    scale = min(1.0, quality.height / height, 2 * quality.height / width)
    if scale < 1.0:
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
        small = [cv2.resize(f, (width, height), interpolation=cv2.INTER_AREA) for f in small]
    shown = min(max(seconds / len(small), _FASTEST), _SLOWEST)
    options: dict[str, Any] = {"quality": quality.quality, "method": 4}
    if animated:
        image, *others = (Image.fromarray(np.ascontiguousarray(frame)) for frame in small)
        options |= dict(save_all=True, loop=0, append_images=others, duration=round(1000 * shown))
    else:
        image = Image.fromarray(np.concatenate(small, axis=1))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", **options)
    uri = data_uri("image/webp", encoded.getvalue())
    return Strip(uri, len(small), width, height, round(shown * len(small), 3))


def fitting(
    items: Sequence[T],
    encode: Callable[[T, Quality], Strip],
    levels: Sequence[Quality],
    budget: int,
) -> list[Strip]:
    """Encode all items in the best quality at which all strips together fit the byte budget.

    If even the lowest quality does not fit, the strips of the last items have no image.
    """
    strips: list[Strip] = []
    for quality in levels:
        strips = [encode(item, quality) for item in items]
        if sum(len(strip.uri) for strip in strips) <= budget:
            return strips
    kept, used = [], 0
    for strip in strips:
        used += len(strip.uri)
        kept.append(strip if used <= budget else replace(strip, uri=""))
    return kept


#: Time limit in seconds for each file.
_FILE_SECONDS = 10.0


class ClipReader:
    """Reader of clips that skips all files later than ``seconds`` after the first one.

    A file may take at most 10 seconds. If it cannot be read, its entry states the ``problem``.
    Entries are kept, so that a file in several parts of a page is read only once.
    """

    def __init__(self, seconds: float = 20.0) -> None:
        self.seconds = seconds
        self._end: float | None = None
        self._entries: dict[str, GalleryEntry] = {}

    def read_all(self, paths: Iterable[str]) -> dict[str, GalleryEntry]:
        """Read files, with progress on stderr, and return their entries by path."""
        paths = dict.fromkeys(paths)
        progress = Progress(len(paths), "reading clips for the page:", unit="files", quiet=True)
        for path in paths:
            if path not in self._entries:
                self._entries[path] = self._read(path)
            progress.advance(bool(self._entries[path].problem))
        progress.finish()
        return {path: self._entries[path] for path in paths}

    def _read(self, path: str) -> GalleryEntry:
        now = time.monotonic()
        self._end = self._end or now + self.seconds
        left = self._end - now
        problem = f"skipped because of the time limit of {self.seconds:g} s for a page"
        entry = GalleryEntry(path, path)
        skipped = replace(entry, problem=problem, skipped=True)
        if left <= 0:
            return skipped
        try:
            entry = read_entry(entry, num_frames=1, seconds=min(left, _FILE_SECONDS))
        except Exception as error:  # a damaged file can raise any error, e.g. MemoryError
            entry = replace(entry, problem=f"{type(error).__name__}: {error}")
        # If the time limit cut off reading, the file need not be damaged.
        late = left < _FILE_SECONDS and time.monotonic() >= self._end
        return skipped if entry.problem and late else entry


def clip_frames(entry: GalleryEntry) -> tuple[list, float]:
    """Return the played frames (h, w, 3) uint8 of an entry, and their duration of at most 3 s.

    An image, or a video with a single frame, has one frame and the duration 0.
    """
    if len(entry.played) > 1:
        return entry.played, min(3.0, entry.duration or 3.0)
    return entry.frames[:1], 0.0


@dataclass(frozen=True)
class ClipTile:
    """Clip of a file as a tile on a page.

    Attributes:
        problem: Why the clip cannot be shown; empty if it is shown.
        skipped: Whether there was no time to read the file.
        duration: Duration as text; empty if it is unknown.
        strip: Frames that play on hover; None if there is a problem.
        number: Number of the strip on the page.
        width, height: Size of the tile in CSS pixels.
    """

    problem: str = ""
    skipped: bool = False
    duration: str = ""
    strip: Strip | None = None
    number: int = 0
    width: float = 0.0
    height: float = 0.0


class ClipTiles:
    """Clips of files as tiles, each of which a page contains only once.

    Args:
        paths: Paths of the files.
        max_bytes: Largest total size of all images in bytes, which determines their quality.
        reader: Reader of the files.

    Attributes:
        values: Template values about all files: the strips, and the files that cannot be shown.
    """

    def __init__(self, paths: Iterable[str], max_bytes: int, reader: ClipReader) -> None:
        self.entries = entries = reader.read_all(paths)
        files = [path for path, entry in entries.items() if not entry.problem]
        levels = [Quality(*size) for size in _TILE_SIZES]
        strips = fitting(
            files, lambda p, q: make_strip(*clip_frames(entries[p]), q), levels, max_bytes
        )
        self._strips = dict(zip(files, strips, strict=True))
        self._numbers = {path: number for number, path in enumerate(files)}
        self.values = {
            "strips": strips,
            "skipped": sum(entry.skipped for entry in entries.values()),
            "seconds": reader.seconds,
            "shown": len(entries),
            "unread": [(p, e.problem) for p, e in entries.items() if e.problem and not e.skipped],
        }

    def tile(self, path: str) -> ClipTile:
        """Return the tile of a file, which has at most 132 x 110 CSS pixels."""
        entry = self.entries[path]
        duration = "" if entry.duration is None else format_duration(entry.duration)
        if path not in self._strips:
            return ClipTile(entry.problem, entry.skipped, duration)
        strip = self._strips[path]
        scale = min(_TILE[0] / strip.width, _TILE[1] / strip.height)
        return ClipTile(
            duration=duration,
            strip=strip,
            number=self._numbers[path],
            width=round(strip.width * scale, 1),
            height=round(strip.height * scale, 1),
        )


class SheetRow(NamedTuple):
    """Row of a sheet."""

    frames: Sequence[np.ndarray]  # (H, W, 3), all of the same shape
    heading: str = ""
    caption: str = ""  # text below the heading
    below: Sequence[str] = ()  # text below each frame


def draw_sheet(
    rows: Sequence[SheetRow], title: str = "", note: str = "", right: float = 0.0
) -> Figure:
    """Draw rows of frames as a matplotlib figure, with ``right`` inches left free on the right."""
    from matplotlib.figure import Figure  # imported here because it is slow

    margin, gap = 0.2, 0.04  # in inches, like all sizes below
    columns = max(len(row.frames) for row in rows)
    # Give all frames the same width, which is larger if there are few columns.
    cell = max(1.35, min(2.5, (7.0 - 2 * margin - right) / columns))
    width = max(7.0, columns * cell + 2 * margin + right)
    texts: list[tuple[float, float, str, TextStyle]] = []  # left, top, text, style
    images: list[tuple[float, float, float, np.ndarray]] = []  # left, top, height, frame
    top, bold = margin, {"weight": "bold", "color": "#111111"}

    def write(text: str, size: float, style: TextStyle) -> None:
        nonlocal top
        # An inch has room for about 115 letters of one point. Dollar signs are escaped, because
        # they would begin a formula.
        lines = textwrap.wrap(printable_utf8(text), int((width - 2 * margin) * 115 / size))
        for line in lines:
            texts.append((margin, top, line.replace("$", r"\$"), {**style, "fontsize": size}))
            top += size / 45

    write(title, 13, bold)
    write(note, 8.5, {"color": "#666666"})
    for row in rows:
        top += 0.1 if row.heading else 0.0
        write(row.heading, 9.5, bold)
        write(row.caption, 8, {"color": "#444444"})
        height, wide = row.frames[0].shape[:2]
        tall = (cell - gap) * height / wide
        places = [margin + i * cell for i in range(len(row.frames))]
        images += [(x, top, tall, frame) for x, frame in zip(places, row.frames, strict=True)]
        top += tall + gap
        small: TextStyle = {"fontsize": 7.5, "color": "#666666"}
        texts += [(x, top, word, small) for x, word in zip(places, row.below, strict=False)]
        top += 0.2 if row.below else gap
    height = top + margin
    figure = Figure(figsize=(width, height), dpi=110, facecolor="#f7f7f5")
    for left, above, text, style in texts:
        figure.text(left / width, 1 - above / height, text, va="top", **style)
    for left, above, tall, frame in images:
        below = 1 - (above + tall) / height
        axes = figure.add_axes((left / width, below, (cell - gap) / width, tall / height))
        axes.imshow(frame, aspect="auto")
        axes.set_axis_off()
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: float | None = None) -> None:
    """Write a matplotlib figure in the format of the file extension (PNG by default)."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", dpi=dpi or "figure")
    write_bytes(path, drawn.getvalue())
