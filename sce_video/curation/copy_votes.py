"""Hypotheses, from votes of single frames, about videos that show parts of other videos.

Frames of every video are searched among parts of the frames of all videos. Answers that agree on
displacement, speed, part and mirroring form a hypothesis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from sce_video.curation.matching import (
    SEARCHED_SIDES,
    SEARCHED_STEP,
    Part,
    Thumbnails,
    cut_grid,
    grid_parts,
    norms,
    query_vectors,
    squares,
)
from sce_video.datasets.clip_sampling import shown_at
from sce_video.evaluation.functional.clusters import as_bytes, nearest_in_cells
from sce_video.options.find import MIRRORED, PARTS, SPEED

# Settings are defined just before the step that uses them. Unless another reason is given, we chose
# them by hand on the development sets of benchmarks/copy_queries.py (docs/curate.md).

#: Share of its score that a line loses per unit of the logarithm of its speed. If little moves, all
#: speeds fit equally well, and the speed nearest to 1 should win.
SPEED_COST = 0.08


@dataclass(frozen=True)
class Line:
    """Time of the outer video as a linear function of the time of the inner one.

    Attributes:
        pivot: Time of the inner video in seconds, at which the line is anchored.
        at: Corresponding time of the outer video in seconds.
        speed: Seconds of the outer video in one second of the inner one.
    """

    pivot: float
    at: float
    speed: float

    def time(self, inner: float) -> float:
        """Return the time of the outer video at a time of the inner one, in seconds."""
        return self.at + self.speed * (inner - self.pivot)


@dataclass(frozen=True)
class Hypothesis:
    """Hypothesis that a video shows a part of another one.

    Attributes:
        inner: Index of the video that shows the part.
        outer: Index of the video whose part is shown.
        mirrored: Whether the part is mirrored.
        line: Line that maps times of the inner video to times of the outer one.
        part: Left, top, width and height of the part, relative to the frame.
        votes: Sum of the votes of single frames for the hypothesis.
    """

    inner: int
    outer: int
    mirrored: bool
    line: Line
    part: Part
    votes: float = 0.0


@dataclass(frozen=True)
class _SearchSettings:
    """Settings for searching single frames among parts of the frames of all videos."""

    #: Number of frames per second for which similar parts are searched.
    query_rate: float = 4.0
    #: Number of frames per second whose parts are searched. It is low: each frame has many parts.
    index_rate: float = 1.0
    #: Sides, relative to the frame, of parts that are searched only if ``parts`` is requested.
    #: Moved frames, borders and slight crops are found without them.
    small_sides: tuple[float, ...] = (0.6, 0.5, 0.4)
    #: Maximum number of answers to a frame. An answer is a similar part of another video.
    answers: int = 64
    #: Minimum correlation of an answer. Half of this value is subtracted from each answer's vote.
    least: float = 0.7
    #: If the last answer exceeds half of ``least`` by more than this value, all votes are reduced,
    #: because an answer that many videos give means little.
    contrast: float = 0.1
    #: Number of gallery cells with which a frame is compared. Searching more cells finds more
    #: copies, but takes longer.
    probes: int = 5
    #: Number of k-means steps that compute the cells. It is low to save time.
    cell_steps: int = 3


_SEARCH = _SearchSettings()


#: Possible speeds of a copy relative to its original: 13 values from 0.8 to 1.25, which are 3.8 %
#: apart and have 1 in the middle.
SPEEDS = 0.8 * (1.25 / 0.8) ** (np.arange(13) / 12)


@dataclass(frozen=True)
class _VoteSettings:
    """Settings for forming hypotheses from answers that agree on a line in time and a part."""

    #: Number of answers through which lines are drawn, starting with the most similar one.
    seeds: int = 12
    #: Number of seconds by which an answer may miss the line. It is less than the 0.25 s between
    #: queried frames.
    time_slack: float = 0.2
    #: Maximum difference in place and size between the parts of a hypothesis, relative to the
    #: frame. It is a little more than one step between the searched parts.
    part_slack: float = 0.13
    #: Maximum number of hypotheses per pair of videos, because the first one may be wrong.
    tries: int = 2
    #: Minimum number of a video's frames that must match another video.
    least_frames: int = 2
    #: Minimum sum of votes. A frame that correlates by 0.9 adds at most 0.55.
    least_votes: float = 0.4
    #: Number of pairs for which votes are counted, as a multiple of the pairs that are compared
    #: later. It exceeds 1, because pairs are preselected only by an upper bound on their votes.
    counted: int = 2


_VOTES = _VoteSettings()


def voted(
    t_in: np.ndarray, t_out: np.ndarray, parts: np.ndarray, similar: np.ndarray, speeds: np.ndarray
) -> Iterator[tuple[float, float, int]]:
    """Yield the lines in time on which most answers agree, the best first.

    Args:
        t_in: (n,) timestamps of the frames that were searched, seconds.
        t_out: (n,) timestamps of the matched frames, seconds.
        parts: (n, 4) left, top, width and height of the matched parts, relative to the frame.
        similar: (n,) correlations of the frames with the parts.
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
        # Count one vote per frame, although several parts may answer it. Rows are sorted by frame.
        starts = np.flatnonzero(np.diff(t_in[rows], prepend=-1))
        total = np.maximum.reduceat(weight, starts, axis=2).sum(axis=2)
        # If little moves, all speeds fit equally well, and the speed nearest to 1 should win.
        total *= 1 - SPEED_COST * np.abs(np.log(speeds))[:, None]
        which, seed = np.unravel_index(int(total.argmax()), total.shape)
        yield float(total[which, seed]), float(speeds[which]), int(seeds[seed])
        left[rows[good[which, seed]]] = left[seeds[seed]] = False


