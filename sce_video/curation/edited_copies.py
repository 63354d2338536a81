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
from sce_video.options.find import MIRRORED, PARTS, SHORT, SPEED

#: Seconds of a video that are read with ``late``.
LATE_SECONDS = 3600.0
#: Smallest similarity of a copy: other videos of two generated sets stay below (docs/curate.md).
COPY_SIMILARITY = 0.85

# The settings of each step stand before it. They were chosen by hand on the development sets of
# benchmarks/copy_queries.py, unless a reason for one value is given (docs/curate.md).

#: The part that is the whole frame.
_WHOLE = (0.0, 0.0, 1.0, 1.0)
#: Share of its score that a line in time loses per unit of the logarithm of its speed. Where
#: little moves, all speeds agree equally well, and the speed nearest to 1 must win.
_SPEED_COST = 0.08


@dataclass(frozen=True)
class Line:
    """Time of the outer video as a linear function of the time of the inner one.

    Attributes:
        pivot: A time of the inner video, seconds.
        at: The time of the outer video that is shown then, seconds.
        speed: Seconds of the outer video in one second of the inner one.
    """

    pivot: float
    at: float
    speed: float

    def time(self, inner: float) -> float:
        """Seconds of the outer video."""
        return self.at + self.speed * (inner - self.pivot)


@dataclass(frozen=True)
class Hypothesis:
    """The guess that one video shows a part of another one.

    Attributes:
        inner: Number of the video that shows the part.
        outer: Number of the video whose part is shown.
        mirrored: Whether the part is mirrored.
        line: When it is shown.
        part: Left, top, width and height of the part, relative to the frame.
        votes: How strongly single frames support the guess.
    """

    inner: int
    outer: int
    mirrored: bool
    line: Line
    part: Part
    votes: float = 0.0


