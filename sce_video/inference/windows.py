"""Features of the windows of a long video, in one ordered pass over its frames.

Frames are dropped when no further window needs them, so memory depends only on the windows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sce_video.datasets.clip_sampling import (
    ClipIndices,
    Windows,
    clips_of_span,
    window_spans,
)
from sce_video.datasets.pipeline import PackedSample, PipelineResults
from sce_video.datasets.readers import VideoReader
from sce_video.datasets.readers.base import ArrayFrames, VideoDecodeError
from sce_video.datasets.sources import open_video
from sce_video.datasets.transforms.lazy_view import LazyView
from sce_video.inference.features import Features
from sce_video.inference.network_input import (
    VideoNetwork,
    ViewOptions,
    embed_sample,
    pack_step,
    resize_steps,
)

#: Minimum fraction of a window's frames that must exist. In a damaged file, missing frames are
#: replaced by the nearest ones.
_FRACTION_NEEDED = 0.75
#: Maximum number of seconds by which a video may be shorter than its container states, because
#: durations are rounded.
_CUT_OFF = 0.5
# Settings of find_cuts, which compares the frames' colour histograms. We chose them by hand.
#: Side in pixels to which a frame is downscaled before its colours are counted.
_SIDE = 32
#: Number of histogram bins per colour channel.
_BINS = 8
#: Smallest change at a cut: the fraction of colours that change, computed as half the L1 distance
#: of two histograms.
_LEAST_CHANGE = 0.3
#: Smallest ratio of the change at a cut to the changes between the frames around it.
_LEAST_RATIO = 3.0
#: Number of frames on either side of a cut for this comparison.
_AROUND = 6
#: Minimum duration of a shot in seconds.
_SHORTEST_SHOT = 0.5


def embed_windows(
    network: VideoNetwork, path: str | os.PathLike, windows: Windows, options: ViewOptions
) -> Features:
    """Compute the features of the windows of a file, a URL or a row of a table.

    The feature of a window is bit-identical to the feature of a video with only its frames. In
    damaged files, missing frames are replaced by their neighbours. Windows with more than a quarter
    of their frames missing are left out, and ``incomplete`` has the reason.

    Raises:
        VideoDecodeError: If no window can be decoded, or decoding stops for ``options.timeout``.
    """
    name = os.fspath(path)
    cuts = None
    if windows.shots:  # in a separate pass, because spans must be known before the first frame
        with open_patiently(name, options) as reader:
            cuts = find_cuts(reader, options.timeout)
    with open_patiently(name, options) as reader:
        spans = window_spans(reader.duration, windows, cuts)
        return windows_of_reader(network, reader, spans, options)


def find_cuts(reader: VideoReader, patience: float | None = None) -> np.ndarray:
    """Return the start of every shot after the first, in seconds.

    Every frame is decoded. A cut is a change of the colour histogram that is large, and far larger
    than the changes around it. Dissolves and fades are not found. ``patience`` limits the seconds
    for decoding the next frame. VideoDecodeError is raised if it cannot be decoded.
    """
    import cv2

    times: list[float] = []
    found: list[float] = []  # half the L1 distance of each frame's histogram to the next
    before = None
    for numbers, frames in reader.stream(np.arange(len(reader.timestamps)), patience):
        times += reader.timestamps[numbers].tolist()
        for i in range(len(frames)):
            small = cv2.resize(frames[i], (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
            bins = small.reshape(-1, 3).astype(np.int64) * _BINS // 256
            colours = (bins[:, 0] * _BINS + bins[:, 1]) * _BINS + bins[:, 2]
            shares = np.bincount(colours, minlength=_BINS**3).astype(np.float32) / len(colours)
            if before is not None:
                found.append(float(np.abs(shares - before).sum() / 2))
            before = shares
    cuts, changes = [0.0], np.array(found)
    for i in np.flatnonzero(changes >= _LEAST_CHANGE).tolist():
        earlier, later = changes[max(0, i - _AROUND) : i], changes[i + 1 :][:_AROUND]
        around = np.concatenate([earlier, later])
        usual = float(np.median(around)) if len(around) else 0.0
        if changes[i] >= _LEAST_RATIO * usual and times[i + 1] - cuts[-1] >= _SHORTEST_SHOT:
            cuts.append(times[i + 1])
    return np.array(cuts[1:])


def embed_span(
    network: VideoNetwork, path: str, start: float, end: float, options: ViewOptions
) -> np.ndarray:
    """Decode only the moment ``[start, end)`` of a video, and compute its feature (D,).

    Raises:
        VideoDecodeError: If the moment cannot be decoded.
        ValueError: If the video ends before ``start``.
    """
    with open_patiently(path, options) as reader:
        if start >= reader.duration:
            raise ValueError(
                f"{path} ends at {reader.duration:.2f} s, before the moment {start:g}-{end:g}"
            )
        span = np.array([[start, min(end, reader.duration)]])
        found = windows_of_reader(network, reader, span, options)
    return found.values[0]


def open_patiently(path: str, options: ViewOptions) -> VideoReader:
    """Open a reader whose time limit applies only to opening."""
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    return open_video(path, deadline=deadline)


def windows_of_reader(
    network: VideoNetwork, reader: VideoReader, spans: np.ndarray, options: ViewOptions
) -> Features:
    """Compute features of windows with these spans. Errors are as in :func:`embed_windows`."""
    # Allocate one array at the beginning. If every window allocated a small block between the
    # network's large blocks, malloc could not reuse the large ones.
    features = np.empty((len(spans), network.row_size), dtype=np.float32)
    kept = np.zeros(len(spans), dtype=bool)
    for i, sample in enumerate(pack_windows(network, reader, spans, options)):
        if sample is not None:
            name = f"{reader.path} at {spans[i, 0]:g} s"
            features[i] = embed_sample(network, sample, options, name)
            kept[i] = True
    if not kept.any():
        raise VideoDecodeError(reader.path, "no frame can be decoded")
    reasons = []
    if not kept.all():
        reasons.append(
            f"{(~kept).sum()} of {len(spans)} windows cannot be decoded, because the file is "
            f"damaged; the first of them begins at {spans[~kept][0, 0]:.2f} s"
        )
    if reader.damaged:
        reasons.append(f"{reader.damaged} of its frames are damaged")
    stated = reader.stated_duration
    if stated is not None and reader.duration < stated - _CUT_OFF:
        ends = f"it ends at {reader.duration:.2f} s instead of {stated:.2f} s"
        reasons.append(f"{ends}, so it was cut off")
    return Features(
        values=features[kept],
        paths=[reader.path] * int(kept.sum()),
        spans=spans[kept],
        incomplete=[(reader.path, "; ".join(reasons))] if reasons else [],
    )


def pack_windows(
    network: VideoNetwork, reader: VideoReader, spans: np.ndarray, options: ViewOptions
) -> Iterator[PackedSample | None]:
    """Return the packed views of each window, None for one that cannot be decoded."""
    settings = network.settings

    def planned() -> Iterator[list[ClipIndices]]:
        for start, end in spans.tolist():
            yield clips_of_span(
                reader.timestamps,
                start,
                end,
                clip_duration=settings.clip_duration,
                num_frames=settings.num_frames,
                num_clips=options.num_clips,
            )

    # Plan twice instead of keeping the plans, because a day of windows at half-second steps would
    # need gigabytes. The first pass finds all frames that are needed, so that each is decoded and
    # resized once.
    needs = np.zeros(len(reader.timestamps), dtype=bool)
    earliest = np.empty(len(spans), dtype=np.int64)
    for i, clips in enumerate(planned()):
        frames = np.concatenate([clip.frames for clip in clips])
        needs[frames], earliest[i] = True, frames.min()
    # Keep a frame until no later window needs it. Later windows may need earlier frames than this
    # window does.
    earliest = np.minimum.accumulate(earliest[::-1])[::-1]
    steps, rng = resize_steps(settings, options.num_crops), np.random.default_rng(0)

    def resized_frames() -> Iterator[tuple[int, np.ndarray]]:
        for numbers, frames in reader.stream(np.flatnonzero(needs), options.timeout):
            view = LazyView(frames, np.arange(len(frames)))
            results: Any = {"views": [view], "rng": rng}
            for step in steps:
                results = step(results)
            yield from zip(numbers.tolist(), np.asarray(results["views"][0]), strict=True)

    resized = resized_frames()
    pack = pack_step(settings, options.num_crops)
    held: dict[int, np.ndarray] = {}
    ahead = next(resized, None)
    for clips, first in zip(planned(), earliest.tolist(), strict=True):
        needed = np.unique([clip.frames for clip in clips])
        while ahead is not None and ahead[0] <= needed[-1]:
            held[ahead[0]] = ahead[1]
            ahead = next(resized, None)
        held = {number: frame for number, frame in held.items() if number >= first}
        views = window_views(held, needed, clips)
        yield None if views is None else pack(views)


def window_views(
    held: dict[int, np.ndarray], needed: np.ndarray, clips: Sequence[ClipIndices]
) -> PipelineResults | None:
    """Return a window's frames, to be packed, in the form that ``DecodeSharedFrames`` returns.

    Args:
        held: Resized frames by their number.
        needed: Numbers of all frames of the clips, ascending.
        clips: Frames by their number.

    Returns:
        Results of a pipeline; None if too many frames are missing.
    """
    known = np.array([number in held for number in needed.tolist()])
    if known.sum() < max(1.0, _FRACTION_NEEDED * len(needed)):
        return None
    there = needed[known]
    nearest = there[np.abs(there[None] - needed[:, None]).argmin(axis=1)]
    frames = np.stack([held[number] for number in nearest.tolist()])
    # Store each frame only once, even if several clips of the window share it.
    positions = np.searchsorted(needed, np.stack([clip.frames for clip in clips]))
    view = LazyView(ArrayFrames(frames), np.arange(len(frames)))
    return {"views": [view], "positions": positions, "label": -1, "index": 0, "seed": 0}
