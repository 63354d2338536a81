"""The constant rate of an output, and which source frame each of its frames shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_COMMON = tuple(
    rate for whole in range(1, 241) for rate in (Fraction(whole), Fraction(whole * 1000, 1001))
)
#: Limit on output frames per source frame, for a long still after a burst at a high rate.
MOST_REPEATS = 8
_JITTER = 0.1  # of a frame: deviations of time stamps that a constant rate may have


@dataclass(frozen=True)
class Schedule:
    """Constant rate and source frames of an output of N frames.

    Attributes:
        rate: Frames per second.
        shown: (N,) int64, ascending: source frame of output frame 0, 1, ...
        constant: Whether the source has this rate, so that ``shown`` is 0, 1, ..., N - 1.
    """

    rate: Fraction
    shown: np.ndarray
    constant: bool

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(len(self.shown) / self.rate)

    def never_shown(self, count: int) -> int:
        """Number of the source's ``count`` frames that no output frame shows."""
        return count - len(np.unique(self.shown))


def make_schedule(
    timestamps: np.ndarray, duration: float, stated: Sequence[Fraction], tick: float
) -> Schedule:
    """Choose a constant rate and the source frame for each output frame.

    A source of constant rate, up to the rounding of its time stamps and a tenth of a frame, keeps
    its rate and all its frames. Otherwise the rate is the median rate of its frames or, where that
    gives more than 8 times the source's frames, the highest rate that does not; each output frame
    is the frame that the source shows at its time. Source frames closer together than the output's
    may not be shown at all. ::

        source   |--0--|--1--|--------2--------|--3--|      (0.1 s, 0.1 s, 0.3 s, 0.1 s)
        output   |--0--|--1--|--2--|--2--|--2--|--3--|      10 per second

    Args:
        timestamps: (F,) seconds of the source's frames, ascending from 0.
        duration: Seconds to the end of the last frame.
        stated: Rates that the container states, the most reliable first.
        tick: Seconds of one unit of the container's time base.
    """
    count = len(timestamps)
    rate = _constant_rate(timestamps, stated, tick)
    if rate is not None and abs(duration - float(count / rate)) <= float(1 / rate) + 1e-6:
        return Schedule(rate, np.arange(count), True)
    duration = max(duration, float(timestamps[-1]), 1e-3)
    nominal = rate or _usual_rate(timestamps, stated, tick) or Fraction(25)
    nominal = min(nominal, _rounded_down(MOST_REPEATS * count / duration))
    number = max(1, round(duration * nominal))
    times = np.arange(number) * nominal.denominator / nominal.numerator
    # The source's time stamps are rounded to ticks, those of the output are exact.
    slack = min(tick, float(_JITTER / nominal)) + 1e-9
    shown = np.searchsorted(timestamps, times + slack, side="right") - 1
    return Schedule(nominal, np.maximum(shown, 0), False)


def _rounded_down(rate: float) -> Fraction:
    """The largest fraction with a small denominator that is at most a positive rate."""
    if rate >= 1:
        return Fraction(math.floor(rate * 1000), 1000)
    return Fraction(1, math.ceil(1 / rate))


def _constant_rate(
    timestamps: np.ndarray, stated: Sequence[Fraction], tick: float
) -> Fraction | None:
    """The rate whose grid all time stamps lie on; None without one."""
    count = len(timestamps)
    candidates = list(stated)
    if count > 1 and timestamps[-1] > 0:
        measured = (count - 1) / float(timestamps[-1])
        candidates += sorted(_COMMON, key=lambda rate: abs(float(rate) - measured))[:2]
        candidates.append(Fraction(measured).limit_denominator(1001))
    for rate in [rate for rate in candidates if rate > 0]:
        frame = rate.denominator / rate.numerator
        error = np.abs(timestamps - np.arange(count) * frame).max()
        # A tick may be as long as a frame (AVI); a gap of one frame is not rounding then.
        if error <= max(_JITTER * frame, min(tick, 0.4 * frame)) + 1e-9:
            return rate
    return None


def _usual_rate(timestamps: np.ndarray, stated: Sequence[Fraction], tick: float) -> Fraction | None:
    """The median rate of the frames, snapped to a stated or common rate within rounding."""
    gaps = np.diff(timestamps)
    gaps = gaps[gaps > 0]
    if not gaps.size:
        return next((rate for rate in stated if rate > 0), None)
    gap = float(np.median(gaps))
    for rate in [rate for rate in stated if rate > 0]:
        if abs(float(1 / rate) - gap) <= min(tick, _JITTER * gap) + 1e-9:
            return rate
    nearest = min(_COMMON, key=lambda rate: abs(float(1 / rate) - gap))
    if abs(float(1 / nearest) - gap) <= min(tick, _JITTER * gap) + 1e-9:
        return nearest
    return Fraction(1 / gap).limit_denominator(1001)
