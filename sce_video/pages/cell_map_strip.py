"""Strips of frames above their maps, which show a number for each cell of the features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from sce_video.inference.cell_maps import (
    ClassActivation,
    SeenClip,
    Similarity,
    time_steps,
    without_image_time,
)
from sce_video.inference.classifier import VideoClassifier
from sce_video.pages.frames import SheetRow, draw_sheet, equal_steps, save_figure
from sce_video.pages.gallery import data_uri, encode_jpeg
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Name of a matplotlib colour map in which equal steps look equal (Smith and van der Walt).
_COLOURS = "inferno"
_HEAT = 0.62  # weight of a cell's colour; the rest is the weight of the grey frame
_MARK = (0, 230, 220)  # colour of a marked frame or cell, which contrasts with inferno
_SIDE = 224  # side in pixels of a frame on the page


@dataclass(frozen=True, eq=False)
class MapStrip:
    """Frames of a clip and their maps."""

    name: str  # heading, such as the file name
    note: str  # explanation of the maps
    frames: np.ndarray  # (n, S, S, 3) uint8 RGB
    times: np.ndarray | None  # (n,) in seconds; None for an image
    # Value of each cell in each frame, (n, h, w). None if there are no maps.
    maps: np.ndarray | None = None
    marked: int | None = None  # index of the marked frame
    cell: tuple[int, int] | None = None  # row and column of the marked cell in this frame
    grid: tuple[int, int] | None = None  # (h, w), the number of cells; None if no cell is marked

    def time_of(self, index: int) -> str:
        """Return the time of a frame as text; ``image`` for an image."""
        return "image" if self.times is None else f"{self.times[index]:.2f} s"

    def overlays(self, scale: Scale) -> list[np.ndarray]:
        """Return the frames with the colours of their cells; empty without maps."""
        maps = () if self.maps is None else self.maps
        return [heat_frame(f, m, scale) for f, m in zip(self.frames, maps, strict=False)]

    def marked_frames(self) -> list[np.ndarray]:
        """Return the frames with borders around the marked frame and the marked cell."""
        import cv2

        frames = [np.ascontiguousarray(frame) for frame in self.frames]
        if self.marked is None:
            return frames
        side = max(frames[0].shape[0], _SIDE)
        frame = cv2.resize(frames[self.marked], (side, side), interpolation=cv2.INTER_LINEAR)
        thick = max(2, side // 60)
        cv2.rectangle(frame, (0, 0), (side - 1, side - 1), _MARK, 2 * thick)
        if self.cell is not None and self.grid is not None:
            (y, x), (h, w) = self.cell, self.grid
            corners = [(x * side // w, y * side // h), ((x + 1) * side // w, (y + 1) * side // h)]
            cv2.rectangle(frame, corners[0], corners[1], _MARK, thick)
        frames[self.marked] = frame
        return frames


@dataclass(frozen=True)
class Scale:
    """Colour scale of all strips: the values of the darkest and the brightest colour.

    Raises:
        ValueError: If ``low`` is not below ``high``, or one of them is not finite.
    """

    low: float
    high: float
    name: str

    def __post_init__(self) -> None:
        if not -np.inf < self.low < self.high < np.inf:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Map values to 0 (low or less) to 1 (high or more)."""
        return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)


def common_scale(maps: Sequence[np.ndarray], name: str) -> Scale:
    """Return the scale from the smallest to the largest value of all maps."""
    low, high = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
    # If all values are equal, give all cells the darkest colour.
    spread = max(high - low, 1e-6 * max(1.0, abs(high)))
    return Scale(low, low + spread, name)


def chosen_frames(count: int, most: int, marked: int | None = None) -> np.ndarray:
    """Return the ascending indices of at most ``most`` of ``count`` frames, at equal steps.

    The first and the last frame are chosen. ``marked`` replaces the nearest chosen frame.
    """
    chosen = equal_steps(count, most)
    if marked is not None and marked not in chosen:
        chosen[np.abs(chosen - marked).argmin()] = marked
    return chosen


