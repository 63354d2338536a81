"""Shot boundaries: where a video is cut."""

from __future__ import annotations

import time

import cv2
import numpy as np

from sce_video.datasets.sources import open_video

_SIDE, _BINS = 32, 8
#: A cut changes this much of the colours (half the L1 distance of two histograms, 0 to 1), and this
#: many times as much as the frames around it.
_LEAST_CHANGE, _TIMES = 0.3, 3.0
_AROUND = 6  # frames on either side
_SHORTEST = 0.5  # seconds of a shot


def find_cuts(path: str, patience: float | None = None) -> np.ndarray:
    """Starts of the shots of a video besides the first, seconds.

    Every frame is decoded. A cut is a change of the colour histogram that is large and far larger
    than those around it; dissolves and fades are not found.

    Args:
        path: As of :func:`~sce_video.datasets.open_video`.
        patience: Seconds that opening, and decoding the next frame, may take.

    Raises:
        VideoDecodeError: It cannot be decoded.
    """
    deadline = None if patience is None else time.monotonic() + patience
    times: list[float] = []
    changes: list[float] = []
    before = None
    with open_video(path, deadline=deadline) as reader:
        for numbers, frames in reader.stream(np.arange(len(reader.timestamps)), patience):
            times += reader.timestamps[numbers].tolist()
            for i in range(len(frames)):
                colours = colour_histogram(frames[i])
                if before is not None:
                    changes.append(float(np.abs(colours - before).sum() / 2))
                before = colours
    return cuts_of(np.array(times), np.array(changes))


def colour_histogram(frame: np.ndarray) -> np.ndarray:
    """(512,) float32 with sum 1: how often each colour is in a frame (H, W, 3) uint8."""
    small = cv2.resize(frame, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    bins = small.reshape(-1, 3).astype(np.int64) * _BINS // 256
    numbers = (bins[:, 0] * _BINS + bins[:, 1]) * _BINS + bins[:, 2]
    return np.bincount(numbers, minlength=_BINS**3).astype(np.float32) / len(numbers)


def cuts_of(times: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Times of the cuts between frames.

    Args:
        times: (F,) seconds.
        changes: (F - 1,) half the L1 distance of the histograms of each frame and the next.
    """
    cuts: list[float] = []
    for i in np.flatnonzero(changes >= _LEAST_CHANGE).tolist():
        before, behind = changes[max(0, i - _AROUND) : i], changes[i + 1 : i + 1 + _AROUND]
        around = np.concatenate([before, behind])
        usual = float(np.median(around)) if len(around) else 0.0
        begin = float(times[i + 1])
        if changes[i] >= _TIMES * usual and begin - (cuts[-1] if cuts else 0.0) >= _SHORTEST:
            cuts.append(begin)
    return np.array(cuts)
