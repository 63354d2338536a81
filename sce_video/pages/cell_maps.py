"""Frames in a row, and below them the same frames with a number for every cell of the features."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sce_video.inference.cell_maps import (
    ClassActivation,
    SeenClip,
    Similarity,
    time_steps,
    without_image_time,
)
from sce_video.inference.classifier import VideoClassifier
from sce_video.pages.frames import save_figure
from sce_video.pages.gallery import data_uri, encode_jpeg
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template
from sce_video.utils.printable import printable_utf8

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Perceptually uniform (Smith and van der Walt, matplotlib): equal steps look equal.
_COLOURS = "inferno"
_HEAT = 0.62  # share of the colour of a cell, the rest is the frame in grey
_MARK = (0, 230, 220)  # colour of a marked frame or cell, in no frame's way on inferno
_SIDE = 224  # pixels of a frame on the page
_JPEG_QUALITY = 85

_LETTERS_PER_INCH = 14.0
# Layout of the figure, inches.
_FRAME, _GAP, _MARGIN, _NAME, _TIME, _BAR = 1.35, 0.05, 0.25, 0.42, 0.2, 1.0


@dataclass(frozen=True, eq=False)
class MapStrip:
    """One clip: its frames and their maps.

    Attributes:
        name: Heading, for example the file.
        note: What the maps are of; empty for none.
        frames: (n, S, S, 3) uint8 RGB.
        times: (n,) seconds; None for an image.
        maps: (n, h, w), the cells of each frame; None draws the frames alone.
        marked: Index of a frame with a border; None for none.
        cell: Row and column of a cell of the marked frame with a border; None for none.
        grid: (h, w) of the cells, where there are no maps.
    """

    name: str
    note: str
    frames: np.ndarray
    times: np.ndarray | None
    maps: np.ndarray | None = None
    marked: int | None = None
    cell: tuple[int, int] | None = None
    grid: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scale:
    """What the colours mean, the same for all strips.

    Attributes:
        low: Value of the darkest colour; smaller ones look the same.
        high: Value of the brightest colour.
        name: Quantity.
    """

    low: float
    high: float
    name: str

    def __post_init__(self) -> None:
        if not -np.inf < self.low < self.high < np.inf:
            raise ValueError(f"a scale needs low < high, got {self.low:g} and {self.high:g}")

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Values from 0 (low or less) to 1 (high or more)."""
        return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)


def common_scale(maps: Sequence[np.ndarray], name: str) -> Scale:
    """The scale from the smallest to the largest value of all maps."""
    low, high = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
    spread = max(high - low, 1e-6 * max(1.0, abs(high)))  # equal values: all are dark
    return Scale(low, low + spread, name)


def chosen_frames(count: int, most: int, marked: int | None = None) -> np.ndarray:
    """At most ``most`` of ``count`` frames, at equal steps from first to last, with the marked one.

    Raises:
        ValueError: ``most`` is below 1.
    """
    if most < 1:
        raise ValueError(f"the number of frames must be at least 1, got {most}")
    chosen = np.linspace(0, count - 1, min(most, count)).round().astype(int)
    if marked is not None and marked not in chosen:
        chosen[np.abs(chosen - marked).argmin()] = marked
    return chosen


def heat_frame(frame: np.ndarray, values: np.ndarray, scale: Scale) -> np.ndarray:
    """The frame in grey under the colours of its cells, (S, S, 3) uint8 RGB.

    Cells are drawn with smooth transitions between their centres.

    Args:
        frame: (S, S, 3) uint8 RGB.
        values: (h, w).
        scale: Maps values to colours.
    """
    import cv2

    height, width = frame.shape[:2]
    smooth = cv2.resize(
        scale.fraction(values).astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR
    )
    colours = _colour_table()[(smooth * 255).round().astype(int)]
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None]
    return (_HEAT * colours + (1 - _HEAT) * grey).round().astype(np.uint8)


