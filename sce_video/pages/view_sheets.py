"""Sheets of augmented views: the network's input and the transforms that were applied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config

from sce_video.datasets.clip_sampling import ClipIndices, format_duration
from sce_video.datasets.readers.base import TooManyBadFilesError, VideoDecodeError
from sce_video.datasets.video_dataset import SampleOrigin, SampleRequest, mix_seed
from sce_video.models.augmentation import ViewParameters, planned_operations
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.pages.frames import (
    Quality,
    Strip,
    equal_steps,
    fitting,
    make_strip,
)
from sce_video.pages.parts import Part, label_name, render_part, sentence_part
from sce_video.registry import DATASETS, FUNCTIONS, MODELS
from sce_video.utils.records import at


class ViewRow(NamedTuple):
    """One row of the sheet."""

    frames: np.ndarray  # (T, H, W, 3) in 0..1
    title: str  # applied transforms
    heading: str = ""  # bold line above the first row of a video


def describe_parameters(parameters: ViewParameters, sample: int) -> str:
    """Describe the transforms that were applied to one sample, in order of application.

    For example, ``hue +0.12, brightness x0.64, grey, blur 1.32 px, flip``; empty without any.
    """
    factors, sigma = parameters.factors[sample], parameters.sigma[sample]
    texts = {
        "brightness": f"brightness x{factors[0]:.2f}",
        "contrast": f"contrast x{factors[1]:.2f}",
        "saturation": f"saturation x{factors[2]:.2f}",
        "hue": f"hue {factors[3]:+.2f}",
        "blur": f"blur {sigma:.2f} px",
    }
    done = [name for name, samples in planned_operations(parameters) if sample in samples]
    return ", ".join(texts.get(name, name) for name in done)


def view_rows(
    preprocessor: VideoDataPreprocessor,
    batch: dict[str, Any],
    names: Sequence[str],
    clips: Sequence[Sequence[ClipIndices]] = (),
) -> list[ViewRow]:
    """Run a training batch through the preprocessor: one row per view of every sample.

    Args:
        preprocessor: Preprocessor that augments the views. The parameters it draws become titles.
        batch: Collated batch with ``seed``.
        names: Heading of each sample, for example the file name.
        clips: Clip of each view of each sample. The titles mark RGB differences and reversed clips.
    """
    N, V = len(batch["seed"]), len(batch["inputs"])
    views = preprocessor.prepare_views(batch, training=True)
    parameters = preprocessor.draw(N, V, batch["seed"]) if preprocessor.views else None
    rows = []
    for i in range(N):
        for v in range(V):
            done = []
            if clips and clips[i][v].partners is not None:
                done.append("RGB differences")
            if clips and clips[i][v].reversed:
                done.append("backwards")
            if parameters and (text := describe_parameters(parameters[v], i)):
                done.append(text)
            # (3, T, H, W), normalised, against statistics that broadcast to (1, 3, T, H, W).
            view = (views[v][i][None] * preprocessor.std + preprocessor.mean)[0].clamp(0.0, 1.0)
            frames = view.permute(1, 2, 3, 0).cpu().numpy()
            title = f"view {v}: {', '.join(done) or 'nothing'}"
            rows.append(ViewRow(frames, title, "" if v else names[i]))
    return rows


class TrainingViews(NamedTuple):
    """The views of one training sample."""

    name: str  # folder and name of the file
    label: str | None  # name of the class; None for no label
    kind: str  # ``video`` or ``image``
    origin: SampleOrigin  # time line, clips and crops
    rows: list[ViewRow]  # one row per view
    num_local: int = 0  # number of local views, which are the last rows


def build_preprocessor(cfg: Config) -> VideoDataPreprocessor:
    """Build the data preprocessor of the model or of the config's top level, like the runner.

    Raises:
        ValueError: If the config has no preprocessor or one that is not a
            :class:`VideoDataPreprocessor`.
    """
    config: Any = at(cfg, "model.data_preprocessor") or cfg.get("data_preprocessor")
    if config is None:
        raise ValueError(f"{cfg.filename} has no data_preprocessor: add a base of _base_/views/")
    preprocessor = MODELS.build(config)
    if not isinstance(preprocessor, VideoDataPreprocessor):
        raise ValueError(f"data_preprocessor must be a VideoDataPreprocessor, got {config['type']}")
    return preprocessor


def training_views(
    cfg: Config, num: int, seed: int = 0
) -> tuple[list[TrainingViews], list[tuple[str, str]]]:
    """Return the views of at most ``num`` videos at equal steps through the training set.

    Pipeline, collation and augmentation equal training. ``seed`` decides clips, crops and
    augmentation. A config without training views, or without a readable file, raises ValueError.

    Returns:
        The views, and (path, reason) of files that could not be read. As in training, such files
        are replaced by others or left out.
    """
    if cfg.get("train_dataloader") is None:
        raise ValueError(f"{cfg.filename} has no train_dataloader: there are no training views")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = build_preprocessor(cfg)
    indices = equal_steps(len(dataset), num).tolist()
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


_ID = "views"  # anchor of this part of the page
_TITLE = "What the network sees"
#: Frames of the network's size if they fit, so that the sheet shows exactly its input.
_SIZES = ((160, 85, 16), (112, 80, 16), (96, 70, 12), (64, 60, 8), (48, 50, 8))
_LEVELS = tuple(Quality(*size) for size in _SIZES)
#: Height of the largest view on the page, CSS pixels; smaller views are smaller in proportion.
_SHOWN_HEIGHT = 104
#: Maximum number of steps on a time axis.
_AXIS_LABELS = 5


def view_sheet(cfg: Config, num: int = 4, seed: int = 0, max_bytes: int = 1_000_000) -> Part:
    """Return the views of ``num`` training videos on time lines, and as frames that play on hover.

    The part is a sentence if the run's config has no views or no file can be read.
    """
    try:
        return draw_views(*training_views(cfg, num, seed), max_bytes)
    except Exception as error:  # the config may be untrusted, so its steps can raise any error
        known = ValueError | OSError | ImportError | VideoDecodeError | TooManyBadFilesError
        reason = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
        return sentence_part(_ID, _TITLE, f"There are no views to show: {reason}")


def draw_views(
    videos: Sequence[TrainingViews],
    failures: Sequence[tuple[str, str]] = (),
    max_bytes: int = 1_000_000,
) -> Part:
    """Return the part of views that were made already, see :func:`view_sheet`.

    ``failures`` are (path, reason) of files that could not be read.
    """

    def strip_of(item: tuple[TrainingViews, int], quality: Quality) -> Strip:
        video, view = item
        frames = np.rint(255 * video.rows[view].frames).astype(np.uint8)
        clips = video.origin.clips
        return make_strip(list(frames), clips[view].clip_duration if clips else 0.0, quality)

    views = [(video, v) for video in videos for v in range(len(video.rows))]
    strips = fitting(views, strip_of, _LEVELS, max_bytes)
    own = iter(strips)
    shapes = dict.fromkeys(video.rows[v].frames.shape[:3] for video, v in views)
    tallest = max(height for _, height, _ in shapes)
    sizes = (f"{t} frame{'s' if t > 1 else ''} of {h}x{w}" for t, h, w in shapes)
    values = {
        "videos": [
            _shown_sample(video, [next(own) for _ in video.rows], tallest) for video in videos
        ],
        "kind": videos[0].kind,
        "frame_size": ", ".join(sizes),
        "failures": failures,
        "left_out": sum(not strip.uri for strip in strips),
    }
    return render_part(_ID, _TITLE, "view_sheet.html", values)


class ClipSpan(NamedTuple):
    """A clip on the time line of its video. Places and widths are percent of its duration."""

    start: float  # seconds, inside the video
    end: float
    left: float
    width: float
    ticks: list[float]  # time of each kept frame in seconds, in playing order
    tick_positions: list[float]
    reversed: bool
    longer: bool  # whether the clip is longer than the video


class ShownView(NamedTuple):
    """A view on the sheet."""

    name: str
    local: bool
    applied: str  # transforms
    frames: int
    strip: Strip
    width: float  # CSS pixels
    height: float
    span: ClipSpan | None  # None for an image


class ShownSample(NamedTuple):
    """A training sample on the sheet."""

    name: str
    label: str | None
    duration: str  # empty for an image
    views: list[ShownView]
    axis: list[tuple[str, float]]  # labels of the time axis and their places, percent


def _shown_sample(video: TrainingViews, strips: Sequence[Strip], tallest: int) -> ShownSample:
    duration, clips, crops = video.origin.duration, video.origin.clips, video.origin.crops
    views = []
    for number, (row, strip) in enumerate(zip(video.rows, strips, strict=True)):
        frames, height, width = row.frames.shape[:3]
        shown = _SHOWN_HEIGHT * height / tallest
        name, _, applied = row.title.partition(": ")
        if crops and crops[number] < 0.995:
            crop = f"crop of {100 * crops[number]:.0f} % of the frame"
            applied = crop if applied == "nothing" else f"{crop}, {applied}"
        view = ShownView(
            name=name,
            local=number >= len(video.rows) - video.num_local,
            applied="unchanged" if applied == "nothing" else applied,
            frames=frames,
            strip=strip,
            width=round(shown * width / height, 1),
            height=round(shown, 1),
            span=clip_span(clips[number], video.origin.timestamps, duration) if clips else None,
        )
        views.append(view)
    shown_duration = format_duration(duration) if clips else ""
    return ShownSample(video.name, video.label, shown_duration, views, axis_ticks(duration))


def clip_span(clip: ClipIndices, timestamps: np.ndarray, duration: float) -> ClipSpan:
    """Place a clip, whose frames index ``timestamps`` (F,), on the time line of its video."""
    start = min(max(clip.start, 0.0), duration)
    end = min(max(clip.start + clip.clip_duration, start), duration)
    times = [float(timestamps[i]) for i in clip.frames]
    return ClipSpan(
        start=start,
        end=end,
        left=_percent(start, duration),
        width=_percent(end - start, duration),
        ticks=times,
        tick_positions=sorted({_percent(time, duration) for time in times}),
        reversed=clip.reversed,
        longer=clip.clip_duration > duration + 1e-6,
    )


def axis_ticks(duration: float) -> list[tuple[str, float]]:
    """Return labels of a time axis at round seconds, with their places in percent: at most six."""
    if duration <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(duration / _AXIS_LABELS))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor * _AXIS_LABELS >= duration)
    count = int(duration / step + 1e-6)
    return [(f"{i * step:g} s", _percent(i * step, duration)) for i in range(count + 1)]


def _percent(seconds: float, duration: float) -> float:
    return round(100 * seconds / duration, 3) if duration > 0 else 0.0