def heat_frame(frame: np.ndarray, values: np.ndarray, scale: Scale) -> np.ndarray:
    """Return a frame (S, S, 3) uint8 RGB in grey with the colours of its cells (h, w).

    Colours change smoothly between the centres of the cells.
    """
    import cv2

    height, width = frame.shape[:2]
    shares = scale.fraction(values).astype(np.float32)
    smooth = cv2.resize(shares, (width, height), interpolation=cv2.INTER_LINEAR)
    colours = _colour_table()[(smooth * 255).round().astype(int)]
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None]
    return (_HEAT * colours + (1 - _HEAT) * grey).round().astype(np.uint8)


@cache
def _colour_table() -> np.ndarray:
    """Return the RGB values (256, 3) of the colour map, from 0 to 255."""
    from matplotlib import colormaps

    return colormaps[_COLOURS](np.linspace(0, 1, 256))[:, :3] * 255


def write_maps(
    path: str | os.PathLike, strips: Sequence[MapStrip], scale: Scale, title: str, note: str
) -> None:
    """Write strips as a picture or, if the path ends in ``.html``, as a self-contained page.

    ``note`` is a line below the title.
    """
    if os.fspath(path).lower().endswith((".html", ".htm")):
        write_text(os.fspath(path), render_maps(strips, scale, title, note))
    else:
        save_figure(draw_maps(strips, scale, title, note), os.fspath(path))


