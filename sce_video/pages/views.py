"""Sheets of augmented views: the network's input and the transforms that were applied."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mmengine.config import Config
from torch import Tensor

from sce_video.datasets import TooManyBadFilesError, VideoDecodeError
from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.samplers import SampleRequest, mix_seed
from sce_video.datasets.video_dataset import SampleOrigin
from sce_video.models.augmentation import ViewParameters, planned_operations
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.pages.frames import Quality, Strip, fitting, make_strip
from sce_video.pages.gallery import format_duration
from sce_video.pages.neighbour_rows import label_name
from sce_video.pages.parts import Part, render_part, sentence_part
from sce_video.registry import DATASETS, FUNCTIONS, MODELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    for name, samples in planned_operations(parameters):
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


class TrainingViews(NamedTuple):
    """The views of one training sample.

    Attributes:
        name: Folder and name of the file.
        label: Name of the class; None for no label.
        kind: ``video`` or ``image``.
        origin: Time line, clips and crops.
        rows: One of each view.
        num_local: The last of the rows that are local views.
    """

    name: str
    label: str | None
    kind: str
    origin: SampleOrigin
    rows: list[ViewRow]
    num_local: int = 0


def build_preprocessor(cfg: Config) -> VideoDataPreprocessor:
    """The data preprocessor of the model, or of the top level of the config, as in the runner.

    Raises:
        ValueError: The config has none, or one of another class.
    """
    config = (cfg.get("model") or {}).get("data_preprocessor") or cfg.get("data_preprocessor")
    if config is None:
        raise ValueError(f"{cfg.filename} has no data_preprocessor: add a base of _base_/views/")
    preprocessor = MODELS.build(config)
    if not isinstance(preprocessor, VideoDataPreprocessor):
        raise ValueError(f"data_preprocessor must be a VideoDataPreprocessor, got {config['type']}")
    return preprocessor


def training_views(
    cfg: Config, num: int, seed: int = 0
) -> tuple[list[TrainingViews], list[tuple[str, str]]]:
    """The views of ``num`` videos at equal steps through the training set, or of all if fewer.

    Pipeline, collation and augmentation are those of training.

    Args:
        cfg: A config with ``train_dataloader`` and ``data_preprocessor``.
        num: Videos or images.
        seed: Of clips, crops and augmentation.

    Returns:
        The views, and (path, reason) of files that could not be read; as in training they are
        replaced by others, or left out.

    Raises:
        ValueError: The config has no training views, or no file can be read.
    """
    if cfg.get("train_dataloader") is None:
        raise ValueError(f"{cfg.filename} has no train_dataloader: there are no training views")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = build_preprocessor(cfg)
    indices = np.linspace(0, len(dataset) - 1, min(num, len(dataset))).round().astype(int).tolist()
    samples = [dataset[SampleRequest(index, mix_seed(seed, index))] for index in indices]
    failures = list(dict.fromkeys(f for sample in samples for f in sample["failures"]))
    samples = [sample for sample in samples if sample.get("inputs") is not None]
    if not samples:
        path, reason = failures[0]
        raise ValueError(f"none of {len(indices)} {dataset.kind}s can be read; {path}: {reason}")
    collate = cfg.train_dataloader.get("collate_fn", dict(type="sce_video.collate_views"))
    batch = FUNCTIONS.get(collate["type"])(samples)
    # A replacement of a bad file has another index than its request.
    origins = [dataset.origin(SampleRequest(s["index"], s["seed"])) for s in samples]
    clips = [origin.clips for origin in origins]
    names = ["/".join(Path(dataset.path(s["index"])).parts[-2:]) for s in samples]
    rows = view_rows(preprocessor, batch, names, clips if all(clips) else [])
    num_views = len(rows) // len(samples)
    classes = (getattr(dataset, "metainfo", None) or {}).get("classes") or ()
    views = [
        TrainingViews(
            name=names[i],
            label=label_name(samples[i]["label"], classes),
            kind=dataset.kind,
            origin=origins[i],
            rows=rows[i * num_views : (i + 1) * num_views],
            num_local=dataset.num_local_views,
        )
        for i in range(len(samples))
    ]
    return views, failures


_ID, _TITLE = "views", "What the network sees"
#: Frames of the network's size where they fit, so that the sheet shows just its input.
_LEVELS = (
    Quality(160, 85, 16),
    Quality(112, 80, 16),
    Quality(96, 70, 12),
    Quality(64, 60, 8),
    Quality(48, 50, 8),
)
#: Height of the largest view on the page, CSS pixels; smaller views are smaller in proportion.
_SHOWN_HEIGHT = 104
_AXIS_LABELS = 5
_EXPECTED = (ValueError, OSError, ImportError, VideoDecodeError, TooManyBadFilesError)


def view_sheet(cfg: Config, num: int = 4, seed: int = 0, max_bytes: int = 1_000_000) -> Part:
    """The views of some training videos on their time lines, and as frames that play on hover.

    Args:
        cfg: Config of a training.
        num: Videos, at equal steps through the training set.
        seed: Of clips, crops and augmentation.
        max_bytes: Of all images together.

    Returns:
        The part; one with a sentence if the config has no views or no file can be read.
    """
    try:
        videos, failures = training_views(cfg, num, seed)
    except Exception as error:  # the config may be anybody's: its steps can raise anything
        reason = str(error) if isinstance(error, _EXPECTED) else f"{type(error).__name__}: {error}"
        return sentence_part(_ID, _TITLE, f"There are no views to show: {reason}")
    return draw_views(videos, failures, max_bytes)


def draw_views(
    videos: Sequence[TrainingViews],
    failures: Sequence[tuple[str, str]] = (),
    max_bytes: int = 1_000_000,
) -> Part:
    """The part of views that were made already, see :func:`view_sheet`.

    Args:
        videos: At least one.
        failures: (path, reason) of files that could not be read.
        max_bytes: Of all images together.
    """
    rows = [(video, v) for video in videos for v in range(len(video.rows))]
    strips = fitting(
        rows, lambda item, quality: _strip_view_sheet(*item, quality), _LEVELS, max_bytes
    )
    tallest = max(row.frames.shape[1] for video in videos for row in video.rows)
    cards, taken = [], 0
    for video in videos:
        own = strips[taken : taken + len(video.rows)]
        taken += len(own)
        cards.append(_card(video, own, tallest))
    values = {
        "videos": cards,
        "kind": videos[0].kind,
        "frame_size": _sizes(videos),
        "failures": failures,
        "left_out": sum(not strip.uri for strip in strips),
    }
    return render_part(_ID, _TITLE, "view_sheet.html", values)


def _sizes(videos: Sequence[TrainingViews]) -> str:
    """Sizes of the views, ``4 frames of 64x64``, in order, each once."""
    shapes = dict.fromkeys(row.frames.shape[:3] for video in videos for row in video.rows)
    return ", ".join(f"{t} frame{'s' if t > 1 else ''} of {h}x{w}" for t, h, w in shapes)


def _strip_view_sheet(video: TrainingViews, view: int, quality: Quality) -> Strip:
    frames = np.rint(255 * video.rows[view].frames).astype(np.uint8)
    clips = video.origin.clips
    return make_strip(list(frames), clips[view].clip_duration if clips else 0.0, quality)


def _card(video: TrainingViews, strips: Sequence[Strip], tallest: int) -> dict[str, Any]:
    """Template values of one video."""
    duration = video.origin.duration
    views = []
    for number, (row, strip) in enumerate(zip(video.rows, strips, strict=True)):
        frames, height, width = row.frames.shape[:3]
        shown = _SHOWN_HEIGHT * height / tallest
        name, _, applied = row.title.partition(": ")
        crops = video.origin.crops
        if crops and crops[number] < 0.995:
            crop = f"crop of {100 * crops[number]:.0f} % of the frame"
            applied = crop if applied == "nothing" else f"{crop}, {applied}"
        clips = video.origin.clips
        views.append(
            {
                "name": name,
                "local": number >= len(video.rows) - video.num_local,
                "applied": "unchanged" if applied == "nothing" else applied,
                "frames": frames,
                "strip": strip,
                "width": round(shown * width / height, 1),
                "height": round(shown, 1),
                "span": clip_span(clips[number], video.origin.timestamps, duration)
                if clips
                else None,
            }
        )
    return {
        "name": video.name,
        "label": video.label,
        "duration": format_duration(duration) if video.origin.clips else "",
        "views": views,
        "axis": axis_ticks(duration),
    }


def clip_span(clip: ClipIndices, timestamps: np.ndarray, duration: float) -> dict[str, Any]:
    """A clip on the time line of its video.

    Args:
        clip: Its frames index ``timestamps``.
        timestamps: (F,) seconds.
        duration: Of the video, seconds.

    Returns:
        ``start`` and ``end`` in seconds, inside the video; ``left`` and ``width`` in percent of the
        duration; ``ticks``, the time of each kept frame in seconds, in playing order, with
        ``tick_positions`` in percent; ``reversed``, ``difference``; ``longer``, whether the clip is
        longer than the video.
    """
    start = min(max(clip.start, 0.0), duration)
    end = min(max(clip.start + clip.clip_duration, start), duration)
    times = [float(timestamps[i]) for i in clip.frames]
    return {
        "start": start,
        "end": end,
        "left": _percent(start, duration),
        "width": _percent(end - start, duration),
        "ticks": times,
        "tick_positions": sorted({_percent(time, duration) for time in times}),
        "reversed": clip.reversed,
        "difference": clip.partners is not None,
        "longer": clip.clip_duration > duration + 1e-6,
    }


def axis_ticks(duration: float) -> list[tuple[str, float]]:
    """Labels of a time axis at round seconds, with their places in percent: at most six."""
    if duration <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(duration / _AXIS_LABELS))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor * _AXIS_LABELS >= duration)
    count = int(duration / step + 1e-6)
    return [(f"{i * step:g} s", _percent(i * step, duration)) for i in range(count + 1)]


def _percent(seconds: float, duration: float) -> float:
    return round(100 * seconds / duration, 3) if duration > 0 else 0.0
