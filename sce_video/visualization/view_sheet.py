"""The view sheet of a page: where the views of some training videos lie, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.config import Config

from sce_video.datasets import TooManyBadFilesError, VideoDecodeError
from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.visualization.clip_images import Quality, Strip, fitting, make_strip
from sce_video.visualization.gallery import format_duration
from sce_video.visualization.page_parts import Part, render_part, sentence_part
from sce_video.visualization.training_views import TrainingViews, training_views

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
    strips = fitting(rows, lambda item, quality: _strip(*item, quality), _LEVELS, max_bytes)
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


def _strip(video: TrainingViews, view: int, quality: Quality) -> Strip:
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