def draw_maps(strips: Sequence[MapStrip], scale: Scale, title: str, note: str) -> Figure:
    """Draw the strips as a matplotlib figure with a colour bar on the right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    rows = []
    for strip in strips:
        times = [strip.time_of(i) for i in range(len(strip.frames))]
        overlays = strip.overlays(scale)
        below = () if overlays else times
        rows.append(SheetRow(strip.marked_frames(), strip.name, strip.note, below))
        if overlays:
            rows.append(SheetRow(overlays, below=times))
    figure = draw_sheet(rows, title, note, right=1.0)
    width, height = figure.get_size_inches()
    colours = ScalarMappable(Normalize(scale.low, scale.high), _COLOURS)
    axes = figure.add_axes((1 - 1.1 / width, 1 - 3.2 / height, 0.13 / width, 2.2 / height))
    bar = figure.colorbar(colours, cax=axes)
    bar.set_label(scale.name, fontsize=8, color="#333333")
    bar.ax.tick_params(labelsize=7.5, colors="#333333", length=2)
    bar.outline.set_visible(False)
    return figure


def render_maps(strips: Sequence[MapStrip], scale: Scale, title: str, note: str) -> str:
    """Render the strips as an HTML page that contains all frames and loads nothing."""
    import cv2

    def uri(frame: np.ndarray) -> str:
        if frame.shape[0] < _SIDE:
            frame = cv2.resize(frame, (_SIDE, _SIDE), interpolation=cv2.INTER_LINEAR)
        return data_uri("image/jpeg", encode_jpeg(frame, 85))

    shown = []
    for strip in strips:
        overlays = strip.overlays(scale)
        columns = [
            {
                "time": strip.time_of(i),
                "frame": uri(frame),
                "overlay": uri(overlays[i]) if overlays else "",
            }
            for i, frame in enumerate(strip.marked_frames())
        ]
        shown.append({"name": strip.name, "note": strip.note, "columns": columns})
    steps = _colour_table()[np.linspace(0, 255, 12).astype(int)].round().astype(int)
    gradient = ", ".join(f"rgb({r} {g} {b})" for r, g, b in steps.tolist())
    values = dict(title=title, note=note, strips=shown, scale=scale, gradient=gradient)
    return render_template("sce_video.pages", "cell_maps.html", values)


def activation_strips(
    classifier: VideoClassifier, activation: ClassActivation, most: int
) -> list[MapStrip]:
    """Return a strip of at most ``most`` frames for each clip of a video.

    The maps show how much each cell adds to the score (logit) of the class. The note states the
    score with its bias, and the probability of the class and of a more probable class. Clips of an
    image network share one strip.
    """
    label, probabilities = activation.label, activation.probabilities
    about = f"class {classifier.classes[label]}, probability {probabilities[label]:.3f}"
    best = int(probabilities.argmax())
    if best != label:
        about += f", most probable class {classifier.classes[best]}, {probabilities[best]:.3f}"
    found = zip(activation.clips, activation.maps, activation.scores, strict=True)
    strips = []
    for clip, values, score in found:
        parts = f"mean of the cells {values.mean():z.2f} + bias {activation.bias:z.2f}"
        strips.append(_strip(clip, values, f"{about}; score {score:z.2f} = {parts}", most))
    return _joined(strips, most)


def similarity_strips(similarity: Similarity, most: int) -> list[MapStrip]:
    """Return the strip of the query with its marked frame, and a strip for each clip of the key.

    The maps of the key contain cosines. Their notes state time and place of the most similar cell.
    Each strip has at most ``most`` frames.
    """
    query, frame, cell = similarity.query, similarity.frame, similarity.cell
    what = "the best of all cells" if similarity.best else "the mean of all cells"
    if cell is not None:
        what = f"cell {cell[0]},{cell[1]}"
    when = "" if query.times is None else f" at {query.times[frame]:.2f} s"
    chosen = np.array([0]) if query.is_image else chosen_frames(len(query.frames), most, frame)
    first = MapStrip(
        name=f"query: {query.path}",
        note=f"{what} of frame {frame}{when}",
        frames=query.frames[chosen],
        times=None if query.times is None else query.times[chosen],
        marked=0 if query.is_image else int(np.flatnonzero(chosen == frame)[0]),
        cell=cell,
        grid=(similarity.query_grid[1], similarity.query_grid[2]),
    )
    keys = []
    for clip, values in zip(similarity.keys, similarity.maps, strict=True):
        step, y, x = np.unravel_index(values.argmax(), values.shape)
        frame = int(np.flatnonzero(time_steps(len(clip.frames), len(values)) == step)[0])
        when = "" if clip.times is None else f" at {clip.times[frame]:.2f} s,"
        note = (
            f"most similar:{when} cell {y},{x}, cosine {values.max():.3f} "
            f"(mean of all cells {values.mean():.3f})"
        )
        keys.append(replace(_strip(clip, values, note, most), name=f"key: {clip.path}"))
    return [first, *_joined(keys, most)]


def describe_grid(clip: SeenClip, shape: Sequence[int]) -> str:
    """Describe the clips, and the number and size of the cells of features (t, h, w)."""
    (frames, height, width), (t, h, w) = clip.frames.shape[:3], shape
    clips, step = (f"{n:g} frame{'s' * (n != 1)}" for n in (frames, frames / t))
    return (
        f"clips of {clips} with {height} x {width} pixels; {t} x {h} x {w} cells (time, rows, "
        f"columns), each of {step} and {height / h:g} x {width / w:g} pixels"
    )


def _strip(clip: SeenClip, values: np.ndarray, note: str, most: int) -> MapStrip:
    """Return a strip of at most ``most`` frames of a clip, with the values of their cells."""
    clip, values = without_image_time(clip, values)
    chosen = chosen_frames(len(clip.frames), most)
    times = None if clip.times is None else clip.times[chosen]
    maps = values[time_steps(len(clip.frames), len(values))[chosen]]
    return MapStrip(clip.path, note, clip.frames[chosen], times, maps)


def _joined(strips: list[MapStrip], most: int) -> list[MapStrip]:
    """Join one-frame clips into a single strip, and number the names of longer clips."""
    if len(strips) == 1:
        return strips
    if any(len(strip.frames) > 1 or strip.times is None for strip in strips):
        return [
            replace(strip, name=f"{strip.name}, clip {i} of {len(strips)}")
            for i, strip in enumerate(strips, 1)
        ]
    chosen = chosen_frames(len(strips), most)
    frames, times, maps = (
        np.concatenate([getattr(strip, name) for strip in strips])[chosen]
        for name in ("frames", "times", "maps")
    )
    note = f"{len(strips)} clips of one frame. First clip: {strips[0].note}"
    return [replace(strips[0], note=note, frames=frames, times=times, maps=maps)]