def write_maps(
    path: str | os.PathLike, strips: Sequence[MapStrip], scale: Scale, title: str, note: str
) -> None:
    """Write strips as an image, or as one self-contained HTML page.

    Args:
        path: Ends in .png (or another image format of matplotlib) or .html.
        strips: At least one.
        scale: The same for all.
        title: Heading.
        note: A line below it: the network, its input, the size of the grid.

    Raises:
        WriteError: the file cannot be written; an old one is unchanged.
    """
    if os.fspath(path).lower().endswith((".html", ".htm")):
        write_text(os.fspath(path), render_maps(strips, scale, title, note))
    else:
        save_figure(draw_maps(strips, scale, title, note), os.fspath(path))


@cache
def _colour_table() -> np.ndarray:
    """(256, 3) RGB from 0 to 255."""
    from matplotlib import colormaps

    return colormaps[_COLOURS](np.linspace(0, 1, 256))[:, :3] * 255


def _marked_frames(strip: MapStrip) -> list[np.ndarray]:
    """The frames, the marked one with its border, its cell with another."""
    import cv2

    frames = [np.ascontiguousarray(frame) for frame in strip.frames]
    if strip.marked is None:
        return frames
    side = max(frames[0].shape[0], _SIDE)
    frame = cv2.resize(frames[strip.marked], (side, side), interpolation=cv2.INTER_LINEAR)
    thick = max(2, side // 60)
    cv2.rectangle(frame, (0, 0), (side - 1, side - 1), _MARK, 2 * thick)
    if strip.cell is not None and strip.grid is not None:
        (y, x), (h, w) = strip.cell, strip.grid
        corners = [(x * side // w, y * side // h), ((x + 1) * side // w, (y + 1) * side // h)]
        cv2.rectangle(frame, corners[0], corners[1], _MARK, thick)
    frames[strip.marked] = frame
    return frames


def _overlays(strip: MapStrip, scale: Scale) -> list[np.ndarray]:
    if strip.maps is None:
        return []
    return [heat_frame(f, m, scale) for f, m in zip(strip.frames, strip.maps, strict=True)]


def _time_of(strip: MapStrip, index: int) -> str:
    return "image" if strip.times is None else f"{strip.times[index]:.2f} s"


# -- image ---------------------------------------------------------------------------------


def draw_maps(strips: Sequence[MapStrip], scale: Scale, title: str, note: str) -> Figure:
    """The strips as a matplotlib figure, see :func:`write_maps`."""
    from matplotlib.figure import Figure

    columns = max(len(strip.frames) for strip in strips)
    width = max(7.0, 2 * _MARGIN + columns * (_FRAME + _GAP) + _BAR)
    lines = textwrap.wrap(note, int((width - 2 * _MARGIN) * _LETTERS_PER_INCH))
    head = 0.56 + 0.16 * len(lines)
    heights = [
        _NAME + _TIME + (_FRAME + _GAP) * (1 if strip.maps is None else 2) for strip in strips
    ]
    height = 2 * _MARGIN + head + sum(heights) + 0.12 * (len(strips) - 1)
    figure = Figure(figsize=(width, height), dpi=110, facecolor="#f7f7f5")
    page = _Page(figure, width, height)
    page.text(_MARGIN, _MARGIN, title, dict(fontsize=13, weight="bold", color="#111111"))
    for i, line in enumerate(lines):
        page.text(_MARGIN, _MARGIN + 0.3 + 0.16 * i, line, dict(fontsize=8.5, color="#666666"))
    top = _MARGIN + head
    first_map = None
    for strip, tall in zip(strips, heights, strict=True):
        if first_map is None and strip.maps is not None:
            first_map = top + _NAME
        _draw_strip(page, strip, scale, top)
        top += tall + 0.12
    _draw_bar(page, scale, first_map or _MARGIN + head)
    return figure


def _draw_strip(page: _Page, strip: MapStrip, scale: Scale, top: float) -> None:
    page.text(_MARGIN, top, strip.name, dict(fontsize=9.5, weight="bold", color="#111111"))
    page.text(_MARGIN, top + 0.19, strip.note, dict(fontsize=8.5, color="#444444"))
    top += _NAME
    for row in (_marked_frames(strip), _overlays(strip, scale)):
        for i, frame in enumerate(row):
            page.image(_MARGIN + i * (_FRAME + _GAP), top, _FRAME, frame)
        top += (_FRAME + _GAP) * bool(row)
    for i in range(len(strip.frames)):
        left = _MARGIN + i * (_FRAME + _GAP)
        page.text(left, top, _time_of(strip, i), dict(fontsize=7.5, color="#666666"))


def _draw_bar(page: _Page, scale: Scale, top: float) -> None:
    """The colours with their values, at the right of the first maps."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    tall = 2 * _FRAME + _GAP
    box = page.box(page.width - _MARGIN - _BAR + 0.12, top, 0.13, tall)
    bar = page.figure.colorbar(
        ScalarMappable(Normalize(scale.low, scale.high), _COLOURS), cax=page.figure.add_axes(box)
    )
    bar.set_label(scale.name, fontsize=8, color="#333333")
    bar.ax.tick_params(labelsize=7.5, colors="#333333", length=2)
    bar.outline.set_visible(False)


class _Page:
    """Places text and images on a figure, in inches from its upper left corner.

    Args:
        figure: Of matplotlib.
        width: Inches.
        height: Inches.
    """

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self.figure, self.width, self.height = figure, width, height

    def box(self, left: float, top: float, wide: float, tall: float) -> Any:
        return (
            left / self.width,
            1 - (top + tall) / self.height,
            wide / self.width,
            tall / self.height,
        )

    def text(self, left: float, top: float, text: str, style: dict[str, Any]) -> None:
        shown = printable_utf8(text).replace("$", r"\$")  # a dollar sign begins a formula
        self.figure.text(left / self.width, 1 - top / self.height, shown, va="top", **style)

    def image(self, left: float, top: float, side: float, image: np.ndarray) -> None:
        axes = self.figure.add_axes(self.box(left, top, side, side))
        axes.imshow(image, aspect="auto", interpolation="bilinear")
        axes.set_axis_off()


# -- page ----------------------------------------------------------------------------------


def render_maps(strips: Sequence[MapStrip], scale: Scale, title: str, note: str) -> str:
    """The strips as one HTML page, frames included; it loads nothing."""
    steps = _colour_table()[np.linspace(0, 255, 12).astype(int)].round().astype(int)
    values = {
        "title": title,
        "note": note,
        "strips": [
            {
                "name": strip.name,
                "note": strip.note,
                "columns": _columns(strip, scale),
                "has_maps": strip.maps is not None,
            }
            for strip in strips
        ],
        "scale": scale,
        "gradient": ", ".join(f"rgb({r} {g} {b})" for r, g, b in steps.tolist()),
    }
    return render_template("sce_video.pages", "cell_maps.html", values)


def _columns(strip: MapStrip, scale: Scale) -> list[dict[str, str]]:
    overlays = _overlays(strip, scale)
    return [
        {
            "time": _time_of(strip, i),
            "frame": _data_uri(frame),
            "overlay": _data_uri(overlays[i]) if overlays else "",
        }
        for i, frame in enumerate(_marked_frames(strip))
    ]


def _data_uri(frame: np.ndarray) -> str:
    import cv2

    if frame.shape[0] < _SIDE:
        frame = cv2.resize(frame, (_SIDE, _SIDE), interpolation=cv2.INTER_LINEAR)
    return data_uri("image/jpeg", encode_jpeg(frame, _JPEG_QUALITY))


def activation_strips(
    classifier: VideoClassifier, activation: ClassActivation, most: int
) -> list[MapStrip]:
    """A strip for each clip of a video; frames of a network of images are one strip.

    Args:
        classifier: Names the classes.
        activation: Of the video.
        most: Frames of a strip.
    """
    name, probability = (
        classifier.classes[activation.label],
        activation.probabilities[activation.label],
    )
    best = int(activation.probabilities.argmax())
    rest = ""
    if best != activation.label:
        other = activation.probabilities[best]
        rest = f"; most probable: {classifier.classes[best]}, {other:.3f}"
    strips = []
    for clip, values, score in zip(
        activation.clips, activation.maps, activation.scores, strict=True
    ):
        note = (
            f"class {name}, probability {probability:.3f}{rest}; score {score:z.2f} = mean of the "
            f"cells {values.mean():z.2f} + bias {activation.bias:z.2f}"
        )
        strips.append(_strip(clip, values, note, most))
    return _joined(strips, most)


def similarity_strips(similarity: Similarity, most: int) -> list[MapStrip]:
    """The strip of the query, with its frame and cell marked, then one for each clip of the key."""
    query, grid = similarity.query, similarity.query_grid
    chosen = chosen_frames(len(query.frames), most, similarity.frame)
    marked = int(np.flatnonzero(chosen == similarity.frame)[0])
    frames, times = query.frames[chosen], None if query.times is None else query.times[chosen]
    if query.is_image:
        frames, marked = query.frames[:1], 0
    strips = [
        MapStrip(
            name=f"query: {query.path}",
            note=_query_note(similarity),
            frames=frames,
            times=times,
            marked=marked,
            cell=similarity.cell,
            grid=(grid[1], grid[2]),
        )
    ]
    keys = []
    for clip, values in zip(similarity.keys, similarity.maps, strict=True):
        step, y, x = np.unravel_index(values.argmax(), values.shape)
        frame = int(np.flatnonzero(time_steps(len(clip.frames), len(values)) == step)[0])
        when = "" if clip.times is None else f" at {clip.times[frame]:.2f} s,"
        note = (
            f"most similar:{when} cell {y},{x}, cosine {values.max():.3f}; "
            f"mean of all cells {values.mean():.3f}"
        )
        keys.append(replace(_strip(clip, values, note, most), name=f"key: {clip.path}"))
    return strips + _joined(keys, most)


def describe_grid(clip: SeenClip, shape: Sequence[int]) -> str:
    """What a cell of features (t, h, w) stands for, in frames and pixels."""
    (frames, height, width), (t, h, w) = clip.frames.shape[:3], shape
    step = f"{_count(frames / t, 'frame')} and {height / h:g} x {width / w:g} pixels"
    return (
        f"clips of {_count(frames, 'frame')} of {height}x{width} pixels; {t} x {h} x {w} cells "
        f"(time, rows, columns), one every {step}"
    )


def _count(number: float, name: str) -> str:
    return f"{number:g} {name}{'s' * (number != 1)}"


def _query_note(similarity: Similarity) -> str:
    clip, frame = similarity.query, similarity.frame
    when = "" if clip.times is None else f" at {clip.times[frame]:.2f} s"
    if similarity.cell is not None:
        y, x = similarity.cell
        return f"cell {y},{x} of frame {frame}{when}"
    what = "the best of all cells" if similarity.best else "the mean of all cells"
    return f"{what} of frame {frame}{when}"


def _strip(clip: SeenClip, values: np.ndarray, note: str, most: int) -> MapStrip:
    clip, values = without_image_time(clip, values)
    chosen = chosen_frames(len(clip.frames), most)
    steps = time_steps(len(clip.frames), len(values))
    return MapStrip(
        name=clip.path,
        note=note,
        frames=clip.frames[chosen],
        times=None if clip.times is None else clip.times[chosen],
        maps=values[steps[chosen]],
    )


def _joined(strips: list[MapStrip], most: int) -> list[MapStrip]:
    """Clips of one frame each as one strip over time; others as they are, numbered."""
    if len(strips) == 1:
        return strips
    if any(len(strip.frames) > 1 or strip.times is None for strip in strips):
        return [
            replace(strip, name=f"{strip.name}, clip {i} of {len(strips)}")
            for i, strip in enumerate(strips, 1)
        ]
    chosen = chosen_frames(len(strips), most)
    maps = [strip.maps for strip in strips if strip.maps is not None]
    times = [strip.times for strip in strips if strip.times is not None]
    return [
        replace(
            strips[0],
            note=f"{len(strips)} clips of one frame; the first: {strips[0].note}",
            frames=np.concatenate([strip.frames for strip in strips])[chosen],
            times=np.concatenate(times)[chosen],
            maps=np.concatenate(maps)[chosen],
        )
    ]
