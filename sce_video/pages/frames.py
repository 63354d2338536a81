"""Frames as images inside a page: strips that a style sheet plays, and animations, in a budget."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import av
import cv2
import numpy as np
from PIL import Image

from sce_video.datasets import IMAGE_EXTENSIONS
from sce_video.datasets.ava import Action
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.readers.limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.pages.gallery import GalleryEntry, read_entry, small_frame
from sce_video.utils.files import write_bytes
from sce_video.utils.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Seconds a frame is shown at least and at most, where a strip plays.
_FASTEST, _SLOWEST = 0.06, 0.4
_TILE = (132, 110)  # largest width and height of a video in rows of clips, CSS pixels


@dataclass(frozen=True)
class Strip:
    """Frames of one size side by side in one image, which ``parts.css`` shows and plays.

    Attributes:
        uri: ``data:`` URI of the image; empty where the budget did not suffice.
        count: Frames.
        width: Of a frame, pixels.
        height: Likewise.
        seconds: That all frames are played in.
    """

    uri: str
    count: int
    width: int
    height: int
    seconds: float

    @property
    def positions(self) -> list[str]:
        """Of each frame in the image, as CSS positions a background: 0% to 100%."""
        return [f"{100 * i / max(1, self.count - 1):.4g}%" for i in range(self.count)]

    @property
    def middle(self) -> str:
        """Position of the middle frame."""
        return self.positions[self.count // 2]


class Quality(NamedTuple):
    """How much of the frames is kept."""

    height: int
    """Largest, pixels."""
    quality: int
    """Of WebP, 0 to 100."""
    frames: int
    """Largest number, at equal steps."""


T = TypeVar("T")


def make_strip(frames: Sequence[np.ndarray], seconds: float, quality: Quality) -> Strip:
    """A strip of frames (h, w, 3) uint8 RGB of one size.

    Args:
        frames: At least one.
        seconds: Length of the clip; frames are shown between 0.06 and 0.4 seconds each.
        quality: Frames are reduced to it, never enlarged.
    """
    small = _reduced(frames, quality)
    height, width = small[0].shape[:2]
    played = min(max(seconds / len(small), _FASTEST), _SLOWEST) * len(small)
    image = _image(np.concatenate(small, axis=1))
    encoded = io.BytesIO()
    image.save(encoded, "WEBP", quality=quality.quality, method=4)
    return Strip(_uri(encoded), len(small), width, height, round(played, 3))


def page_tile(strip: Strip, number: int) -> dict[str, Any]:
    """A strip by its number on the page and its size there, at most 132 x 110 CSS pixels."""
    scale = min(_TILE[0] / strip.width, _TILE[1] / strip.height)
    width, height = (round(side * scale, 1) for side in (strip.width, strip.height))
    return {"strip": strip, "number": number, "width": width, "height": height}


def animation_uri(frames: Sequence[np.ndarray], seconds: float, quality: Quality) -> str:
    """Frames (h, w, 3) uint8 RGB of one size as an animated WebP inside a ``data:`` URI.

    Args:
        frames: At least one.
        seconds: Length of the clip; frames are shown between 0.06 and 0.4 seconds each.
        quality: Frames are reduced to it, never enlarged.
    """
    small = [_image(frame) for frame in _reduced(frames, quality)]
    shown = round(1000 * min(max(seconds / len(small), _FASTEST), _SLOWEST))
    encoded = io.BytesIO()
    small[0].save(
        encoded,
        "WEBP",
        save_all=True,
        append_images=small[1:],
        duration=shown,
        loop=0,
        quality=quality.quality,
        method=4,
    )
    return _uri(encoded)


def fitting(
    items: Sequence[T],
    encode: Callable[[T, Quality], Strip],
    levels: Sequence[Quality],
    budget: int,
) -> list[Strip]:
    """Strips of all items in the best of the qualities whose total size fits into the budget.

    Where even the last does not, the last items have strips without image.

    Args:
        items: What is encoded.
        encode: Makes the strip of an item.
        levels: Qualities, best first.
        budget: Bytes of all ``data:`` URIs together.
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


def _reduced(frames: Sequence[np.ndarray], quality: Quality) -> list[np.ndarray]:
    import cv2

    chosen = np.linspace(0, len(frames) - 1, min(quality.frames, len(frames))).round().astype(int)
    height, width = frames[0].shape[:2]
    scale = min(1.0, quality.height / height, 2 * quality.height / width)
    if scale == 1.0:
        return [frames[i] for i in chosen]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return [cv2.resize(frames[i], size, interpolation=cv2.INTER_AREA) for i in chosen]


def _image(array: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(array))


def _uri(encoded: io.BytesIO) -> str:
    return "data:image/webp;base64," + base64.b64encode(encoded.getvalue()).decode("ascii")


#: Seconds that one file may take.
_FILE_SECONDS = 10.0