#: Number of frames whose answers are processed together. It bounds the memory use.
_ASKED_AT_ONCE = 2**15


@dataclass(frozen=True)
class _Answers:
    """Frames of some videos, and the parts of other videos that resemble them.

    Attributes:
        asker: (n,) indices of the videos whose frames were searched.
        owner: (n,) indices of the videos that the parts belong to.
        mirrored: (n,) whether the frame was mirrored.
        t_in: (n,) timestamps of the frames, seconds.
        t_out: (n,) timestamps of the parts, seconds.
        part: (n, 4) left, top, width and height of the parts, relative to the frame.
        similar: (n,) correlations, which are reduced for frames that many parts resemble.
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
    """Yield the parts that resemble frames most, sorted by asker, owner and time.

    Each block contains the answers to the frames of some hundred videos. All parts, and the numbers
    of all answers, are in memory.
    """
    shapes = squares(SEARCHED_SIDES + (_SEARCH.small_sides if PARTS in edits else ()))
    flips = (False, True) if MIRRORED in edits else (False,)
    gallery, owners, queries, askers = [], [], [], []
    places = [*grid_parts(shapes, SEARCHED_STEP)]
    grid = len(places)
    for number, (video, some) in enumerate(videos):
        frames, times = _at_rate(video, _SEARCH.index_rate)
        vectors = cut_grid(frames, shapes, SEARCHED_STEP, some)
        vectors = vectors / norms(vectors)[..., None].astype(np.float64)
        # Leave out flat parts, because they resemble nothing.
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
    if not len(asker) or not len(owner):  # all frames are flat
        return
    rows = torch.cat(gallery)
    of_queries, of_rows = (torch.from_numpy(x[:, 0].astype(np.int32)) for x in (asker, owner))
    # Choose the number of cells so that assigning rows to cells takes as long as the search.
    cells = max(1, round(len(rows) ** 0.5 / 2))
    similar, where = nearest_in_cells(
        torch.cat(queries),
        rows,
        _SEARCH.answers,
        of_queries,
        of_rows,
        probes=_SEARCH.probes,
        cells=cells,
        steps=_SEARCH.cell_steps,
    )
    boxes = np.asarray(places)
    firsts = np.flatnonzero(np.diff(asker[:, 0], prepend=-1, append=-1))  # starts of askers
    cuts = firsts[np.unique(np.searchsorted(firsts, range(0, len(asker), _ASKED_AT_ONCE)))]
    for begin, end in pairwise([*cuts.tolist(), len(asker)]):
        near = similar[begin:end].numpy()
        query, slot = np.nonzero(near >= _SEARCH.least)
        # If many videos give similar answers, count only how much an answer exceeds the last one.
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
    """Return frames at ``rate`` per second, and their times in seconds."""
    times = (np.arange(max(1, int(video.end * rate))) + 0.5) / rate
    return video.frames[shown_at(video.times, times)], times


def hypotheses(
    videos: Iterable[tuple[Thumbnails, list[Part]]], edits: Collection[str], most: int
) -> list[Hypothesis]:
    """Form hypotheses, from single frames, about videos that show parts of other videos.

    Args:
        videos: Videos without borders, or their changes, each with further parts to search.
        edits: Kinds of copies to search, from ``EDITS``.
        most: Largest number of hypotheses per video, those with the most votes.
    """
    blocks = (_agreed(answers, edits, most) for answers in _searched(videos, edits))
    return [guess for block in blocks for guess in block]


def _agreed(answers: _Answers, edits: Collection[str], most: int) -> list[Hypothesis]:
    """Return the hypotheses with the most votes for each asker."""
    if not len(answers.asker):
        return []
    speeds = SPEEDS if SPEED in edits else np.ones(1)
    key = (answers.asker * (int(answers.owner.max()) + 1) + answers.owner) * 2 + answers.mirrored
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    fresh = np.diff(answers.t_in, prepend=-1) != 0
    fresh[starts] = True
    # The sum of each frame's best vote is an upper bound on the votes for a pair.
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
