"""Gallery of search results: a page with frames of the query and of every result."""

from __future__ import annotations

import base64
import io
import os
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sce_video.datasets.clip_sampling import (
    format_duration,
    format_moment,
    frames_between,
    segment_positions,
    shown_at,
)
from sce_video.datasets.readers.base import (
    MAX_IMAGE_PIXELS,
    DecodeLimits,
    FrameCountError,
    VideoDecodeError,
)
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.sources import is_elsewhere, is_image, open_video, video_exists
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template

#: Default number of frames per video.
_FRAMES = 4
_FRAME_HEIGHT = 150  # maximum height in pixels
_FRAME_WIDTH = 300  # maximum width in pixels
#: JPEG quality of a frame, from 0 to 100. We chose it by hand, so that pages stay small.
_JPEG_QUALITY = 80
#: Time limit in seconds for reading a video.
_READ_SECONDS = 30.0
#: Maximum number of full-size frames in memory at a time, because they may be large.
_READ_AT_ONCE = 8
#: Duration in seconds of the part from the middle of a video that the page plays.
_PLAYED_SECONDS = 3.0
#: Frame rate of this part. It is low, because the frames are stored in the page.
_PLAYED_RATE = 8


@dataclass(frozen=True)
class GalleryEntry:
    """Video of a gallery. Frames are (h, w, 3) uint8 RGB."""

    name: str  # displayed name
    file: str  # path
    frames: list[np.ndarray] = field(default_factory=list)  # frames at equal steps
    played: list[np.ndarray] = field(default_factory=list)  # middle 3 s, 8 frames per second
    duration: float | None = None  # in seconds; None for an image or an unreadable file
    problem: str = ""  # reason why the file cannot be read
    skipped: bool = False  # whether there was no time to read the file
    rank: int | None = None  # rank from 1; None for a query
    similarity: float | None = None  # cosine similarity to the query; None for a query
    start: float | None = None  # start of the displayed moment in seconds; None for a whole video
    end: float | None = None

    @property
    def moment(self) -> str:
        """Return the moment as ``1:02:03-1:02:08``; empty for a whole video."""
        return "" if self.start is None or self.end is None else format_moment(self.start, self.end)


def read_entry(
    entry: GalleryEntry, num_frames: int = _FRAMES, seconds: float = _READ_SECONDS
) -> GalleryEntry:
    """Add frames and duration to the entry of a video, a moment or an image.

    If the file is missing or broken, the entry states the ``problem`` instead.
    """
    file = entry.file
    span = None if entry.start is None or entry.end is None else (entry.start, entry.end)
    try:
        if not video_exists(file):
            raise VideoDecodeError(file, "the file is missing")
        if is_image(file):
            image = read_image(file, DecodeLimits(MAX_IMAGE_PIXELS))
            return replace(entry, frames=[small_frame(image)])
        frames, played, duration = read_frames(file, num_frames, seconds, span=span)
    except VideoDecodeError as error:
        return replace(entry, problem=error.reason)
    return replace(entry, frames=frames, played=played, duration=duration)


