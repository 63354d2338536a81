"""DecodedFrames of augmented views: what the network sees, and what was done to it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from sce_video.models.augmentation import ViewParameters, plan
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor

_CELL = 1.25  # width of a frame, inches; up to twice that where there are few
_MARGIN = 0.15
_LINE = 0.15  # height of a line of small text
_HEADING = 0.34
_GAP = 0.03  # between frames, as a share of a frame's width
_MIN_WIDTH = 7.0
_PAPER = 0.92  # grey, so that a white frame has an edge
_CHARACTERS_PER_INCH = 15.0


class ViewRow(NamedTuple):
    """One row of the sheet."""

    frames: np.ndarray
    """(T, H, W, 3) in 0..1."""
    title: str
    """What was applied; may be long, is wrapped."""
    heading: str = ""
    """Stands above the row in bold, where a new video begins."""


def describe_parameters(parameters: ViewParameters, sample: int) -> str:
    """What was applied to one sample, in the order it was applied.

    For example ``hue +0.12, brightness x0.64, grey, blur 1.32 px, flip``.
    """
    column = {"brightness": 0, "contrast": 1, "saturation": 2}
    words = []
    for name, samples in plan(parameters):
        if sample not in samples:
            continue
        if name in column:
            words.append(f"{name} x{parameters.factors[sample, column[name]]:.2f}")
        elif name == "hue":
            words.append(f"hue {parameters.factors[sample, 3]:+.2f}")
        elif name == "blur":
            words.append(f"blur {parameters.sigma[sample]:.2f} px")
        else:
            words.append(name)
    return ", ".join(words) if words else "nothing"


def denormalise(view: Tensor, mean: Tensor, std: Tensor) -> np.ndarray:
    """A sample's view (3, T, H, W) as the network gets it, back to (T, H, W, 3) in 0..1.

    ``mean`` and ``std`` broadcast against (1, 3, T, H, W), as those of the data preprocessor do.
    """
    frames = (view[None] * std + mean)[0].clamp(0.0, 1.0)
    return frames.permute(1, 2, 3, 0).cpu().numpy()


def view_rows(
    preprocessor: VideoDataPreprocessor, batch: dict[str, Any], names: Sequence[str] = ()
) -> list[ViewRow]:
    """Run a training batch through the preprocessor: one row per view of every sample.

    Args:
        preprocessor: Its drawn parameters become the titles.
        batch: As collated, with ``seed``.
        names: Heading of each sample, for example the file's name.

    Raises:
        ValueError: The batch has no seeds, or not as many samples as names.
    """
    if "seed" not in batch:
        raise ValueError("the batch has no `seed`: what is drawn could not be told afterwards")
    N, V = len(batch["seed"]), len(batch["inputs"])
    if names and len(names) != N:
        raise ValueError(f"{len(names)} names for {N} samples")
    views = preprocessor(batch, training=True)["inputs"]
    parameters = preprocessor.draw(N, V, batch["seed"]) if preprocessor.views else None
    rows = []
    for i in range(N):
        for v in range(V):
            applied = describe_parameters(parameters[v], i) if parameters else "nothing"
            frames = denormalise(views[v][i], preprocessor.mean, preprocessor.std)
            heading = names[i] if names and v == 0 else ""
            rows.append(ViewRow(frames, f"view {v}: {applied}", heading))
    return rows


def draw_view_sheet(rows: Sequence[ViewRow], max_frames: int = 8) -> Figure:
    """A sheet with a row per view and a column per frame; save it with ``figure.savefig(path)``.

    Args:
        rows: From :func:`view_rows`.
        max_frames: Of a longer view this many are shown, at equal steps from first to last.

    Raises:
        ValueError: There is no row, or ``max_frames`` is not positive.
    """
    if not rows:
        raise ValueError("there is no view to draw")
    if max_frames < 1:
        raise ValueError(f"max_frames must be at least 1, got {max_frames}")
    strips = [_strip(row.frames, max_frames) for row in rows]
    columns = max(min(max_frames, len(row.frames)) for row in rows)
    cell = max(_CELL, min(2 * _CELL, (_MIN_WIDTH - 2 * _MARGIN) / columns))
    width = max(_MIN_WIDTH, columns * cell + 2 * _MARGIN)
    letters = int((width - 2 * _MARGIN) * _CHARACTERS_PER_INCH)
    titles = [textwrap.wrap(row.title, letters) for row in rows]
    # Frames of all sizes are shown equally wide.
    scales = [cell / (row.frames.shape[2] * (1 + _GAP)) for row in rows]  # inches per pixel
    height = 2 * _MARGIN
    for row, strip, lines, scale in zip(rows, strips, titles, scales, strict=True):
        height += strip.shape[0] * scale + _LINE * (len(lines) + 1) + _HEADING * bool(row.heading)

    figure = Figure(figsize=(width, height), dpi=120, facecolor=str(_PAPER))
    top = _MARGIN
    for row, strip, lines, scale in zip(rows, strips, titles, scales, strict=True):
        if row.heading:
            top += _HEADING
            _text(figure, top - 0.06, row.heading, dict(fontsize=9, weight="bold", va="bottom"))
        _text(figure, top, "\n".join(lines), dict(fontsize=7, color="#333333", va="top"))
        top += _LINE * len(lines)
        tall, long = strip.shape[0] * scale, strip.shape[1] * scale
        box = (_MARGIN / width, 1 - (top + tall) / height, long / width, tall / height)
        axes = figure.add_axes(box)
        axes.imshow(strip, aspect="auto", interpolation="nearest", vmin=0.0, vmax=1.0)
        axes.set_axis_off()
        top += tall + _LINE
    return figure


def _strip(frames: np.ndarray, max_frames: int) -> np.ndarray:
    """(T, H, W, 3) side by side with gaps, (H, about T * W, 3)."""
    shown = np.linspace(0, len(frames) - 1, min(max_frames, len(frames))).round().astype(int)
    gap_shape = (frames.shape[1], max(1, round(_GAP * frames.shape[2])), 3)
    gap = np.full(gap_shape, _PAPER, frames.dtype)
    parts = [part for t in shown for part in (frames[t], gap)]
    return np.concatenate(parts[:-1], axis=1)


def _text(figure: Figure, top: float, text: str, style: dict[str, Any]) -> None:
    """Text at the left margin, ``top`` inches below the figure's upper edge."""
    width, height = figure.get_size_inches()
    figure.text(_MARGIN / width, 1 - top / height, text, **style)
