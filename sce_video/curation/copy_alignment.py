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

    #: Correlation above which a frame lengthens a stretch. Frames below it shorten the stretch.
    similar: float = 0.5
    #: Minimum number of compared frames in a stretch.
    fewest_frames: int = 4
    #: Number of frames compared per second near a hypothesis. It is low: many lines are tried.
    first_rate: float = 5.0
    #: Number of frames compared per second after the alignment in place.
    last_rate: float = 12.0


_LINES = _LineSettings()
#: Shifts in seconds to try for a line near a hypothesis. They exceed the error of the votes.
_SHIFTS = np.arange(-4, 5) / 12
#: Shifts in seconds to try for a line after the alignment in place.
_FINE_SHIFTS = np.arange(-2, 3) / 24
#: Factors to try for a line's speed after the alignment in place, within 3 % of 1.
_FINE_SPEEDS = np.arange(97, 104, 1.5) / 100


@dataclass(frozen=True)
class _PlacementSettings:
    """Settings for aligning two videos in place and time by Gauss-Newton steps."""

    #: Maximum number of frames to compare, at equal steps over the stretch.
    frames: int = 12
    #: Maximum number of Gauss-Newton steps.
    steps: int = 8
    #: Minimum side of the part, relative to the frame. It is slightly smaller than searched parts.
    smallest: float = 0.3
    #: The alignment ends if one step increases the mean correlation by less than this.
    least_gain: float = 2e-3
    #: Number of seconds on either side of a frame for computing the time derivative.
    instant: float = 1 / 12


_PLACEMENT = _PlacementSettings()
#: Maximum step for the left, top, right and lower edge (relative to the frame), the time in
#: seconds, and the speed. Otherwise, a step computed from only a few pixels could be far too long.
_LONGEST_STEP = np.array([0.06, 0.06, 0.06, 0.06, 0.15, 0.03])


@dataclass(frozen=True)
class _DecisionSettings:
    """Settings that decide whether a shared stretch makes a copy, and when to stop looking."""

    #: Nothing moves if the frame difference's standard deviation in grey levels is below this.
    moves: float = 0.5
    #: Time constant in seconds. The similarity of a stretch is multiplied by
    #: 1 - exp(-seconds / certain_seconds), so stretches of three seconds or more lose at most 5 %.
    certain_seconds: float = 1.0
    #: Minimum similarity for trying an alignment in place.
    promising: float = 0.2
    #: Maximum number of rounds, each of which aligns in place and in time.
    rounds: int = 2
    #: Similarity above which another round is tried.
    hopeless: float = 0.4
    #: Similarity from which on a copy is certain, so that no more rounds or hypotheses are tried.
    certain: float = 0.95
    #: Fraction of the shorter video that both videos must show (docs/curate.md).
    share: float = 0.6
    #: The same fraction if ``short`` is requested. It is a little less than one sixth.
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
        # Stay near the pivot, where the frames are similar, so that memory use is bounded.
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
        # Changes count as much as frames do. Where nothing moves, their vectors are short and have
        # little weight.
        weight = np.outer(np.linalg.norm(moves, axis=1), np.linalg.norm(others, axis=1))
        table = (table + moves @ others.T) / (1 + weight)
        similar = np.where(common, table[np.arange(len(own)), where] - _LINES.similar, -1.0)
        total = np.cumsum(np.pad(similar, ((0, 0), (0, 0), (1, 0))), axis=2)
        gain = (total - np.minimum.accumulate(total, axis=2)).max(axis=2)
        # Among equally good lines, prefer the smallest displacement and the speed nearest to 1.
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
    # This share is how much a pixel moves with the far edge. The rest is how much it moves with the
    # near edge.
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
    if part == WHOLE:  # summing 2 x 2 pixels is faster
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