def read_frames(
    file: str | os.PathLike,
    num_frames: int = _FRAMES,
    seconds: float = _READ_SECONDS,
    played: bool = True,
    span: tuple[float, float] | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Read small frames of a video, or of a moment in it.

    Args:
        file: Path of the video.
        num_frames: Number of frames, taken from the centres of equal segments.
        seconds: Time limit in seconds.
        played: Whether to read the frames of the middle 3 seconds, too, 8 per second.
        span: Start and end of the moment in seconds; None for the whole video.

    Returns:
        The frames, the played frames, and the duration in seconds.

    Raises:
        VideoDecodeError: If the file cannot be read.
    """
    path, deadline = os.fspath(file), time.monotonic() + seconds
    correction = None
    for _ in range(2):
        with open_video(path, correction=correction, deadline=deadline) as reader:
            start, end = span or (0.0, reader.duration)
            first, stop = frames_between(reader.timestamps, start, min(end, reader.duration))
            positions = first + segment_positions(stop - first, num_frames)
            length = min(_PLAYED_SECONDS, end - start) if played else 0.0
            times = np.arange(round(length * _PLAYED_RATE)) / _PLAYED_RATE
            middle = shown_at(reader.timestamps, (start + end) / 2 - length / 2 + times)
            indices, inverse = np.unique([*positions, *middle], return_inverse=True)
            try:
                parts = np.split(indices, range(_READ_AT_ONCE, len(indices), _READ_AT_ONCE))
                frames = [small_frame(frame) for part in parts for frame in reader.read(part)]
            except FrameCountError as error:  # the video has fewer frames than its header states
                correction = error.correction
                continue
            chosen = [frames[i] for i in inverse]
            return chosen[:num_frames], chosen[num_frames:], reader.duration
    raise VideoDecodeError(path, "the number of frames cannot be determined")


def small_frame(frame: np.ndarray) -> np.ndarray:
    """Scale a frame to fit 150 x 300 pixels, keeping the aspect ratio."""
    import cv2

    height, width = frame.shape[:2]
    scale = min(_FRAME_HEIGHT / height, _FRAME_WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


class _Card(NamedTuple):
    """Everything that the page shows about a video."""

    entry: GalleryEntry
    duration: str | None  # None for an image or an unreadable file
    link: str = ""  # link to the file, relative to the gallery
    played: str = ""  # ``data:`` URI of the video that the page plays
    images: Sequence[str] = ()  # ``data:`` URIs of the frames


def write_gallery(
    path: str | os.PathLike,
    queries: Sequence[GalleryEntry],
    results: Sequence[GalleryEntry],
    note: str = "",
    unlike: Sequence[GalleryEntry] = (),
) -> None:
    """Write a gallery as one HTML file that contains all frames, loads nothing and runs nothing.

    Next to its frames, every video has a player for a few seconds. Names link to the files.

    Args:
        path: Path of the page.
        queries: One or more videos that the results resemble.
        results: Results, in their order.
        note: Sentence about the search.
        unlike: Videos that the results do not resemble.
    """

    def card(entry: GalleryEntry) -> _Card:
        duration = None if entry.duration is None else format_duration(entry.duration)
        if entry.problem:
            return _Card(entry, duration)
        images = [data_uri("image/jpeg", encode_jpeg(frame)) for frame in entry.frames]
        player = data_uri("video/mp4", encode_clip(entry.played))
        link = file_link(entry.file, path)
        if link and entry.start is not None:
            link += f"#t={entry.start:.2f},{entry.end:.2f}"
        return _Card(entry, duration, link, player, images)

    more = f" and {len(queries) - 1} more" if len(queries) > 1 else ""
    values = {
        "title": f"Videos like {os.path.basename(queries[0].name)}{more}",
        "note": note,
        "queries": [card(entry) for entry in queries],
        "unlike": [card(entry) for entry in unlike],
        "results": [card(entry) for entry in results],
    }
    write_text(Path(path), render_template("sce_video.pages", "gallery.html", values))


def encode_clip(frames: Sequence[np.ndarray], fps: float = _PLAYED_RATE, crf: int = 26) -> bytes:
    """Encode frames (h, w, 3) uint8 RGB as an mp4; return empty bytes for fewer than two frames.

    The codec is h264 with 4:2:0 chroma, because all browsers play it.
    """
    import av

    if len(frames) < 2:
        return b""
    buffer = io.BytesIO()
    # Round down to even sizes, because the chroma planes need them.
    height, width = (size // 2 * 2 for size in frames[0].shape[:2])
    if min(height, width) < 2:
        return b""
    with av.open(buffer, "w", format="mp4") as container:
        rate = Fraction(fps).limit_denominator(1001)
        stream = container.add_stream("libx264", rate=rate, options={"crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            image = np.ascontiguousarray(frame[:height, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def encode_jpeg(frame: np.ndarray, quality: int = _JPEG_QUALITY) -> bytes:
    """Encode a frame (h, w, 3) uint8 RGB as JPEG with a quality from 0 to 100."""
    import cv2

    good, data = cv2.imencode(
        ".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality]
    )
    assert good
    return data.tobytes()


def data_uri(kind: str, content: bytes) -> str:
    """Return the content as a ``data:`` URI; empty for no content."""
    if not content:
        return ""
    return f"data:{kind};base64," + base64.b64encode(content).decode("ascii")


def file_link(file: str, page: str | os.PathLike) -> str:
    """Return the URL of a file relative to a page, for any bytes in its name.

    Videos in tables and object stores have no URL, so an empty text is returned for them.
    """
    if is_elsewhere(file):
        return ""
    relative = os.path.relpath(os.path.abspath(file), Path(page).resolve().parent)
    return "./" + urllib.parse.quote(os.fsencode(relative))
