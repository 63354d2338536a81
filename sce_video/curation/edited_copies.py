"""Copies that were edited more than near-duplicates are: votes of single frames, then alignment.

Frames of every video are searched among parts of the frames of all videos. Answers that agree on a
displacement, a speed, a part and whether the frame is mirrored are a hypothesis. It is compared
along a line in time, aligned in place and time by Gauss-Newton steps, and scored on the stretch
that both videos show: by how its pixels change, and by its length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from sce_video.curation.comparison import StoredThumbnails, ThumbnailFile, computed
from sce_video.curation.matching import (
    FINE,
    FLAT,
    MAX_SECONDS,
    SIDE,
    Alignment,
    Part,
    Thumbnails,
    averaging,
    query_vectors,
)
from sce_video.datasets.clip_sampling import shown_at
from sce_video.evaluation.functional.clusters import as_bytes, nearest_in_cells
from sce_video.options.find import EDITS

MIRRORED, PARTS, SPEED, SHORT, LATE = EDITS
#: Seconds of a video that are read with ``late``.
LATE_SECONDS = 3600.0
#: Smallest similarity of a copy: other videos of two generated sets stay below (docs/curate.md).
COPY_SIMILARITY = 0.85

#: Frames per second that are searched, and whose parts they are searched among.
_QUERY_RATE, _INDEX_RATE = 4.0, 1.0
#: Sides of the parts, and the step between their places; without ``parts`` the first four sides.
_SIDES, _STEP = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), 0.1
_LARGE = 4
_PART = 8  # side of a searched part, pixels
#: Rectangles of a video whose edges stand still: how many, their smallest side, pixels, and score;
#: the most that a piece of an edge counts, and frames of which these are the mean.
_RECTANGLES, _LEAST_RECTANGLE, _LEAST_EDGE, _EDGE, _EDGE_FRAMES = 4, 10, 0.4, 0.7, 40
#: Seconds before and after a frame whose mean is subtracted from it, and by what is left counts.
_AROUND, _GAIN = 1.0, 3.0
_CHANGED_AT_ONCE = 1024  # frames
#: Answers to a frame, their smallest correlation, and how much the last one may exceed half of it
#: before all of them count less.
_ANSWERS, _LEAST, _CONTRAST = 64, 0.7, 0.1
#: Speeds of the copy: 1 in the middle, 3.8 % apart.
_SPEEDS = 0.8 * (1.25 / 0.8) ** (np.arange(13) / 12)
_PROBES, _CELL_STEPS = 5, 3
#: Hypotheses that are tried: the most similar answers of two videos; and what may differ, seconds
#: (two frames of the searched rate are 0.25 s apart) and shares of the frame.
_SEEDS, _TIME_SLACK, _PART_SLACK = 12, 0.2, 0.13
_TRIES = 2  # hypotheses of two videos
_ASKED_AT_ONCE = 2**15  # frames
#: Frames of a video that another one answers, their least votes, and for how many videos times
#: those that are compared these are counted.
_MIN_VOTES, _LEAST_VOTES, _VOTED = 2, 0.4, 2
_WHOLE = (0.0, 0.0, 1.0, 1.0)
#: Correlation above which frames are similar, what a speed other than 1 costs, frames of a stretch.
_SIMILAR, _SPEED_COST, _FEWEST_FRAMES = 0.5, 0.08, 4
#: Lines near a hypothesis, and near one that was aligned: seconds, frames per second, speeds.
_SHIFTS, _FIRST_RATE = np.arange(-4, 5) / 12, 5.0
_FINE_SPEEDS, _FINE_SHIFTS, _LAST_RATE = np.arange(97, 104, 1.5) / 100, np.arange(-2, 3) / 24, 12.0
_CHANGE = 0.5  # standard deviation of a change, grey levels, below which nothing moves
_CERTAIN_SECONDS = 1.0
#: Similarity of two videos of which no other hypothesis is compared; rounds of alignment in place
#: and in time, of which there is one where the first is certain or ends below.
_CERTAIN, _ROUNDS, _UNCERTAIN = 0.95, 2, 0.4
#: Alignment in place: frames and steps at most, the side of the smallest part, the gain that ends
#: it, seconds between the frames of the derivative in time, and the longest step.
_PLACED, _STEPS, _SMALLEST, _LEAST_GAIN, _INSTANT = 12, 8, 0.3, 2e-3, 1 / 12
_MOST = np.array([0.06, 0.06, 0.06, 0.06, 0.15, 0.03])
#: Similarity before the alignment in place, below which it is not tried; shares of the shorter
#: video that both show.
_PROMISING, _SHARE, _SHORT_SHARE = 0.2, 0.6, 0.15


@dataclass(frozen=True)
class Line:
    """Time of the outer video by that of the inner one."""

    pivot: float  # seconds of the inner video, at which it
    at: float  # shows these of the outer one
    speed: float

    def time(self, inner: float) -> float:
        """Seconds of the outer video."""
        return self.at + self.speed * (inner - self.pivot)


@dataclass(frozen=True)
class Hypothesis:
    """That a video (``inner``) shows a part of another one (``outer``)."""

    inner: int
    outer: int
    mirrored: bool
    line: Line
    part: Part
    votes: float = 0.0


@dataclass(frozen=True)
class EditedCopy:
    """Two videos of which a stretch shows the same.

    Attributes:
        inner: The video of which the whole frame is a part of that of the other.
        outer: The other.
        alignment: Similarity, 0 to 1; when in ``outer`` the inner one begins; the part it shows.
        mirrored: Whether one is mirrored.
        speed: Seconds of ``outer`` in one of ``inner``.
        inner_stretch: Begin and end in ``inner``, seconds.
        outer_stretch: And in ``outer``.
    """

    inner: int
    outer: int
    alignment: Alignment
    mirrored: bool
    speed: float
    inner_stretch: tuple[float, float]
    outer_stretch: tuple[float, float]


def without_borders(video: Thumbnails) -> Thumbnails:
    """The video without borders that are black or of one grey level all the time.

    What is left is squeezed to 32 x 32 pixels again: a moved or letterboxed copy then shows a part
    of its original, and nothing else. At least a third of a side is left; a video that is flat as
    a whole is returned as it is.
    """
    frames = video.frames[:: max(1, len(video.frames) // 64)].astype(np.float32)
    spread = frames.std(axis=0)
    box = []
    for axis in (0, 1):  # rows, columns
        # A border is still, and flat along its own direction.
        still = (spread.mean(axis=1 - axis) < 1.5) & (frames.mean(axis=0).std(axis=1 - axis) < FLAT)
        filled = np.flatnonzero(~still)
        low, high = (filled[0], filled[-1] + 1) if len(filled) else (0, SIDE)
        if high - low < SIDE // 3:
            low, high = 0, SIDE
        box.append((int(low), int(high)))
    if box == [(0, SIDE), (0, SIDE)]:
        return video
    rows, columns = (
        averaging(np.array([low / SIDE]), (high - low) / SIDE, SIDE)[0] for low, high in box
    )
    cut = np.matmul(np.matmul(rows, video.frames.astype(np.float32)), columns.T)
    return replace(video, frames=cut.round().astype(np.uint8))


def changes(video: Thumbnails) -> Thumbnails:
    """The video of what changes: frames minus their mean over two seconds, times 3, around 128.

    Still text, pictures and backgrounds vanish in it.
    """
    firsts = np.searchsorted(video.times, video.times - _AROUND)
    lasts = np.searchsorted(video.times, video.times + _AROUND, "right")
    found = np.empty_like(video.frames)
    for begin in range(0, len(found), _CHANGED_AT_ONCE):  # an hour would take gigabytes
        rows = slice(begin, begin + _CHANGED_AT_ONCE)
        first, last = firsts[rows] - firsts[begin], lasts[rows] - firsts[begin]
        near = video.frames[firsts[begin] : lasts[rows][-1]]
        total = np.zeros((len(near) + 1, SIDE, SIDE), dtype=np.int32)
        total[1:] = near
        for row in range(1, len(near)):  # np.cumsum over the first axis takes 16 times as long
            total[row + 1] += total[row]
        mean = np.subtract(total[last], total[first], dtype=np.float32)
        mean *= (-_GAIN / (last - first)).astype(np.float32)[:, None, None]
        mean += video.frames[rows] * np.float32(_GAIN) + 128.5  # rounded by the conversion
        found[rows] = mean.clip(0, 255)
    return replace(video, frames=found)


def rectangles(video: Thumbnails) -> list[Part]:
    """Up to four rectangles that may show another video: their sides are edges that stand still.

    An edge is where neighbouring pixels differ on average over time by more than those two pixels
    beside it, relative to all of the frame; a side counts by its mean, one at the border of the
    frame does not count, and of a rectangle the weakest side counts twice. Smallest side: 10 of 32
    pixels. The best come first.
    """
    frames = video.frames[:: max(1, len(video.frames) // _EDGE_FRAMES)].astype(np.float32)
    spans = _spans()
    low, high = spans.T
    lengths = (high - low).astype(np.float32)[:, None]
    sums, worst = [], []
    for axis in (2, 1):  # edges between columns, between rows
        step = np.abs(np.diff(frames, axis=axis)).mean(axis=0)
        step = step if axis == 2 else step.T  # (along the edge, edges)
        wide = np.pad(step, ((0, 0), (2, 2)), mode="edge")
        edge = (step - (wide[:, :-4] + wide[:, 4:]) / 2) / (step.mean() + 2)
        # Bounded: one strong piece is no side. There is none at the borders of the frame.
        total = np.cumsum(np.pad(edge.clip(-_EDGE, _EDGE), ((1, 0), (1, 1))), axis=0)
        mean = (total[high] - total[low]) / lengths
        sums.append(mean[:, low] + mean[:, high])
        mean[:, [0, SIDE]] = np.inf
        worst.append(np.minimum(mean[:, low], mean[:, high]))
    # By the spans of rows and of columns.
    inside = (low > 0).astype(np.float32) + (high < SIDE)
    sides = inside[:, None] + inside
    score = (sums[0] + sums[1].T) / np.maximum(sides, 1)
    score += np.minimum(worst[0], worst[1].T)
    score[sides < 2] = -1.0
    found: list[Part] = []
    for _ in range(_RECTANGLES):
        row, column = divmod(int(score.argmax()), len(spans))
        if score[row, column] < _LEAST_EDGE:
            break
        (top, end), (left, right) = spans[row].tolist(), spans[column].tolist()
        found.append((left / SIDE, top / SIDE, (right - left) / SIDE, (end - top) / SIDE))
        near = [np.abs(spans - spans[n]).max(axis=1) <= 1 for n in (row, column)]
        score[np.ix_(*near)] = -1.0
    return found


@cache
def _spans() -> np.ndarray:
    """Begin and end of every interval of pixels that a rectangle may fill, (n, 2)."""
    ends = [(a, b) for a in range(SIDE) for b in range(a + _LEAST_RECTANGLE, SIDE + 1)]
    return np.array(ends)


def searched_parts(sides: Sequence[float]) -> list[Part]:
    """Squares in relative coordinates, in the order of :func:`part_vectors`."""
    starts = {side: np.linspace(0, 1 - side, round((1 - side) / _STEP) + 1) for side in sides}
    return [(float(x), float(y), s, s) for s in sides for y in starts[s] for x in starts[s]]


def part_vectors(
    frames: np.ndarray, sides: Sequence[float], others: Sequence[Part] = ()
) -> np.ndarray:
    """Parts of frames (T, 32, 32) as vectors (T, P, 64), as :func:`~.matching.query_vectors`.

    Those of :func:`searched_parts`, then some others.
    """
    found = []
    for side in sides:
        starts = np.linspace(0, 1 - side, round((1 - side) / _STEP) + 1)
        axis = averaging(starts, side, _PART)
        tall = np.matmul(axis.reshape(-1, SIDE), frames.astype(np.float32))
        cut = np.matmul(tall, axis.reshape(-1, SIDE).T)
        cut = cut.reshape(len(frames), len(axis), _PART, len(axis), _PART)
        found.append(cut.transpose(0, 1, 3, 2, 4).reshape(len(frames), -1, _PART**2))
    if others:
        left, top, wide, high = np.array(others).T
        rows, columns = averaging(top, high, _PART), averaging(left, wide, _PART)
        cut = np.matmul(np.matmul(rows, frames[:, None].astype(np.float32)), columns.swapaxes(1, 2))
        found.append(cut.reshape(len(frames), -1, _PART**2))
    parts = np.concatenate(found, axis=1)
    parts -= parts.mean(axis=2, keepdims=True)
    return parts / _norms(parts)[..., None]


def _norms(vectors: np.ndarray) -> np.ndarray:
    """L2 norms over the last axis; at least those of a part that is flat."""
    least = FLAT * np.sqrt(vectors.shape[-1])
    return np.maximum(np.sqrt(np.einsum("...i,...i->...", vectors, vectors)), least)


def voted(
    t_in: np.ndarray, t_out: np.ndarray, parts: np.ndarray, similar: np.ndarray, speeds: np.ndarray
) -> Iterator[tuple[float, float, int]]:
    """Votes, speed and the row of the answer through which it passes, of the best hypotheses.

    Args:
        t_in: (n,) seconds of the frames that were searched.
        t_out: (n,) seconds of the answers to them.
        parts: (n, 4) left, top, width and height of the answers.
        similar: (n,) correlations.
        speeds: That are tried.
    """
    left = np.ones(len(similar), dtype=bool)
    for _ in range(_TRIES):
        rows = np.flatnonzero(left)
        if len(rows) < 2:
            return
        seeds = rows[np.argsort(-similar[rows], kind="stable")[:_SEEDS]]
        near = (np.abs(parts[rows] - parts[seeds, None]) <= _PART_SLACK).all(axis=2)
        line = speeds[:, None, None] * (t_in[rows] - t_in[seeds, None])
        gap = np.abs(t_out[rows] - t_out[seeds, None] - line)
        good = near & (gap <= _TIME_SLACK)
        weight = np.where(good, (similar[rows] - _LEAST / 2) * (1 - gap), 0)
        # Each frame votes once, though several parts may answer: rows are in order of the frames.
        starts = np.flatnonzero(np.diff(t_in[rows], prepend=-1))
        total = np.maximum.reduceat(weight, starts, axis=2).sum(axis=2)
        # Where little moves all speeds agree: that nearest to 1 is meant.
        total *= 1 - _SPEED_COST * np.abs(np.log(speeds))[:, None]
        which, seed = np.unravel_index(int(total.argmax()), total.shape)
        yield float(total[which, seed]), float(speeds[which]), int(seeds[seed])
        left[rows[good[which, seed]]] = left[seeds[seed]] = False


@dataclass(frozen=True)
class _Answers:
    """Frames of videos (askers) and the parts of others (owners) that they resemble; all (n,)."""

    asker: np.ndarray
    owner: np.ndarray
    mirrored: np.ndarray
    t_in: np.ndarray
    t_out: np.ndarray
    part: np.ndarray  # (n, 4)
    similar: np.ndarray


def _searched(
    videos: Iterable[tuple[Thumbnails, list[Part]]], edits: Collection[str]
) -> Iterator[_Answers]:
    """The parts that the frames of videos resemble most, in the order of asker, owner and time.

    Those of some hundred videos at a time: memory is that of the parts and of numbers of answers.
    """
    sides = _SIDES if PARTS in edits else _SIDES[:_LARGE]
    flips = (False, True) if MIRRORED in edits else (False,)
    gallery, owners, queries, askers = [], [], [], []
    places = searched_parts(sides)
    grid = len(places)
    for number, (video, some) in enumerate(videos):
        frames, times = _at_rate(video, _INDEX_RATE)
        vectors = part_vectors(frames, sides, some)
        # Flat parts answer to nothing.
        frame, part = np.nonzero(np.einsum("...i,...i->...", vectors, vectors) > _LEAST**2)
        gallery.append(as_bytes(torch.from_numpy(vectors[frame, part])))
        part[part >= grid] += len(places) - grid
        places += some
        owners.append(np.stack([np.full(len(frame), number), times[frame], part], axis=1))
        frames, times = _at_rate(video, _QUERY_RATE)
        for flip in flips:
            vectors = query_vectors(np.ascontiguousarray(frames[:, :, ::-1] if flip else frames))
            kept = np.flatnonzero(np.einsum("ij,ij->i", vectors, vectors) > _LEAST**2)
            queries.append(as_bytes(torch.from_numpy(vectors[kept])))
            facts = np.full(len(kept), number), times[kept], np.full(len(kept), flip)
            askers.append(np.stack(facts, axis=1))
    asker, owner = np.concatenate(askers), np.concatenate(owners)
    if not len(asker) or not len(owner):  # nothing but flat frames
        return
    rows = torch.cat(gallery)
    of_queries, of_rows = (torch.from_numpy(x[:, 0].astype(np.int32)) for x in (asker, owner))
    # As many cells as make assigning rows to them as costly as the search.
    cells = max(1, round(len(rows) ** 0.5 / 2))
    how = {"probes": _PROBES, "cells": cells, "steps": _CELL_STEPS}
    of_both = of_queries, of_rows
    similar, where = nearest_in_cells(torch.cat(queries), rows, _ANSWERS, *of_both, **how)
    boxes = np.asarray(places)
    firsts = np.flatnonzero(np.diff(asker[:, 0], prepend=-1, append=-1))  # and the end
    cuts = firsts[np.unique(np.searchsorted(firsts, range(0, len(asker), _ASKED_AT_ONCE)))]
    for begin, end in pairwise([*cuts.tolist(), len(asker)]):
        near = similar[begin:end].numpy()
        query, slot = np.nonzero(near >= _LEAST)
        # An answer that many videos give says little: it counts by how much it is better.
        common = np.maximum(0, near[:, -1] - _LEAST / 2 - _CONTRAST)
        values, asked = near[query, slot] - common[query], asker[begin:end][query]
        found = owner[where[begin:end].numpy()[query, slot]]
        order = np.lexsort((asked[:, 1], asked[:, 2], found[:, 0], asked[:, 0]))
        asked, found = asked[order], found[order]
        yield _Answers(
            asker=asked[:, 0].astype(int),
            owner=found[:, 0].astype(int),
            mirrored=asked[:, 2] > 0,
            t_in=asked[:, 1],
            t_out=found[:, 1],
            part=boxes[found[:, 2].astype(int)],
            similar=values[order],
        )


def _at_rate(video: Thumbnails, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Frames at equal steps, and their times, seconds."""
    times = (np.arange(max(1, int(video.end * rate))) + 0.5) / rate
    return video.frames[shown_at(video.times, times)], times