@dataclass(frozen=True)
class EditedCopy:
    """Two videos that share a stretch.

    Attributes:
        inner: Number of the video whose whole frame is a part of the other video's frame.
        outer: Number of the other video.
        alignment: Similarity, 0 to 1; when in ``outer`` the inner one begins; the part it shows.
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


#: Seconds before and after a frame over which the mean is taken that is subtracted from it.
_AROUND = 1.0
#: Factor of what is left of a frame, so that small changes are not lost in rounding to bytes.
_GAIN = 3.0
#: Frames that are processed together: the sums of an hour would take gigabytes.
_CHANGED_AT_ONCE = 1024


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


@dataclass(frozen=True)
class _RectangleSettings:
    """Search for rectangles with still edges, in thumbnails of 32 x 32 pixels."""

    #: Rectangles of a video at most, because each one adds a searched part to every frame.
    most: int = 4
    #: Smallest side in pixels, almost a third of the frame.
    smallest: int = 10
    #: Smallest score of a rectangle: the mean of its sides, plus its weakest side.
    least_score: float = 0.4
    #: Bound on the score of one pixel of an edge: a strong piece alone does not make a side.
    most_of_a_pixel: float = 0.7
    #: Frames over which the edges are averaged, at equal steps, whatever the video's length is.
    frames: int = 40


_RECTANGLES = _RectangleSettings()


def rectangles(video: Thumbnails) -> list[Part]:
    """Up to four rectangles that may show another video: their sides are edges that stand still.

    An edge is where neighbouring pixels differ on average over time by more than those two pixels
    beside it, relative to all of the frame; a side counts by its mean, one at the border of the
    frame does not count, and of a rectangle the weakest side counts twice. Smallest side: 10 of 32
    pixels. The best come first.
    """
    frames = video.frames[:: max(1, len(video.frames) // _RECTANGLES.frames)].astype(np.float32)
    spans = _spans()
    low, high = spans.T
    lengths = (high - low).astype(np.float32)[:, None]
    sums, worst = [], []
    bound = _RECTANGLES.most_of_a_pixel
    for axis in (2, 1):  # edges between columns, between rows
        step = np.abs(np.diff(frames, axis=axis)).mean(axis=0)
        step = step if axis == 2 else step.T  # (along the edge, edges)
        wide = np.pad(step, ((0, 0), (2, 2)), mode="edge")
        edge = (step - (wide[:, :-4] + wide[:, 4:]) / 2) / (step.mean() + 2)
        # Bounded: one strong piece is no side. There is none at the borders of the frame.
        total = np.cumsum(np.pad(edge.clip(-bound, bound), ((1, 0), (1, 1))), axis=0)
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
    for _ in range(_RECTANGLES.most):
        row, column = divmod(int(score.argmax()), len(spans))
        if score[row, column] < _RECTANGLES.least_score:
            break
        (top, end), (left, right) = spans[row].tolist(), spans[column].tolist()
        found.append((left / SIDE, top / SIDE, (right - left) / SIDE, (end - top) / SIDE))
        near = [np.abs(spans - spans[n]).max(axis=1) <= 1 for n in (row, column)]
        score[np.ix_(*near)] = -1.0
    return found


@cache
def _spans() -> np.ndarray:
    """Begin and end of every interval of pixels that a rectangle may fill, (n, 2)."""
    ends = [(a, b) for a in range(SIDE) for b in range(a + _RECTANGLES.smallest, SIDE + 1)]
    return np.array(ends)


@dataclass(frozen=True)
class _SearchSettings:
    """Search of single frames among parts of the frames of all videos."""

    #: Frames per second that are searched.
    query_rate: float = 4.0
    #: Frames per second whose parts they are searched among: each has many parts to keep.
    index_rate: float = 1.0
    #: Sides of the searched parts, relative to the frame.
    sides: tuple[float, ...] = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    #: The first sides, which are searched without ``parts``: moved frames, borders, small crops.
    sides_without_parts: int = 4
    #: Step between the places of the parts, relative to the frame.
    step: float = 0.1
    #: Side in pixels to which a part is reduced, as in :func:`~.matching.query_vectors`.
    pixels: int = 8
    #: Answers to a frame.
    answers: int = 64
    #: Smallest correlation of an answer. Half of it is subtracted when answers are counted.
    least: float = 0.7
    #: How much the last answer may exceed half of ``least`` before all answers to the frame count
    #: less: an answer that many videos give says little.
    contrast: float = 0.1
    #: Cells of the gallery that a frame is compared with. More cells find more, and take longer.
    probes: int = 5
    #: Steps of k-means that make the cells. Fewer steps take less time.
    cell_steps: int = 3


_SEARCH = _SearchSettings()


def searched_parts(sides: Sequence[float]) -> list[Part]:
    """Squares in relative coordinates, in the order of :func:`part_vectors`."""
    starts = {
        side: np.linspace(0, 1 - side, round((1 - side) / _SEARCH.step) + 1) for side in sides
    }
    return [(float(x), float(y), s, s) for s in sides for y in starts[s] for x in starts[s]]


def part_vectors(
    frames: np.ndarray, sides: Sequence[float], others: Sequence[Part] = ()
) -> np.ndarray:
    """Parts of frames (T, 32, 32) as vectors (T, P, 64), as :func:`~.matching.query_vectors`.

    Those of :func:`searched_parts`, then some others.
    """
    found = []
    for side in sides:
        starts = np.linspace(0, 1 - side, round((1 - side) / _SEARCH.step) + 1)
        axis = averaging(starts, side, _SEARCH.pixels)
        tall = np.matmul(axis.reshape(-1, SIDE), frames.astype(np.float32))
        cut = np.matmul(tall, axis.reshape(-1, SIDE).T)
        cut = cut.reshape(len(frames), len(axis), _SEARCH.pixels, len(axis), _SEARCH.pixels)
        found.append(cut.transpose(0, 1, 3, 2, 4).reshape(len(frames), -1, _SEARCH.pixels**2))
    if others:
        left, top, wide, high = np.array(others).T
        rows, columns = averaging(top, high, _SEARCH.pixels), averaging(left, wide, _SEARCH.pixels)
        cut = np.matmul(np.matmul(rows, frames[:, None].astype(np.float32)), columns.swapaxes(1, 2))
        found.append(cut.reshape(len(frames), -1, _SEARCH.pixels**2))
    parts = np.concatenate(found, axis=1)
    parts -= parts.mean(axis=2, keepdims=True)
    return parts / _norms(parts)[..., None]


def _norms(vectors: np.ndarray) -> np.ndarray:
    """L2 norms over the last axis; at least those of a part that is flat."""
    least = FLAT * np.sqrt(vectors.shape[-1])
    return np.maximum(np.sqrt(np.einsum("...i,...i->...", vectors, vectors)), least)


#: Speeds of a copy, relative to its original: 13 from 0.8 to 1.25, 3.8 % apart, 1 in the middle.
_SPEEDS = 0.8 * (1.25 / 0.8) ** (np.arange(13) / 12)


@dataclass(frozen=True)
class _VoteSettings:
    """Hypotheses on two videos by the answers that agree on a line in time and a part."""

    #: Answers through which a line is laid: the most similar ones of the two videos.
    seeds: int = 12
    #: Seconds by which an answer may miss the line: less than the 0.25 s between two frames.
    time_slack: float = 0.2
    #: How far the place and size of a part may differ from those of the seed, relative to the
    #: frame: a little more than one step between the searched parts.
    part_slack: float = 0.13
    #: Hypotheses on two videos: a second one may be right where the first is not.
    tries: int = 2
    #: Fewest frames of a video that another one must answer.
    least_frames: int = 2
    #: Smallest sum of votes. A frame that correlates by 0.9 adds at most 0.55.
    least_votes: float = 0.4
    #: Pairs of a video whose votes are counted, as a multiple of those that are compared later:
    #: the order is by an upper bound of the votes, which may be wrong.
    counted: int = 2


_VOTES = _VoteSettings()


def voted(
    t_in: np.ndarray, t_out: np.ndarray, parts: np.ndarray, similar: np.ndarray, speeds: np.ndarray
) -> Iterator[tuple[float, float, int]]:
    """Yield the lines in time on which most answers agree, the best one first.

    Args:
        t_in: (n,) timestamps of the frames that were searched, seconds.
        t_out: (n,) timestamps of the matched frames, seconds.
        parts: (n, 4) left, top, width and height of the matched parts, relative to the frame.
        similar: (n,) correlations.
        speeds: Speeds that are tried.

    Yields:
        The sum of the votes, the speed, and the row of an answer that lies on the line.
    """
    left = np.ones(len(similar), dtype=bool)
    for _ in range(_VOTES.tries):
        rows = np.flatnonzero(left)
        if len(rows) < 2:
            return
        seeds = rows[np.argsort(-similar[rows], kind="stable")[: _VOTES.seeds]]
        near = (np.abs(parts[rows] - parts[seeds, None]) <= _VOTES.part_slack).all(axis=2)
        line = speeds[:, None, None] * (t_in[rows] - t_in[seeds, None])
        gap = np.abs(t_out[rows] - t_out[seeds, None] - line)
        good = near & (gap <= _VOTES.time_slack)
        weight = np.where(good, (similar[rows] - _SEARCH.least / 2) * (1 - gap), 0)
        # Each frame votes once, though several parts may answer: rows are in order of the frames.
        starts = np.flatnonzero(np.diff(t_in[rows], prepend=-1))
        total = np.maximum.reduceat(weight, starts, axis=2).sum(axis=2)
        # Where little moves all speeds agree: that nearest to 1 is meant.
        total *= 1 - _SPEED_COST * np.abs(np.log(speeds))[:, None]
        which, seed = np.unravel_index(int(total.argmax()), total.shape)
        yield float(total[which, seed]), float(speeds[which]), int(seeds[seed])
        left[rows[good[which, seed]]] = left[seeds[seed]] = False


#: Frames whose answers are gathered together, which bounds the memory for them.
_ASKED_AT_ONCE = 2**15


@dataclass(frozen=True)
class _Answers:
    """Frames of some videos, and the parts of other videos that they resemble.

    Attributes:
        asker: (n,) numbers of the videos whose frames were searched.
        owner: (n,) numbers of the videos that the parts belong to.
        mirrored: (n,) whether the frame was mirrored.
        t_in: (n,) timestamps of the frames, seconds.
        t_out: (n,) timestamps of the parts, seconds.
        part: (n, 4) left, top, width and height of the parts, relative to the frame.
        similar: (n,) correlations, less for frames that many parts resemble.
    """

    asker: np.ndarray
    owner: np.ndarray
    mirrored: np.ndarray
    t_in: np.ndarray
    t_out: np.ndarray
    part: np.ndarray
    similar: np.ndarray


def _searched(
    videos: Iterable[tuple[Thumbnails, list[Part]]], edits: Collection[str]
) -> Iterator[_Answers]:
    """The parts that the frames of videos resemble most, in the order of asker, owner and time.

    Those of some hundred videos at a time: memory is that of the parts and of numbers of answers.
    """
    sides = _SEARCH.sides if PARTS in edits else _SEARCH.sides[: _SEARCH.sides_without_parts]
    flips = (False, True) if MIRRORED in edits else (False,)
    gallery, owners, queries, askers = [], [], [], []
    places = searched_parts(sides)
    grid = len(places)
    for number, (video, some) in enumerate(videos):
        frames, times = _at_rate(video, _SEARCH.index_rate)
        vectors = part_vectors(frames, sides, some)
        # Flat parts answer to nothing.
        frame, part = np.nonzero(np.einsum("...i,...i->...", vectors, vectors) > _SEARCH.least**2)
        gallery.append(as_bytes(torch.from_numpy(vectors[frame, part])))
        part[part >= grid] += len(places) - grid
        places += some
        owners.append(np.stack([np.full(len(frame), number), times[frame], part], axis=1))
        frames, times = _at_rate(video, _SEARCH.query_rate)
        for flip in flips:
            vectors = query_vectors(np.ascontiguousarray(frames[:, :, ::-1] if flip else frames))
            kept = np.flatnonzero(np.einsum("ij,ij->i", vectors, vectors) > _SEARCH.least**2)
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
    how = {"probes": _SEARCH.probes, "cells": cells, "steps": _SEARCH.cell_steps}
    of_both = of_queries, of_rows
    similar, where = nearest_in_cells(torch.cat(queries), rows, _SEARCH.answers, *of_both, **how)
    boxes = np.asarray(places)
    firsts = np.flatnonzero(np.diff(asker[:, 0], prepend=-1, append=-1))  # and the end
    cuts = firsts[np.unique(np.searchsorted(firsts, range(0, len(asker), _ASKED_AT_ONCE)))]
    for begin, end in pairwise([*cuts.tolist(), len(asker)]):
        near = similar[begin:end].numpy()
        query, slot = np.nonzero(near >= _SEARCH.least)
        # An answer that many videos give says little: it counts by how much it is better.
        common = np.maximum(0, near[:, -1] - _SEARCH.least / 2 - _SEARCH.contrast)
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
    """Guess from single frames which videos show parts of others.

    Args:
        videos: Videos without borders, or their :func:`changes`; for each, further parts that are
            searched.
        edits: Kinds of copies, of ``EDITS``.
        most: Hypotheses of a video at most. Those with the most votes are kept.
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
    bound = np.maximum.reduceat(answers.similar, firsts) - _SEARCH.least / 2
    groups = np.searchsorted(firsts, starts)
    bound, frames = np.add.reduceat(bound, groups), np.diff(groups, append=len(firsts))
    askers = answers.asker[starts]
    order = np.lexsort((-bound, askers))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(askers, askers)[order]
    enough = (
        (frames >= _VOTES.least_frames)
        & (bound >= _VOTES.least_votes)
        & (rank < _VOTES.counted * most)
    )
    ends = np.append(starts[1:], len(key))
    found: dict[int, list[Hypothesis]] = {}
    for begin, end in zip(starts[enough].tolist(), ends[enough].tolist(), strict=True):
        some = slice(begin, end)
        facts = answers.t_in[some], answers.t_out[some], answers.part[some], answers.similar[some]
        asker, owner = int(answers.asker[begin]), int(answers.owner[begin])
        for votes, speed, row in voted(*facts, speeds):
            if votes < _VOTES.least_votes:
                break
            left, top, wide, high = answers.part[begin + row].tolist()
            at = Line(float(facts[0][row]), float(facts[1][row]), speed)
            how = bool(answers.mirrored[begin]), at, (left, top, wide, high), votes
            found.setdefault(asker, []).append(Hypothesis(asker, owner, *how))
    return [h for some in found.values() for h in sorted(some, key=lambda h: -h.votes)[:most]]


