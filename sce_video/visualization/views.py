"""Sheets of augmented views: the network's input and the transforms that were applied."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.models.augmentation import ViewParameters, plan
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # imported where it is used: a slow import

_CELL = 1.25  # width of a frame, inches; up to twice that if there are few
_MARGIN = 0.15
_LINE = 0.15  # height of a line of small text
_HEADING = 0.34
_GAP = 0.03  # between frames, as a fraction of a frame's width
_MIN_WIDTH = 7.0
_PAPER = 0.92  # grey background, so that the edge of a white frame is visible
_CHARACTERS_PER_INCH = 15.0


class ViewRow(NamedTuple):
    """One row of the sheet."""

    frames: np.ndarray
    """(T, H, W, 3) in 0..1."""
    title: str
    """Applied transforms; long titles are wrapped."""
    heading: str = ""
    """Bold line above the first row of a video."""


def describe_parameters(parameters: ViewParameters, sample: int) -> str:
    """Transforms applied to one sample, in order of application.

    For example ``hue +0.12, brightness x0.64, grey, blur 1.32 px, flip``; empty if there are none.
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
    return ", ".join(words)


def denormalise(view: Tensor, mean: Tensor, std: Tensor) -> np.ndarray:
    """The frames (T, H, W, 3) in 0..1 of a normalised view (3, T, H, W).

    ``mean`` and ``std`` broadcast against (1, 3, T, H, W), as in the data preprocessor.
    """
    frames = (view[None] * std + mean)[0].clamp(0.0, 1.0)
    return frames.permute(1, 2, 3, 0).cpu().numpy()


def describe_clip(clip: ClipIndices) -> str:
    """What the network sees instead of the frames in their order; empty for just these."""
    words = ["RGB differences"] * (clip.partners is not None) + ["backwards"] * clip.reversed
    return ", ".join(words)


def view_rows(
    preprocessor: VideoDataPreprocessor,
    batch: dict[str, Any],
    names: Sequence[str] = (),
    clips: Sequence[Sequence[ClipIndices]] = (),
) -> list[ViewRow]:
    """Run a training batch through the preprocessor: one row per view of every sample.

    Args:
        preprocessor: Augments the views; the parameters it draws become the titles.
        batch: A collated batch with ``seed``.
        names: Heading of each sample, for example the file name.
        clips: The clip of each view of each sample: RGB differences and clips that play backwards
            are named in the titles.

    Raises:
        ValueError: The batch has no seeds, or the number of names is not that of the samples.
    """
    if "seed" not in batch:
        raise ValueError("the batch has no `seed`: the drawn parameters cannot be reproduced")
    N, V = len(batch["seed"]), len(batch["inputs"])
    if names and len(names) != N:
        raise ValueError(f"{len(names)} names for {N} samples")
    views = preprocessor.prepare_views(batch, training=True)
    parameters = preprocessor.draw(N, V, batch["seed"]) if preprocessor.views else None
    rows = []
    for i in range(N):
        for v in range(V):
            done = [describe_clip(clips[i][v]) if clips else ""]
            done.append(describe_parameters(parameters[v], i) if parameters else "")
            frames = denormalise(views[v][i], preprocessor.mean, preprocessor.std)
            heading = names[i] if names and v == 0 else ""
            applied = ", ".join(filter(None, done)) or "nothing"
            rows.append(ViewRow(frames, f"view {v}: {applied}", heading))
    return rows


def draw_view_sheet(rows: Sequence[ViewRow], max_frames: int = 8) -> Figure:
    """A sheet with a row per view and a column per frame; save it with ``save_figure``.

    Args:
        rows: From :func:`view_rows`.
        max_frames: A longer view shows this many frames, at equal steps from first to last.

    Raises:
        ValueError: There is no row, or ``max_frames`` is not positive.
    """
    from matplotlib.figure import Figure  # imported here: a slow import

    if not rows:
        raise ValueError("there is no view to draw")
    if max_frames < 1:
        raise ValueError(f"max_frames must be at least 1, got {max_frames}")
    strips = [_strip(row.frames, max_frames) for row in rows]
    columns = max(min(max_frames, len(row.frames)) for row in rows)
    cell = max(_CELL, min(2 * _CELL, (_MIN_WIDTH - 2 * _MARGIN) / columns))
    width = max(_MIN_WIDTH, columns * cell + 2 * _MARGIN)
    characters = int((width - 2 * _MARGIN) * _CHARACTERS_PER_INCH)
    titles = [textwrap.wrap(row.title, characters) for row in rows]
    # Frames of all sizes are drawn with the same width.
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