def hypotheses(
    videos: Iterable[tuple[Thumbnails, list[Part]]], edits: Collection[str], most: int
) -> list[Hypothesis]:
    """What frames of the videos, without borders, say about copies among them.

    Args:
        videos: Or their :func:`changes`; and parts of each that are searched besides others.
        edits: Of :data:`EDITS`.
        most: Hypotheses of a video: those of the most votes.
    """
    blocks = (_agreed(answers, edits, most) for answers in _searched(videos, edits))
    return [guess for block in blocks for guess in block]


def _agreed(answers: _Answers, edits: Collection[str], most: int) -> list[Hypothesis]:
    """What answers agree on, of every asker the hypotheses of the most votes."""
    if not len(answers.asker):
        return []
    speeds = _SPEEDS if SPEED in edits else np.ones(1)
    key = (answers.asker * (int(answers.owner.max()) + 1) + answers.owner) * 2 + answers.mirrored
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    fresh = np.diff(answers.t_in, prepend=-1) != 0
    fresh[starts] = True
    # What the frames of an answer can vote at most: the sum of the best of each frame.
    firsts = np.flatnonzero(fresh)
    bound = np.maximum.reduceat(answers.similar, firsts) - _LEAST / 2
    groups = np.searchsorted(firsts, starts)
    bound, frames = np.add.reduceat(bound, groups), np.diff(groups, append=len(firsts))
    askers = answers.asker[starts]
    order = np.lexsort((-bound, askers))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(askers, askers)[order]
    enough = (frames >= _MIN_VOTES) & (bound >= _LEAST_VOTES) & (rank < _VOTED * most)
    ends = np.append(starts[1:], len(key))
    found: dict[int, list[Hypothesis]] = {}
    for begin, end in zip(starts[enough].tolist(), ends[enough].tolist(), strict=True):
        some = slice(begin, end)
        facts = answers.t_in[some], answers.t_out[some], answers.part[some], answers.similar[some]
        asker, owner = int(answers.asker[begin]), int(answers.owner[begin])
        for votes, speed, row in voted(*facts, speeds):
            if votes < _LEAST_VOTES:
                break
            left, top, wide, high = answers.part[begin + row].tolist()
            at = Line(float(facts[0][row]), float(facts[1][row]), speed)
            how = bool(answers.mirrored[begin]), at, (left, top, wide, high), votes
            found.setdefault(asker, []).append(Hypothesis(asker, owner, *how))
    return [h for some in found.values() for h in sorted(some, key=lambda h: -h.votes)[:most]]