@dataclass(frozen=True)
class _LineSettings:
    """Comparison of two videos along lines in time, first near a hypothesis, then more finely."""

    #: Correlation that a frame must exceed to lengthen a stretch. Less shortens it.
    similar: float = 0.5
    #: Fewest compared frames of a stretch.
    fewest_frames: int = 4
    #: Compared frames per second near a hypothesis. They are few, because many lines are tried.
    first_rate: float = 5.0
    #: Compared frames per second after the alignment in place.
    last_rate: float = 12.0


_LINES = _LineSettings()
#: Seconds by which a line near a hypothesis is moved: more than ``time_slack`` of the votes.
_SHIFTS = np.arange(-4, 5) / 12
#: Seconds by which a line is moved after the alignment in place.
_FINE_SHIFTS = np.arange(-2, 3) / 24
#: Factors on the speed of a line after the alignment in place: 3 % to either side.
_FINE_SPEEDS = np.arange(97, 104, 1.5) / 100


@dataclass(frozen=True)
class _PlacementSettings:
    """Alignment of two videos in place and time by Gauss-Newton steps."""

    #: Compared frames at most, at equal steps over the stretch.
    frames: int = 12
    #: Steps at most.
    steps: int = 8
    #: Smallest side of the part, relative to the frame: below the 0.4 of the searched parts.
    smallest: float = 0.3
    #: Gain of the mean correlation in one step below which the alignment ends.
    least_gain: float = 2e-3
    #: Seconds before and after a frame from which the derivative in time is computed.
    instant: float = 1 / 12


