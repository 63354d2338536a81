"""Sheets of augmented views: the input of the network, and the transforms that were applied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
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


class TrainingView(NamedTuple):
    """View of a training sample."""

    frames: np.ndarray  # (T, H, W, 3), with values from 0 to 1
    transforms: list[str]  # transforms in the order in which they were applied


def describe_parameters(parameters: ViewParameters, sample: int) -> list[str]:
    """List the transforms that were applied to a sample, such as ``hue +0.12`` and ``flip``."""
    factors, sigma = parameters.factors[sample], parameters.sigma[sample]
    texts = {
        "brightness": f"brightness x{factors[0]:.2f}",
        "contrast": f"contrast x{factors[1]:.2f}",
        "saturation": f"saturation x{factors[2]:.2f}",
        "hue": f"hue {factors[3]:+.2f}",
        "blur": f"blur {sigma:.2f} px",
    }
    done = [name for name, samples in planned_operations(parameters) if sample in samples]
    return [texts.get(name, name) for name in done]


def _augmented(
    preprocessor: VideoDataPreprocessor,
    batch: dict[str, Any],
    clips: Sequence[Sequence[ClipIndices]],
) -> list[list[TrainingView]]:
    """Run a training batch through the preprocessor, and return the views of each sample.

    Args:
        preprocessor: Preprocessor that augments the views.
        batch: Collated batch with ``seed``.
        clips: For each sample, the clip of each view; empty for an image.
    """
    views, samples = preprocessor.prepare_views(batch, training=True), len(batch["seed"])
    parameters = None
    if preprocessor.views:
        parameters = preprocessor.draw(samples, len(batch["inputs"]), batch["seed"])
    found: list[list[TrainingView]] = [[] for _ in range(samples)]
    for sample, number in product(range(samples), range(len(batch["inputs"]))):
        done = []
        if clips[sample]:
            clip = clips[sample][number]
            done += ["RGB differences"] * (clip.partners is not None)
            done += ["backwards"] * clip.reversed
        if parameters is not None:
            done += describe_parameters(parameters[number], sample)
        # Undo the normalisation. The statistics broadcast against (1, 3, T, H, W).
        view = views[number][sample][None] * preprocessor.std + preprocessor.mean
        frames = view[0].clamp(0.0, 1.0).permute(1, 2, 3, 0).cpu().numpy()
        found[sample].append(TrainingView(frames, done))
    return found


class TrainingViews(NamedTuple):
    """Views of a training sample."""

    name: str  # name of the file and its folder
    label: str | None  # class name; None if there is no label
    kind: str  # ``video`` or ``image``
    origin: SampleOrigin  # time line, clips and crops of the sample
    views: list[TrainingView]
    num_local: int = 0  # number of local views, which come last


def build_preprocessor(cfg: Config) -> VideoDataPreprocessor:
    """Build the data preprocessor in the model's config or at the top level, as the runner does.

    Raises:
        ValueError: If the config has no :class:`VideoDataPreprocessor`.
    """
    config: Any = at(cfg, "model.data_preprocessor") or at(cfg, "data_preprocessor")
    if config is None:
        raise ValueError(f"{cfg.filename} has no data_preprocessor. Add a base from _base_/views/")
    preprocessor = MODELS.build(config)
    if not isinstance(preprocessor, VideoDataPreprocessor):
        raise ValueError(f"data_preprocessor must be a VideoDataPreprocessor, got {config['type']}")
    return preprocessor


def training_views(
    cfg: Config, num: int, seed: int = 0
) -> tuple[list[TrainingViews], list[tuple[str, str]]]:
    """Return the views of some training videos, made by the same code as in training.

    Args:
        cfg: Config of the run.
        num: Largest number of videos, taken at equal steps from the training set.
        seed: Seed of clips, crops and augmentation.

    Returns:
        The views, and path and reason of each file that could not be read. As in training, such
        files are replaced by others or left out.

    Raises:
        ValueError: If the config has no training views, or no file can be read.
    """
    if at(cfg, "train_dataloader") is None:
        raise ValueError(f"{cfg.filename} has no train_dataloader, so there are no training views")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = build_preprocessor(cfg)
    indices = equal_steps(len(dataset), num).tolist()
    samples = [dataset[SampleRequest(index, mix_seed(seed, index))] for index in indices]
    failures = list(dict.fromkeys(f for sample in samples for f in sample["failures"]))
    samples = [sample for sample in samples if sample.get("inputs") is not None]
    if not samples:
        path, reason = failures[0]
        raise ValueError(
            f"none of {len(indices)} {dataset.kind}s can be read. The first is {path}: {reason}"
        )
    collate = at(cfg, "train_dataloader.collate_fn.type") or "sce_video.collate_views"
    batch = FUNCTIONS.get(collate)(samples)
    # A sample may replace a bad file, so use its own index instead of the requested one.
    origins = [dataset.origin(SampleRequest(s["index"], s["seed"])) for s in samples]
    views = _augmented(preprocessor, batch, [origin.clips for origin in origins])
    classes = at(getattr(dataset, "metainfo", None), "classes") or ()
    found = [
        TrainingViews(
            name="/".join(Path(dataset.path(sample["index"])).parts[-2:]),
            label=label_name(sample["label"], classes),
            kind=dataset.kind,
            origin=origin,
            views=own,
            num_local=dataset.num_local_views,
        )
        for sample, origin, own in zip(samples, origins, views, strict=True)
    ]
    return found, failures


_ID = "views"  # anchor of this part of the page
_TITLE = "What the network sees"
#: Possible heights in pixels, image qualities and numbers of frames, best first.
_SIZES = ((160, 85, 16), (112, 80, 16), (96, 70, 12), (64, 60, 8), (48, 50, 8))
_LEVELS = tuple(Quality(*size) for size in _SIZES)
#: Height of the largest view on the page in CSS pixels. All others are scaled equally.
_SHOWN_HEIGHT = 104
#: Maximum number of steps on a time axis.
_AXIS_LABELS = 5


def view_sheet(cfg: Config, num: int = 4, seed: int = 0, max_bytes: int = 1_000_000) -> Part:
    """Return the part that shows views of ``num`` training videos and where they were sampled.

    If the config has no views or no file can be read, the part is a sentence about the reason.
    """
    try:
        return draw_views(*training_views(cfg, num, seed), max_bytes)
    except Exception as error:  # an untrusted config can cause any error
        known = ValueError | OSError | ImportError | VideoDecodeError | TooManyBadFilesError
        reason = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
        return sentence_part(_ID, _TITLE, f"There are no views to show: {reason}")


def draw_views(
    videos: Sequence[TrainingViews],
    failures: Sequence[tuple[str, str]] = (),
    max_bytes: int = 1_000_000,
) -> Part:
    """Return the part that shows views from :func:`training_views`.

    Args:
        videos: Views of at least one sample.
        failures: Path and reason of each file that could not be read.
        max_bytes: Largest total size of all images in bytes.
    """

    def strip_of(item: tuple[TrainingViews, int], quality: Quality) -> Strip:
        video, view = item
        frames = np.rint(255 * video.views[view].frames).astype(np.uint8)
        clips = video.origin.clips
        return make_strip(list(frames), clips[view].clip_duration if clips else 0.0, quality)

    views = [(video, v) for video in videos for v in range(len(video.views))]
    strips = fitting(views, strip_of, _LEVELS, max_bytes)
    own = iter(strips)
    shapes = dict.fromkeys(video.views[v].frames.shape[:3] for video, v in views)
    tallest = max(height for _, height, _ in shapes)
    sizes = (f"{t} frame{'s' if t > 1 else ''} of {h}x{w}" for t, h, w in shapes)
    values = {
        "videos": [
            _shown_sample(video, [next(own) for _ in video.views], tallest) for video in videos
        ],
        "kind": videos[0].kind,
        "frame_size": ", ".join(sizes),
        "failures": failures,
        "left_out": sum(not strip.uri for strip in strips),
    }
    return render_part(_ID, _TITLE, "view_sheet.html", values)


class ClipSpan(NamedTuple):
    """Clip on the time line of its video. Places and widths are percent of the duration."""

    start: float  # in seconds
    end: float
    left: float
    width: float
    ticks: list[float]  # time of each frame in seconds, in playing order
    tick_positions: list[float]
    reversed: bool
    longer: bool  # whether the clip is longer than the video


class ShownView(NamedTuple):
    """View on the sheet."""

    name: str
    local: bool
    applied: str  # names of the applied transforms
    frames: int
    strip: Strip
    width: float  # in CSS pixels
    height: float
    span: ClipSpan | None  # None for an image


class ShownSample(NamedTuple):
    """Training sample on the sheet."""

    name: str
    label: str | None
    duration: str  # empty for an image
    views: list[ShownView]
    axis: list[tuple[str, float]]  # labels of the time axis, and their places in percent


def _shown_sample(video: TrainingViews, strips: Sequence[Strip], tallest: int) -> ShownSample:
    """Return what the sheet shows for a sample; ``tallest`` is the height of the tallest view."""
    duration, clips, crops = video.origin.duration, video.origin.clips, video.origin.crops
    views = []
    for number, (view, strip) in enumerate(zip(video.views, strips, strict=True)):
        frames, height, width = view.frames.shape[:3]
        shown = _SHOWN_HEIGHT * height / tallest
        done = view.transforms
        if crops and crops[number] < 0.995:
            done = [f"crop of {100 * crops[number]:.0f} % of the frame", *done]
        shown_view = ShownView(
            name=f"view {number}",
            local=number >= len(video.views) - video.num_local,
            applied=", ".join(done) or "unchanged",
            frames=frames,
            strip=strip,
            width=round(shown * width / height, 1),
            height=round(shown, 1),
            span=clip_span(clips[number], video.origin.timestamps, duration) if clips else None,
        )
        views.append(shown_view)
    shown_duration = format_duration(duration) if clips else ""
    return ShownSample(video.name, video.label, shown_duration, views, axis_ticks(duration))


def clip_span(clip: ClipIndices, timestamps: np.ndarray, duration: float) -> ClipSpan:
    """Place a clip on the time line of its video, whose frames have ``timestamps`` (F,)."""
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
    """Return at most six labels of a time axis at round times, with their places in percent."""
    if duration <= 0:
        return []
    step = 10.0 ** math.floor(math.log10(duration / _AXIS_LABELS))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor * _AXIS_LABELS >= duration)
    count = int(duration / step + 1e-6)
    return [(f"{i * step:g} s", _percent(i * step, duration)) for i in range(count + 1)]


def _percent(seconds: float, duration: float) -> float:
    return round(100 * seconds / duration, 3) if duration > 0 else 0.0