#: A video, and its changes.
Views = tuple[Thumbnails, Thumbnails]


class _Pair:
    """Two videos, compared along lines in time at one part."""

    def __init__(self, outer: Views, inner: Views, mirrored: bool) -> None:
        self.outer, self.changes = outer
        flip = -1 if mirrored else 1
        self.inner, self.own_changes = (replace(v, frames=v.frames[:, :, ::flip]) for v in inner)
        times = self.inner.times
        self.middles = (times + np.append(times[1:], self.inner.end)) / 2

    def fitted(
        self, line: Line, part: Part, speeds: np.ndarray, shifts: np.ndarray, rate: float
    ) -> _Fit | None:
        """The stretch of similar frames along the best of the lines near a line.

        Args:
            line: Displacement and speed.
            part: Of the outer video.
            speeds: Tried, relative to that of the line.
            shifts: And displacements, seconds, relative to the line at its pivot.
            rate: Compared frames of the inner video per second.

        Returns:
            The line on which the sum of the correlations of frames and of their changes, less 0.5
            for each frame, of the best stretch is largest (Kadane's algorithm), with that stretch;
            None if it has fewer than four frames.
        """
        every = max(1, round(len(self.middles) / self.inner.end / rate))
        # Around the pivot, where the frames are known to be similar: memory is bounded.
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
        ours = _pixels(self.inner.frames[own], _WHOLE)
        table = _units(ours) @ _units(theirs).T
        moves = _units(_pixels(self.own_changes.frames[own], _WHOLE))
        others = _units(_pixels(self.changes.frames[used], part))
        # Changes count as much as frames, and nothing where nothing moves: there they are short.
        weight = np.outer(np.linalg.norm(moves, axis=1), np.linalg.norm(others, axis=1))
        table = (table + moves @ others.T) / (1 + weight)
        similar = np.where(common, table[np.arange(len(own)), where] - _SIMILAR, -1.0)
        total = np.cumsum(np.pad(similar, ((0, 0), (0, 0), (1, 0))), axis=2)
        gain = (total - np.minimum.accumulate(total, axis=2)).max(axis=2)
        # Of equally good lines the one of less change, and of the speed nearest to 1.
        gain *= 1 - _SPEED_COST * np.abs(np.log(line.speed * speeds))[:, None]
        best = np.unravel_index(int((gain - 1e-6 * np.abs(shifts)).argmax()), gain.shape)
        sums = total[best]
        end = int((sums - np.minimum.accumulate(sums)).argmax())
        begin = int(sums[: end + 1].argmin())
        if end - begin < _FEWEST_FRAMES:
            return None
        found = replace(line, at=line.at + shifts[best[1]], speed=line.speed * speeds[best[0]])
        first, last = own[begin], own[end - 1]
        end_of_last = float(2 * self.middles[last] - self.inner.times[last])
        stretch = float(self.inner.times[first]), end_of_last
        similarity = _similarity(theirs[where[best][begin:end]], ours[begin:end], stretch)
        return _Fit(found, stretch, similarity)

    def placed(self, fit: _Fit, part: Part, faster: bool) -> tuple[Line, Part]:
        """The line and the part at which the stretch of a fit is most similar, near a part.

        Gauss-Newton steps (Lucas and Kanade 1981) on unit vectors of up to 24 frames: in the four
        edges of the part, in time and, with ``faster``, in speed.
        """
        line, (begin, end) = fit.line, fit.stretch
        inside = np.flatnonzero((self.middles >= begin) & (self.middles < end))
        own = inside[np.linspace(0, len(inside) - 1, min(len(inside), _PLACED)).round().astype(int)]
        since, last = self.middles[own] - line.pivot, self.outer.times[-1]
        ours = _units(_pixels(self.inner.frames[own], _WHOLE))
        left, top, wide, high = part
        place = np.array([left, top, left + wide, top + high, line.at, line.speed])
        step, best = np.zeros(6), -1.0
        for _ in range(_STEPS):
            tried = place + step
            tried[:4] = tried[:4].clip([0, 0, _SMALLEST, _SMALLEST], [*2 * [1 - _SMALLEST], 1, 1])
            tried[2:4] = np.maximum(tried[2:4], tried[:2] + _SMALLEST)
            times = tried[4] + tried[5] * since + np.array([[0], [-_INSTANT], [_INSTANT]])
            numbers = shown_at(self.outer.times, times.clip(0, last).ravel())
            cut = _pixels(self.outer.frames[numbers], _between(tried[:4]))
            here, before, after = _units(cut).reshape(3, *ours.shape)
            gain = float(np.einsum("ij,ij->", here, ours)) / len(own) - best
            if gain <= 0:
                step /= 2
                continue
            best, place = best + gain, tried
            if gain < _LEAST_GAIN:
                break
            slopes = [*_edge_slopes(cut[: len(own)], here, place[:4])]
            slopes.append((after - before) / (2 * _INSTANT))
            slopes += [slopes[-1] * since[:, None]] if faster else []
            rows = np.stack([slope.ravel() for slope in slopes])
            square = rows @ rows.T
            square[np.diag_indices(len(rows))] *= 1.01
            square[np.diag_indices(len(rows))] += 1e-6
            step = np.zeros(6)
            step[: len(rows)] = np.linalg.solve(square, rows @ (ours - here).ravel())
            step = step.clip(-_MOST, _MOST)
        return Line(line.pivot, float(place[4]), float(place[5])), _between(place[:4])