_PLACEMENT = _PlacementSettings()
#: Longest step: the left, top, right and lower edge (shares of the frame), seconds, and speed.
#: Without a bound a step that follows from few pixels would leave the neighbourhood.
_LONGEST_STEP = np.array([0.06, 0.06, 0.06, 0.06, 0.15, 0.03])


@dataclass(frozen=True)
class _DecisionSettings:
    """Whether a stretch that two videos share makes a copy, and when to stop looking."""

    #: Standard deviation of a change in grey levels below which nothing moves.
    moves: float = 0.5
    #: Seconds over which a stretch becomes certain: the similarity is multiplied by
    #: 1 - exp(-seconds / this), so that stretches of three seconds and more lose at most 5 %.
    certain_seconds: float = 1.0
    #: Similarity before the alignment in place below which the alignment is not tried.
    promising: float = 0.2
    #: Rounds of alignment in place and time at most.
    rounds: int = 2
    #: Similarity up to which a round is hopeless, so that no other one follows.
    hopeless: float = 0.4
    #: Similarity from which a copy is certain: no other round or hypothesis is tried.
    certain: float = 0.95
    #: Share of the shorter video that both must show (docs/curate.md).
    share: float = 0.6
    #: The same share with ``short``: a little less than a sixth.
    short_share: float = 0.15


