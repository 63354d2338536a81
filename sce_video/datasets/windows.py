"""Windows of a long video: their spans, and the frames of their clips, without any decoding.

Windows of ``seconds`` begin every ``stride`` seconds, and the last one ends with the video, so that
every frame is in at least one of them::

    duration 12, 5 s every 2.5 s      [---------)
                                          [---------)
                                              [---------)
                                                [---------)     7 to 12, not 7.5 to 12.5
    duration 3                        [-----)                   one window, shorter

The clips of a window are those that a video of its frames alone would have.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sce_video.datasets.clip_sampling import (
    ClipIndices,
    frames_between,
    make_clip,
    segment_positions,
    spaced_starts,
)
from sce_video.datasets.sources import open_video, video_exists

_EPSILON = 1e-6
_MOST_WINDOWS = 1_000_000
_MOMENT = re.compile(r"(?s)(.+)@([^@-]{1,20})-([^@-]{1,20})")
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Windows:
    """How a video is divided."""

    #: Length of a window.
    seconds: float
    #: Seconds from one start to the next; None for ``seconds``.
    stride: float | None = None
    #: Whether no window reaches across a cut, so that each shot is divided by itself.
    shots: bool = False

    def __post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", self.seconds)
        for name in ("seconds", "stride"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} of windows must be a number of seconds, got {value!r}")
            elif not 0 < value < math.inf:
                raise ValueError(f"{name} of windows must be positive seconds, got {value}")

    @property
    def step(self) -> float:
        """Seconds from one start to the next."""
        return self.seconds if self.stride is None else self.stride

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"seconds": float(self.seconds), "stride": float(self.step), "shots": self.shots}

    @classmethod
    def from_dict(cls, values: Any) -> Windows:
        """The inverse of :meth:`to_dict`; ValueError for other values."""
        if not isinstance(values, dict) or set(values) != {"seconds", "stride", "shots"}:
            raise ValueError(f"windows are seconds, stride and shots, got {values!r:.100}")
        if not isinstance(values["shots"], bool):
            raise ValueError(f"shots of windows is true or false, got {values['shots']!r:.40}")
        return cls(**values)

    def __str__(self) -> str:
        shots = ", within shots" if self.shots else ""
        return f"windows of {self.seconds:g} s every {self.step:g} s{shots}"


def parse_seconds(text: str) -> float:
    """Seconds of ``5s``, ``2.5``, ``500ms``, ``2m``, ``1h`` or ``1:02:03.5``; else ValueError."""
    clock = re.fullmatch(r"(?:(\d{1,4}):)?(\d{1,4}):(\d{1,2}(?:\.\d{1,9})?)", text)
    if clock:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)
    plain = re.fullmatch(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}) ?([a-z]{0,3})", text)
    if plain and plain[2] in _UNITS:
        return float(plain[1]) * _UNITS[plain[2]]
    raise ValueError(f"not a time: {text!r:.60}; write 5s, 2.5, 500ms, 2m, 1h or 1:02:03.5")


@dataclass(frozen=True)
class Query:
    """A video (a file, a URL or a row of a table), or a moment of it, in seconds."""

    video: str
    start: float | None = None  # None for the whole video
    end: float | None = None


def parse_query(text: str) -> Query:
    """The query of ``a.mp4``, ``a.mp4@12.5-17`` or ``a.mp4@1:02:03-1:02:08``.

    A file whose name is the whole text is that file. ValueError for a moment that does not end
    after its start, or whose times cannot be read.
    """
    found = _MOMENT.fullmatch(text)
    if found is None or video_exists(text):
        return Query(text)
    start, end = parse_seconds(found[2]), parse_seconds(found[3])
    if end <= start:
        raise ValueError(f"the moment {found[2]}-{found[3]} of {found[1]} ends before it begins")
    return Query(found[1], start, end)


def window_spans(duration: float, windows: Windows, cuts: np.ndarray | None = None) -> np.ndarray:
    """Start and end of every window of a video of ``duration`` seconds: (W, 2) float64, ascending.

    ``cuts`` are the starts of the shots besides the first, seconds, ascending; each shot is divided
    by itself. ValueError if there were more than a million windows.
    """
    if duration / windows.step > _MOST_WINDOWS:
        raise ValueError(
            f"{windows} of a video of {duration:.0f} s are more than {_MOST_WINDOWS}: choose a "
            "longer stride"
        )
    inner = [] if cuts is None else [float(c) for c in cuts if _EPSILON < c < duration - _EPSILON]
    spans = []
    for begin, end in pairwise([0.0, *inner, duration]):
        room = end - begin - windows.seconds
        if room <= _EPSILON:
            spans.append(np.array([[begin, end]]))
            continue
        starts = begin + np.arange(math.floor(room / windows.step + _EPSILON) + 1) * windows.step
        if end - (starts[-1] + windows.seconds) > _EPSILON:
            starts = np.append(starts, end - windows.seconds)
        spans.append(np.stack([starts, np.minimum(starts + windows.seconds, end)], axis=1))
    return np.concatenate(spans)


def clips_of_span(
    timestamps: np.ndarray,
    start: float,
    end: float,
    *,
    clip_duration: float | None,
    num_frames: int,
    num_clips: int,
) -> list[ClipIndices]:
    """K clips of T frames of ``[start, end)``, seconds; no frame of them begins outside.

    Their starts are spaced equally. ``clip_duration`` None stands for one clip, a frame of each of
    T segments of the span. ``timestamps``: (F,) float64, seconds, ascending from 0.
    """
    if clip_duration is None:
        first, stop = frames_between(timestamps, start, end)
        frames = first + segment_positions(stop - first, num_frames)
        return [ClipIndices(frames, None, start, end - start)]
    length = min(clip_duration, end - start)
    starts = [start + float(s) for s in spaced_starts(end - start, clip_duration, num_clips)]
    shape: dict[str, Any] = {"clip_duration": length, "num_frames": num_frames}
    return [make_clip(timestamps, start=begin, **shape) for begin in starts]


_SIDE, _BINS = 32, 8
#: A cut changes this much of the colours (half the L1 distance of two histograms, 0 to 1), and this
#: many times as much as the frames around it.
_LEAST_CHANGE, _TIMES = 0.3, 3.0
_AROUND = 6  # frames on either side
_SHORTEST = 0.5  # seconds of a shot


def find_cuts(path: str, patience: float | None = None) -> np.ndarray:
    """Starts of the shots of a video besides the first, seconds; every frame is decoded.

    A cut is a change of the colour histogram that is large and far larger than those around it;
    dissolves and fades are not found. ``patience``: seconds that opening, and decoding the next
    frame, may take. VideoDecodeError if it cannot be decoded.
    """
    import cv2  # here: windows of a command line need none

    deadline = None if patience is None else time.monotonic() + patience
    times: list[float] = []
    found: list[float] = []  # half the L1 distance of the histograms of each frame and the next
    before = None
    with open_video(path, deadline=deadline) as reader:
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
        around = np.concatenate([changes[max(0, i - _AROUND) : i], changes[i + 1 :][:_AROUND]])
        usual = float(np.median(around)) if len(around) else 0.0
        if changes[i] >= _TIMES * usual and times[i + 1] - cuts[-1] >= _SHORTEST:
            cuts.append(times[i + 1])
    return np.array(cuts[1:])