def _edge_slopes(cut: np.ndarray, units: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Derivatives (4, T, 256) of the unit vectors of a part by its left, top, right and lower edge.

    Args:
        cut: (T, 256) pixels of the part, minus the mean of each frame.
        units: (T, 256) the same divided by their norms.
        edges: (4,) of the part.
    """
    images = cut.reshape(-1, FINE, FINE)
    far = (np.arange(FINE, dtype=np.float32) + 0.5) / FINE  # share by which the far edge moves it
    across = np.gradient(images, axis=2) * np.float32(FINE / (edges[2] - edges[0]))
    down = np.gradient(images, axis=1) * np.float32(FINE / (edges[3] - edges[1]))
    tall = far[:, None]
    slopes = np.stack([across * (1 - far), down * (1 - tall), across * far, down * tall])
    slopes = slopes.reshape(4, *cut.shape)
    slopes -= slopes.mean(axis=2, keepdims=True)
    slopes -= np.einsum("ktp,tp->kt", slopes, units)[..., None] * units
    return slopes / _norms(cut)[:, None]


def _between(edges: np.ndarray) -> Part:
    """The part between its left, top, right and lower edge."""
    left, top, right, low = edges.tolist()
    return left, top, right - left, low - top


def _units(vectors: np.ndarray) -> np.ndarray:
    """Vectors (T, 256) of mean 0 divided by their norms."""
    return vectors / _norms(vectors)[:, None]


@dataclass(frozen=True)
class _Fit:
    """A stretch of the inner video that is similar along a line."""

    line: Line
    stretch: tuple[float, float]
    similarity: float


def _pixels(frames: np.ndarray, part: Part) -> np.ndarray:
    """A part of frames (T, 32, 32) as (T, 256), minus the mean of each."""
    if part == _WHOLE:  # the sums of 2 x 2 pixels, in integers
        rows = frames[:, ::2].astype(np.uint16) + frames[:, 1::2]
        sums = rows[:, :, ::2] + rows[:, :, 1::2]
        vectors = sums.reshape(len(frames), -1) * np.float32(0.25)
    else:
        left, top, wide, high = part
        starts, lengths = np.array([top, left]), np.array([high, wide])
        down, across = averaging(starts, lengths, FINE)
        # Transposed as bytes, then two products of matrices.
        lines = frames.transpose(1, 0, 2).reshape(SIDE, -1).astype(np.float32)
        cut = (down @ lines).reshape(-1, SIDE) @ across.T
        cut = cut.reshape(FINE, -1, FINE).transpose(1, 0, 2)
        vectors = cut.reshape(len(frames), -1)
    return vectors - vectors.mean(axis=1, keepdims=True)


def _similarity(theirs: np.ndarray, ours: np.ndarray, stretch: tuple[float, float]) -> float:
    """Correlation of what changes in the frames (T, 256) of two videos, less for short stretches.

    Frames minus their mean over time: unlike those, backgrounds of other videos may be the same.
    The norms are at least those of changes of two grey levels, the noise of an encoder.
    """
    theirs, ours = theirs - theirs.mean(axis=0), ours - ours.mean(axis=0)
    least = _CHANGE * np.sqrt(ours.size)
    norms = [max(float(np.linalg.norm(x)), least) for x in (theirs, ours)]
    certain = 1 - np.exp((stretch[0] - stretch[1]) / _CERTAIN_SECONDS)
    return float(certain * (theirs * ours).sum() / (norms[0] * norms[1]))


def verified(
    outer: Views, inner: Views, guess: Hypothesis, edits: Collection[str]
) -> EditedCopy | None:
    """What two videos share near a hypothesis, or None.

    Args:
        outer: The video of which a part is shown, without borders, and its changes.
        inner: The one that shows it, also both.
        guess: Of :func:`hypotheses`.
        edits: Of :data:`EDITS`: whether the speed varies, and how short the stretch may be.
    """
    pair = _Pair(outer, inner, guess.mirrored)
    near, fine = np.ones(1), np.ones(1)
    if SPEED in edits:
        near, fine = _SPEEDS[::2] / guess.line.speed, _FINE_SPEEDS
    fit = pair.fitted(guess.line, guess.part, near, _SHIFTS, _FIRST_RATE)
    if fit is None or fit.similarity < _PROMISING:
        return None
    part = guess.part
    best: list[tuple[_Fit, Part]] = []
    while fit is not None and len(best) < _ROUNDS:
        line, part = pair.placed(fit, part, SPEED in edits)
        middle = sum(fit.stretch) / 2
        line = Line(middle, line.time(middle), line.speed)
        fit = pair.fitted(line, part, fine, _FINE_SHIFTS, _LAST_RATE)
        best += [] if fit is None else [(fit, part)]
        if fit is not None and not _UNCERTAIN < fit.similarity < _CERTAIN:
            break
    if not best:
        return None
    fit, part = max(best, key=lambda pair: pair[0].similarity)
    line, shown = fit.line, (fit.line.time(fit.stretch[0]), fit.line.time(fit.stretch[1]))
    length = fit.stretch[1] - fit.stretch[0]
    shorter = min(inner[0].end, outer[0].end / line.speed, MAX_SECONDS)
    if length < (_SHORT_SHARE if SHORT in edits else _SHARE) * shorter:
        return None
    where = Alignment(fit.similarity, line.time(0.0), part)
    return EditedCopy(
        guess.inner, guess.outer, where, guess.mirrored, line.speed, fit.stretch, shown
    )


def _guesses(
    stored: ThumbnailFile,
    numbers: Sequence[int],
    prepared: ThumbnailFile,
    edits: Collection[str],
    most: int,
) -> dict[int, list[Hypothesis]]:
    """The hypotheses by the lower of their two videos; of each video those of the most votes.

    Videos without borders and their changes are kept in ``prepared``, one after the other.
    """
    inside = []
    for row, number in enumerate(numbers):
        video = without_borders(stored.places[number].read())
        inside.append(rectangles(video) if PARTS in edits else [])
        prepared.add(2 * row, video)
        prepared.add(2 * row + 1, changes(video))
    of_video: dict[int, list[Hypothesis]] = {}
    for view in (0, 1):
        videos = ((prepared.places[2 * n + view].read(), parts) for n, parts in enumerate(inside))
        for guess in hypotheses(videos, edits, most):
            of_video.setdefault(guess.inner, []).append(guess)
    guesses: dict[int, list[Hypothesis]] = {}
    for some in of_video.values():
        for guess in sorted(some, key=lambda guess: -guess.votes)[:most]:
            guesses.setdefault(min(guess.outer, guess.inner), []).append(guess)
    return guesses


def edited_copies(
    stored: ThumbnailFile,
    edits: Collection[str],
    most: int,
    workers: int,
    on_step: Callable[[str, int, bool], None] | None = None,
    least: float = COPY_SIMILARITY,
) -> list[EditedCopy]:
    """The copies among stored videos, of every two the most similar, in the order of the videos.

    Memory: 9 KB per second of video for searched parts, a fifth of it without ``parts``. A file
    beside that of ``stored`` takes twice as much as that one until the end of the search.

    Args:
        stored: Thumbnails of the videos.
        edits: Of :data:`EDITS`.
        most: Hypotheses of a video that are compared.
        workers: Processes; 0 for this one.
        on_step: Called with ``comparing copies``, the number of videos and False after each.
        least: Smallest similarity.
    """
    numbers = sorted(stored.places)
    copies: list[EditedCopy] = []
    with closing(ThumbnailFile(stored.folder)) as prepared:
        guesses = _guesses(stored, numbers, prepared, edits, most)
        places = prepared.places
        rows = {low: {n for g in some for n in (g.outer, g.inner)} for low, some in guesses.items()}
        items = (
            (low, (edits, some, {n: (places[2 * n], places[2 * n + 1]) for n in rows[low]}))
            for low, some in guesses.items()
        )
        for _, found, reason in computed(verify_all, items, workers):
            if found is None:
                raise RuntimeError(f"the comparison of copies failed: {reason}")
            copies += [copy for copy in found if copy.alignment.similarity >= least]
            if on_step is not None:
                on_step("comparing copies", len(guesses), False)
    ordered = sorted(copies, key=lambda c: (min(c.inner, c.outer), max(c.inner, c.outer)))
    return [replace(c, inner=numbers[c.inner], outer=numbers[c.outer]) for c in ordered]


def verify_all(
    item: tuple[
        Collection[str], list[Hypothesis], dict[int, tuple[StoredThumbnails, StoredThumbnails]]
    ],
) -> list[EditedCopy]:
    """The copies among hypotheses on pairs with one video; videos and changes by their numbers.

    Of a pair the hypothesis of the most votes first; the others are left out once it is certain.
    """
    edits, guesses, places = item
    pairs: dict[tuple[int, int], list[Hypothesis]] = {}
    for guess in sorted(guesses, key=lambda guess: -guess.votes):
        pair = min(guess.inner, guess.outer), max(guess.inner, guess.outer)
        pairs.setdefault(pair, []).append(guess)
    found: list[EditedCopy] = []
    lower = min(number for pair in pairs for number in pair)
    videos = {lower: (places[lower][0].read(), places[lower][1].read())}
    for (_, other), some in pairs.items():
        # Two videos in memory, which may be long.
        one, changed = places[other]
        videos = {lower: videos[lower], other: (one.read(), changed.read())}
        copies: list[EditedCopy] = []
        for guess in some:
            copy = verified(videos[guess.outer], videos[guess.inner], guess, edits)
            copies += [copy] if copy is not None else []
            if copies and copies[-1].alignment.similarity >= _CERTAIN:
                break
        found += sorted(copies, key=lambda copy: -copy.alignment.similarity)[:1]
    return found