class ClipReader:
    """Reads files until a number of seconds has passed since the first one.

    Args:
        seconds: Time for all files together; the others are not read, and say so.
    """

    def __init__(self, seconds: float = 20.0) -> None:
        self.seconds = seconds
        self._end: float | None = None
        self._entries: dict[str, GalleryEntry] = {}

    def read(self, path: str) -> GalleryEntry:
        """Frames of a file; an entry with ``problem`` set if it is gone, broken or too slow."""
        if path not in self._entries:
            self._entries[path] = self._read(path)
        return self._entries[path]

    def read_all(self, paths: Iterable[str]) -> dict[str, GalleryEntry]:
        """The entries of different files by their path, with progress on stderr."""
        paths = dict.fromkeys(paths)
        progress = Progress(len(paths), "reading clips for the page:", unit="files", quiet=True)
        entries = {}
        for path in paths:
            entries[path] = self.read(path)
            progress.advance(bool(entries[path].problem))
        progress.finish()
        return entries

    def _read(self, path: str) -> GalleryEntry:
        now = time.monotonic()
        self._end = self._end or now + self.seconds
        left = self._end - now
        entry = self._read_within(path, min(left, _FILE_SECONDS)) if left > 0 else None
        # A slow file that was cut off by the end is no damaged one.
        late = left < _FILE_SECONDS and time.monotonic() >= self._end
        if entry is None or (entry.problem and late):
            problem = f"skipped, time limit of {self.seconds:g} s for all files of a page"
            return GalleryEntry(path, path, problem=problem, skipped=True)
        return entry

    def _read_within(self, path: str, seconds: float) -> GalleryEntry:
        try:
            if Path(path).suffix.lower() in IMAGE_EXTENSIONS and Path(path).is_file():
                image = small_frame(read_image(path, DecodeLimits(MAX_IMAGE_PIXELS)))
                return GalleryEntry(path, path, frames=[image])
            return read_entry(path, path, num_frames=1, seconds=seconds)
        except Exception as error:  # a damaged file can raise anything: MemoryError, cv2.error
            return GalleryEntry(path, path, problem=f"{type(error).__name__}: {error}")


def clip_frames(entry: GalleryEntry) -> tuple[list, float]:
    """What is played of an entry, and the seconds it lasts; a video of one frame, or image: that.

    Returns:
        Frames (h, w, 3) uint8, at least one unless the entry has a problem; seconds.
    """
    if len(entry.played) > 1:
        return entry.played, min(3.0, entry.duration or 3.0)
    return entry.frames[:1], 0.0


def save_figure(figure: Figure, path: str | Path, dpi: float | None = None) -> None:
    """Write a figure in the format of the file's extension (without one: PNG).

    Args:
        figure: Of matplotlib.
        path: The file; its folder is created if needed.
        dpi: Pixels per inch; None for the figure's own.

    Raises:
        ValueError: matplotlib does not know the format.
        WriteError: the file cannot be written; an old one is unchanged.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", dpi=dpi or "figure")
    write_bytes(path, drawn.getvalue())


#: RGB, by person.
_COLOURS = ((66, 165, 245), (255, 167, 38), (102, 187, 106), (236, 64, 122), (171, 71, 188))
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ASCII = {ord(c): "?" for c in map(chr, range(128, 256))}


def top_actions(
    scores: np.ndarray, actions: Sequence[Action], count: int = 3, least: float = 0.0
) -> list[str]:
    """The highest-scoring actions of one person, as ``stand 0.93``, best first.

    Args:
        scores: (80,) probabilities; action ``id`` is entry ``id - 1``.
        actions: Candidate actions.
        count: Largest number of actions.
        least: Lowest probability that is listed.
    """
    ranked = sorted(actions, key=lambda action: -scores[action.id - 1])[:count]
    return [f"{a.name} {scores[a.id - 1]:.2f}" for a in ranked if scores[a.id - 1] >= least]


def draw_boxes(
    frame: np.ndarray, boxes: np.ndarray, captions: Sequence[Sequence[str]], min_side: int = 480
) -> np.ndarray:
    """A copy of a frame with boxes and captions; small frames are enlarged to keep text readable.

    Args:
        frame: (H, W, 3) uint8 RGB.
        boxes: (n, 4), x1 y1 x2 y2 from 0 to 1.
        captions: Lines of text for each of the n boxes.
        min_side: Frames with a shorter short side are enlarged to it, pixels.

    Returns:
        (H', W', 3) uint8 RGB, of even height and width.
    """
    height, width = frame.shape[:2]
    scale = max(1.0, min_side / min(height, width))
    size = (round(width * scale) // 2 * 2, round(height * scale) // 2 * 2)
    image = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
    letters = max(0.4, min(size) / 900)
    line = int(30 * letters) + 4
    taken: list[tuple[int, int, int, int]] = []
    for number, (box, lines) in enumerate(zip(boxes, captions, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        x1, y1, x2, y2 = (round(float(v) * size[i % 2]) for i, v in enumerate(box))
        cv2.rectangle(image, (x1, y1), (x2, y2), colour, max(2, round(3 * letters)))
        texts = [text.translate(_ASCII) for text in lines]
        if not texts:
            continue
        wide = max(cv2.getTextSize(t, _FONT, letters, 1)[0][0] for t in texts) + 8
        left = max(0, min(x1, size[0] - wide))
        top = max(0, min(y1, size[1] - line * len(texts) - 4))
        while any(_overlap((left, top, wide, line * len(texts)), other) for other in taken):
            top += line  # below the captions drawn so far
        taken.append((left, top, wide, line * len(texts)))
        shade = image[top : top + line * len(texts) + 4, left : left + wide]
        shade[...] = shade // 4
        for i, text in enumerate(texts):
            origin = (left + 4, top + line * (i + 1) - 6)
            cv2.putText(image, text, origin, _FONT, letters, colour, 1, cv2.LINE_AA)
    return image


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def write_clip(path: str | Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Write frames (H, W, 3) uint8 RGB, of even height and width, as an h264 video in mp4.

    Raises:
        WriteError: the file cannot be written; an old one is unchanged.
    """
    encoded = io.BytesIO()
    with av.open(encoded, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            image = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    write_bytes(path, encoded.getvalue())


def write_image(path: str | Path, image: np.ndarray) -> None:
    """Write an image (H, W, 3) uint8 RGB in the format of the file's extension.

    Raises:
        WriteError: the file cannot be written; an old one is unchanged.
    """
    _, encoded = cv2.imencode(Path(path).suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    write_bytes(path, encoded.tobytes())
