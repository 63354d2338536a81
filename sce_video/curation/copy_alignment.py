"""Alignment of two videos near a hypothesis, and similarity of the stretch that both show.

The videos are compared along a line in time, and aligned in place and time by Gauss-Newton steps.
The similarity depends on how the pixels change in the stretch, and on its length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from sce_video.curation.copy_votes import SPEED_COST, SPEEDS, Hypothesis, Line
from sce_video.curation.matching import (
    FINE,
    MAX_SECONDS,
    WHOLE,
    Alignment,
    Part,
    Thumbnails,
    averaging,
    cut_lines,
    norms,
)
from sce_video.datasets.clip_sampling import shown_at
from sce_video.options.find import SHORT, SPEED


@dataclass(frozen=True)
class Views:
    """Two views of a video: without borders, and reduced to what changes."""

    plain: Thumbnails
    changes: Thumbnails


@dataclass(frozen=True)
class EditedCopy:
    """Two videos that share a stretch.

    Attributes:
        inner: Index of the video that shows a part of the other video.
        outer: Index of the other video.
        alignment: Similarity from 0 to 1, seconds of ``outer`` at which ``inner`` begins, and the
            part of ``outer`` that it shows.
        mirrored: Whether one of the two is mirrored.
        speed: Seconds of ``outer`` in one second of ``inner``.
        inner_stretch: Start and end of the stretch in ``inner``, seconds.
        outer_stretch: Start and end of the stretch in ``outer``, seconds.
    """

    inner: int
    outer: int
    alignment: Alignment
    mirrored: bool
    speed: float
    inner_stretch: tuple[float, float]
    outer_stretch: tuple[float, float]


@dataclass(frozen=True)
class _LineSettings:
    """Settings for the comparison along lines in time, first coarse, then fine."""

    #: Correlation that a frame must exceed to lengthen a stretch. Other frames shorten it.
    similar: float = 0.5
    #: Minimum number of compared frames in a stretch.
    fewest_frames: int = 4
    #: Number of frames compared per second near a hypothesis, low because many lines are tried.
    first_rate: float = 5.0
    #: Number of frames compared per second after the alignment in place.
    last_rate: float = 12.0


_LINES = _LineSettings()
#: Shifts in seconds that are tried for a line near a hypothesis, larger than the votes' error.
_SHIFTS = np.arange(-4, 5) / 12
#: Shifts in seconds that are tried for a line after the alignment in place.
_FINE_SHIFTS = np.arange(-2, 3) / 24
#: Factors that are tried for the speed of a line after the alignment in place, within 3 % of 1.
_FINE_SPEEDS = np.arange(97, 104, 1.5) / 100


@dataclass(frozen=True)
class _PlacementSettings:
    """Settings for aligning two videos in place and time by Gauss-Newton steps."""

    #: Maximum number of compared frames, at equal steps over the stretch.
    frames: int = 12
    #: Maximum number of steps.
    steps: int = 8
    #: Smallest side of the part, relative to the frame, a little smaller than the searched parts.
    smallest: float = 0.3
    #: Gain of the mean correlation in one step below which the alignment ends.
    least_gain: float = 2e-3
    #: Seconds on either side of a frame over which the derivative in time is computed.
    instant: float = 1 / 12


_PLACEMENT = _PlacementSettings()
#: Longest step for the left, top, right and lower edge (shares of the frame), the time in seconds
#: and the speed. A step that is computed from few pixels could otherwise be far too long.
_LONGEST_STEP = np.array([0.06, 0.06, 0.06, 0.06, 0.15, 0.03])


@dataclass(frozen=True)
class _DecisionSettings:
    """Settings that decide whether a shared stretch makes a copy, and when to stop looking."""

    #: Standard deviation of the frame difference, in grey levels, below which nothing moves.
    moves: float = 0.5
    #: Time constant in seconds. The similarity of a stretch is multiplied by
    #: 1 - exp(-seconds / certain_seconds), so stretches of three seconds or more lose at most 5 %.
    certain_seconds: float = 1.0
    #: Smallest similarity with which an alignment in place is tried.
    promising: float = 0.2
    #: Maximum number of rounds of alignment in place and time.
    rounds: int = 2
    #: Similarity that must be exceeded for another round.
    hopeless: float = 0.4
    #: Similarity from which a copy is certain, so that no other round or hypothesis is tried.
    certain: float = 0.95
    #: Share of the shorter video that both videos must show (docs/curate.md).
    share: float = 0.6
    #: The same share with ``short``, a little less than a sixth.
    short_share: float = 0.15


DECISION = _DecisionSettings()


class _Pair:
    """Two videos that are compared along lines in time, at a part of the outer video."""

    def __init__(self, outer: Views, inner: Views, mirrored: bool) -> None:
        self.outer, self.changes = outer.plain, outer.changes
        flip = -1 if mirrored else 1
        self.inner, self.own_changes = (
            replace(view, frames=view.frames[:, :, ::flip]) for view in (inner.plain, inner.changes)
        )
        times = self.inner.times
        self.middles = (times + np.append(times[1:], self.inner.end)) / 2

    def fitted(
        self, line: Line, part: Part, speeds: np.ndarray, shifts: np.ndarray, rate: float
    ) -> _Fit | None:
        """Find the stretch of similar frames along the best of the lines near a line.

        Args:
            line: Line near which lines are tried.
            part: Part of the outer video.
            speeds: Speeds that are tried, as multiples of the line's speed.
            shifts: Displacements that are tried, seconds from the line at its pivot.
            rate: Compared frames of the inner video per second.

        Returns:
            The best line and its stretch; None if the stretch has fewer than four frames. The score
            of a frame is the correlation of frames and changes, minus 0.5. The best line has the
            stretch with the largest sum of scores (Kadane's algorithm).
        """
        every = max(1, round(len(self.middles) / self.inner.end / rate))
        # To bound the memory, stay near the pivot, where the frames are similar.
        low, high = np.searchsorted(
            self.middles, (line.pivot - MAX_SECONDS, line.pivot + MAX_SECONDS)
        )
        own = np.arange(low, high, every)
        moved = line.at + line.speed * speeds[:, None] * (self.middles[own] - line.pivot)
        times = moved[:, None] + shifts[:, None]  # (speeds, shifts, frames)
        common = (times >= 0) & (times < self.outer.end)
        kept = common.any(axis=(0, 1))
        if not kept.any():
            return None
        own, times, common = own[kept], times[..., kept], common[..., kept]
        shown = shown_at(self.outer.times, times.clip(0, self.outer.times[-1]))
        used, where = np.unique(shown, return_inverse=True)
        where = where.reshape(shown.shape)
        theirs = _pixels(self.outer.frames[used], part)
        ours = _pixels(self.inner.frames[own], WHOLE)
        table = _units(ours) @ _units(theirs).T
        moves = _units(_pixels(self.own_changes.frames[own], WHOLE))
        others = _units(_pixels(self.changes.frames[used], part))
        # Changes count as much as frames. If nothing moves, their vectors are short.
        weight = np.outer(np.linalg.norm(moves, axis=1), np.linalg.norm(others, axis=1))
        table = (table + moves @ others.T) / (1 + weight)
        similar = np.where(common, table[np.arange(len(own)), where] - _LINES.similar, -1.0)
        total = np.cumsum(np.pad(similar, ((0, 0), (0, 0), (1, 0))), axis=2)
        gain = (total - np.minimum.accumulate(total, axis=2)).max(axis=2)
        # Among equally good lines, prefer a small displacement and a speed near 1.
        gain *= 1 - SPEED_COST * np.abs(np.log(line.speed * speeds))[:, None]
        best = np.unravel_index(int((gain - 1e-6 * np.abs(shifts)).argmax()), gain.shape)
        sums = total[best]
        end = int((sums - np.minimum.accumulate(sums)).argmax())
        begin = int(sums[: end + 1].argmin())
        if end - begin < _LINES.fewest_frames:
            return None
        found = replace(line, at=line.at + shifts[best[1]], speed=line.speed * speeds[best[0]])
        first, last = own[begin], own[end - 1]
        end_of_last = float(2 * self.middles[last] - self.inner.times[last])
        stretch = float(self.inner.times[first]), end_of_last
        similarity = _similarity(theirs[where[best][begin:end]], ours[begin:end], stretch)
        return _Fit(found, stretch, similarity)

    def placed(self, fit: _Fit, part: Part, faster: bool) -> tuple[Line, Part]:
        """Improve line and part by Gauss-Newton steps (Lucas and Kanade 1981).

        The steps move the four edges of the part, the time and, with ``faster``, the speed. They
        are computed from unit vectors of up to 12 frames of the stretch.
        """
        line, (begin, end) = fit.line, fit.stretch
        inside = np.flatnonzero((self.middles >= begin) & (self.middles < end))
        count = min(len(inside), _PLACEMENT.frames)
        own = inside[np.linspace(0, len(inside) - 1, count).round().astype(int)]
        since, last = self.middles[own] - line.pivot, self.outer.times[-1]
        ours = _units(_pixels(self.inner.frames[own], WHOLE))
        left, top, wide, high = part
        place = np.array([left, top, left + wide, top + high, line.at, line.speed])
        step, best = np.zeros(6), -1.0
        least, instant = _PLACEMENT.smallest, _PLACEMENT.instant
        for _ in range(_PLACEMENT.steps):
            tried = place + step
            tried[:4] = tried[:4].clip([0, 0, least, least], [1 - least, 1 - least, 1, 1])
            tried[2:4] = np.maximum(tried[2:4], tried[:2] + least)
            times = tried[4] + tried[5] * since + np.array([[0], [-instant], [instant]])
            numbers = shown_at(self.outer.times, times.clip(0, last).ravel())
            cut = _pixels(self.outer.frames[numbers], _between(tried[:4]))
            here, before, after = _units(cut).reshape(3, *ours.shape)
            gain = float(np.einsum("ij,ij->", here, ours)) / len(own) - best
            if gain <= 0:
                step /= 2
                continue
            best, place = best + gain, tried
            if gain < _PLACEMENT.least_gain:
                break
            slopes = [*_edge_slopes(cut[: len(own)], here, place[:4])]
            slopes.append((after - before) / (2 * instant))
            slopes += [slopes[-1] * since[:, None]] if faster else []
            rows = np.stack([slope.ravel() for slope in slopes])
            square = rows @ rows.T
            square[np.diag_indices(len(rows))] *= 1.01
            square[np.diag_indices(len(rows))] += 1e-6
            step = np.zeros(6)
            step[: len(rows)] = np.linalg.solve(square, rows @ (ours - here).ravel())
            step = step.clip(-_LONGEST_STEP, _LONGEST_STEP)
        return Line(line.pivot, float(place[4]), float(place[5])), _between(place[:4])


def _edge_slopes(cut: np.ndarray, units: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Differentiate the unit vectors of a part with respect to its four edges.

    Args:
        cut: (T, 256) pixels of the part, minus the mean of each frame.
        units: (T, 256) ``cut`` divided by its norms.
        edges: (4,) left, top, right and lower edge.

    Returns:
        (4, T, 256) derivatives, in the order of the edges.
    """
    images = cut.reshape(-1, FINE, FINE)
    # A pixel moves with the far edge by this share, and with the near edge by the rest.
    far = (np.arange(FINE, dtype=np.float32) + 0.5) / FINE
    across = np.gradient(images, axis=2) * np.float32(FINE / (edges[2] - edges[0]))
    down = np.gradient(images, axis=1) * np.float32(FINE / (edges[3] - edges[1]))
    tall = far[:, None]
    slopes = np.stack([across * (1 - far), down * (1 - tall), across * far, down * tall])
    slopes = slopes.reshape(4, *cut.shape)
    slopes -= slopes.mean(axis=2, keepdims=True)
    slopes -= np.einsum("ktp,tp->kt", slopes, units)[..., None] * units
    return slopes / norms(cut)[:, None].astype(np.float64)


def _between(edges: np.ndarray) -> Part:
    """Convert left, top, right and lower edge to a part."""
    left, top, right, low = edges.tolist()
    return left, top, right - left, low - top


def _units(vectors: np.ndarray) -> np.ndarray:
    """Divide vectors (T, 256) by their norms, in float64 for the Gauss-Newton steps."""
    return vectors / norms(vectors)[:, None].astype(np.float64)


@dataclass(frozen=True)
class _Fit:
    """A stretch that two videos share along a line in time.

    Attributes:
        line: Map from times of the inner video to times of the outer one.
        stretch: Start and end in the inner video, seconds.
        similarity: Correlation of what changes in both, -1 to 1.
    """

    line: Line
    stretch: tuple[float, float]
    similarity: float


def _pixels(frames: np.ndarray, part: Part) -> np.ndarray:
    """Cut a part from frames (T, 32, 32), and return (T, 256) minus the mean of each frame."""
    if part == WHOLE:  # Sums of 2 x 2 pixels are faster.
        rows = frames[:, ::2].astype(np.uint16) + frames[:, 1::2]
        sums = rows[:, :, ::2] + rows[:, :, 1::2]
        vectors = sums.reshape(len(frames), -1) * np.float32(0.25)
    else:
        left, top, wide, high = np.asarray(part)[:, None]
        rows, columns = averaging(top, high, FINE), averaging(left, wide, FINE)
        cut = cut_lines(frames, rows, columns)[0].transpose(1, 0, 2)
        vectors = cut.reshape(len(frames), -1)
    return vectors - vectors.mean(axis=1, keepdims=True)


def _similarity(theirs: np.ndarray, ours: np.ndarray, stretch: tuple[float, float]) -> float:
    """Correlate the changes in the frames (T, 256) of two videos, and reduce it if they are short.

    The mean over time is subtracted, because different videos may have the same background. Norms
    are at least half a grey level, below which nothing moves.
    """
    theirs, ours = theirs - theirs.mean(axis=0), ours - ours.mean(axis=0)
    least = DECISION.moves * np.sqrt(ours.size)
    norms = [max(float(np.linalg.norm(x)), least) for x in (theirs, ours)]
    certain = 1 - np.exp((stretch[0] - stretch[1]) / DECISION.certain_seconds)
    return float(certain * (theirs * ours).sum() / (norms[0] * norms[1]))


def verified(
    outer: Views, inner: Views, guess: Hypothesis, edits: Collection[str]
) -> EditedCopy | None:
    """Return the stretch that two videos share near a hypothesis; None if it is too little.

    Args:
        outer: Video of which the other one shows a part.
        inner: Video that shows the part.
        guess: Hypothesis from :func:`~.copy_votes.hypotheses`.
        edits: Kinds of copies to search, from ``EDITS``, which determine whether the speed may vary
            and how short the stretch may be.
    """
    pair = _Pair(outer, inner, guess.mirrored)
    near, fine = np.ones(1), np.ones(1)
    if SPEED in edits:
        near, fine = SPEEDS[::2] / guess.line.speed, _FINE_SPEEDS
    fit = pair.fitted(guess.line, guess.part, near, _SHIFTS, _LINES.first_rate)
    if fit is None or fit.similarity < DECISION.promising:
        return None
    part = guess.part
    best: list[tuple[_Fit, Part]] = []
    while fit is not None and len(best) < DECISION.rounds:
        line, part = pair.placed(fit, part, SPEED in edits)
        middle = sum(fit.stretch) / 2
        line = Line(middle, line.time(middle), line.speed)
        fit = pair.fitted(line, part, fine, _FINE_SHIFTS, _LINES.last_rate)
        best += [] if fit is None else [(fit, part)]
        if fit is not None and not DECISION.hopeless < fit.similarity < DECISION.certain:
            break
    if not best:
        return None
    fit, part = max(best, key=lambda pair: pair[0].similarity)
    line, (begin, end) = fit.line, fit.stretch
    shorter = min(inner.plain.end, outer.plain.end / line.speed, MAX_SECONDS)
    if end - begin < (DECISION.short_share if SHORT in edits else DECISION.share) * shorter:
        return None
    return EditedCopy(
        inner=guess.inner,
        outer=guess.outer,
        alignment=Alignment(fit.similarity, line.time(0.0), part),
        mirrored=guess.mirrored,
        speed=line.speed,
        inner_stretch=fit.stretch,
        outer_stretch=(line.time(begin), line.time(end)),
    )