_DECISION = _DecisionSettings()


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
        similar = np.where(common, table[np.arange(len(own)), where] - _LINES.similar, -1.0)
        total = np.cumsum(np.pad(similar, ((0, 0), (0, 0), (1, 0))), axis=2)
        gain = (total - np.minimum.accumulate(total, axis=2)).max(axis=2)
        # Of equally good lines the one of less change, and of the speed nearest to 1.
        gain *= 1 - _SPEED_COST * np.abs(np.log(line.speed * speeds))[:, None]
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
        """The line and the part at which the stretch of a fit is most similar, near a part.

        Gauss-Newton steps (Lucas and Kanade 1981) on unit vectors of up to 12 frames: in the four
        edges of the part, in time and, with ``faster``, in speed.
        """
        line, (begin, end) = fit.line, fit.stretch
        inside = np.flatnonzero((self.middles >= begin) & (self.middles < end))
        count = min(len(inside), _PLACEMENT.frames)
        own = inside[np.linspace(0, len(inside) - 1, count).round().astype(int)]
        since, last = self.middles[own] - line.pivot, self.outer.times[-1]
        ours = _units(_pixels(self.inner.frames[own], _WHOLE))
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
    """A stretch that two videos share along a line in time.

    Attributes:
        line: The line.
        stretch: Start and end in the inner video, seconds.
        similarity: Correlation of what changes in both, -1 to 1.
    """

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

    The mean over time is subtracted, because other videos may have the same background.
    The norms are at least those of changes of half a grey level, below which nothing moves.
    """
    theirs, ours = theirs - theirs.mean(axis=0), ours - ours.mean(axis=0)
    least = _DECISION.moves * np.sqrt(ours.size)
    norms = [max(float(np.linalg.norm(x)), least) for x in (theirs, ours)]
    certain = 1 - np.exp((stretch[0] - stretch[1]) / _DECISION.certain_seconds)
    return float(certain * (theirs * ours).sum() / (norms[0] * norms[1]))


def verified(
    outer: Views, inner: Views, guess: Hypothesis, edits: Collection[str]
) -> EditedCopy | None:
    """What two videos share near a hypothesis, or None.

    Args:
        outer: The video of which a part is shown, without borders, and its changes.
        inner: The one that shows it, also both.
        guess: Of :func:`hypotheses`.
        edits: Of ``EDITS``: whether the speed varies, and how short the stretch may be.
    """
    pair = _Pair(outer, inner, guess.mirrored)
    near, fine = np.ones(1), np.ones(1)
    if SPEED in edits:
        near, fine = _SPEEDS[::2] / guess.line.speed, _FINE_SPEEDS
    fit = pair.fitted(guess.line, guess.part, near, _SHIFTS, _LINES.first_rate)
    if fit is None or fit.similarity < _DECISION.promising:
        return None
    part = guess.part
    best: list[tuple[_Fit, Part]] = []
    while fit is not None and len(best) < _DECISION.rounds:
        line, part = pair.placed(fit, part, SPEED in edits)
        middle = sum(fit.stretch) / 2
        line = Line(middle, line.time(middle), line.speed)
        fit = pair.fitted(line, part, fine, _FINE_SHIFTS, _LINES.last_rate)
        best += [] if fit is None else [(fit, part)]
        if fit is not None and not _DECISION.hopeless < fit.similarity < _DECISION.certain:
            break
    if not best:
        return None
    fit, part = max(best, key=lambda pair: pair[0].similarity)
    line, shown = fit.line, (fit.line.time(fit.stretch[0]), fit.line.time(fit.stretch[1]))
    length = fit.stretch[1] - fit.stretch[0]
    shorter = min(inner[0].end, outer[0].end / line.speed, MAX_SECONDS)
    if length < (_DECISION.short_share if SHORT in edits else _DECISION.share) * shorter:
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
        edits: Of ``EDITS``.
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
            if copies and copies[-1].alignment.similarity >= _DECISION.certain:
                break
        found += sorted(copies, key=lambda copy: -copy.alignment.similarity)[:1]
    return found
