"""Search for near-duplicates: features and single frames propose pairs, aligned frames decide."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sce_video.curation.comparison import ThumbnailFile, compare_pairs
from sce_video.curation.copy_alignment import EditedCopy
from sce_video.curation.edited_copies import changes, edited_copies
from sce_video.curation.matching import Alignment, Thumbnails, index_vectors, query_vectors
from sce_video.datasets.sources import is_elsewhere
from sce_video.datasets.video_list import split_segment
from sce_video.evaluation.functional.clusters import as_bytes, nearest_in_cells

#: Number of videos whose answers are counted together. All answers would take too much memory.
_VOTES_AT_ONCE = 1000
#: A shared stretch counts as a part if it is shorter than this fraction of a video. A longer
#: stretch is a copy.
_PART_SHARE = 0.6
#: Two stretches of a video are the same if they overlap by at least this fraction of the time that
#: they cover.
_SAME = 0.6


@dataclass(frozen=True)
class _CandidateSettings:
    """Settings for finding candidates by single frames. The values were chosen by hand."""

    #: Maximum number of answers to a frame. An answer is a similar part of another video.
    answers: int = 10
    #: Minimum correlation of an answer.
    least: float = 0.7
    #: Minimum number of a video's frames that a candidate must match.
    fewest_frames: int = 3
    #: If the last answer correlates this well, a frame resembles more parts than it has answers.
    crowded: float = 0.9


_CANDIDATES = _CandidateSettings()


def pairs_by_frames(stored: ThumbnailFile, numbers: Sequence[int], most: int) -> np.ndarray:
    """Find pairs of videos in which frames of one resemble parts of frames of the other.

    A fixed camera records many moments that look alike. If the search cannot return all parts that
    resemble a video, a second search compares changes over time, which distinguish a copy from
    another moment.

    Each second of video needs 3.8 KB of memory for the parts of two frames, 1 KB for the 16 frames
    that are queries, and 1.3 KB for their answers.

    Args:
        stored: Thumbnails of the videos.
        numbers: Indices of the videos, ascending.
        most: Largest number of candidates per video, those with the most similar frames.

    Returns:
        (P, 2) lower and higher number of each pair.
    """
    pairs, crowded = _asked(stored, numbers, most, Thumbnails.sampled)
    if len(crowded) > 1:
        moving, _ = _asked(stored, crowded, most, lambda video: changes(video).sampled())
        pairs = np.concatenate([pairs, moving])
    return unique_pairs(pairs)


def _asked(
    stored: ThumbnailFile,
    numbers: Sequence[int],
    most: int,
    view: Callable[[Thumbnails], np.ndarray],
) -> tuple[np.ndarray, list[int]]:
    """Pair every video with at most ``most`` other videos that its frames resemble.

    Args:
        stored: Thumbnails of the videos.
        numbers: Indices of the videos, ascending.
        most: Largest number of other videos per video.
        view: Function that returns the frames of a video to compare, 16 per second.

    Returns:
        (P, 2) pairs of numbers, and the numbers of videos of which at least half of the frames
        resemble more parts than the search has returned.
    """
    parts: list[np.ndarray] = []
    frames: list[np.ndarray] = []
    for number in numbers:
        sampled = view(stored.places[number].read())
        parts.append(as_bytes(torch.from_numpy(index_vectors(sampled))).numpy())
        frames.append(as_bytes(torch.from_numpy(query_vectors(sampled))).numpy())
    (gallery, owners), (queries, askers) = _gathered(parts), _gathered(frames)
    of_both = torch.from_numpy(askers), torch.from_numpy(owners)
    similar, where = nearest_in_cells(queries, gallery, _CANDIDATES.answers, *of_both, seed=0)
    pairs, votes = _votes(similar.numpy(), where.numpy(), askers, owners)
    enough = votes >= _CANDIDATES.fewest_frames
    pairs, votes = pairs[enough], votes[enough]
    pairs = pairs[np.lexsort((-votes, pairs[:, 0]))]
    starts = np.searchsorted(pairs[:, 0], pairs[:, 0])
    pairs = pairs[np.arange(len(pairs)) - starts < most]
    crowded = similar[:, -1].numpy() >= _CANDIDATES.crowded
    full = np.bincount(askers, crowded) >= np.bincount(askers) / 2
    known = np.asarray(numbers, dtype=np.int64)
    return known[pairs], known[np.flatnonzero(full)].tolist()


def unique_pairs(pairs: np.ndarray) -> np.ndarray:
    """Return pairs of numbers (P, 2) as (lower, higher), each once, in ascending order."""
    if len(pairs) == 0:
        return np.empty((0, 2), dtype=np.int64)
    count = int(pairs.max()) + 1
    # Encode each pair as a single number, because sorting rows of two numbers is much slower.
    keys = np.unique(pairs.min(axis=1).astype(np.int64) * count + pairs.max(axis=1))
    return np.stack(np.divmod(keys, count), axis=1)


def _gathered(blocks: list[np.ndarray]) -> tuple[Tensor, np.ndarray]:
    """Join blocks of rows, and return the rows and the index of each row's block."""
    counts = [len(block) for block in blocks]
    rows = np.empty((sum(counts), blocks[0].shape[1]), dtype=np.int8)
    end = len(rows)
    while blocks:  # release blocks one by one, so that memory does not double
        block = blocks.pop()
        rows[end - len(block) : end] = block
        end -= len(block)
    return torch.from_numpy(rows), np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _votes(
    similar: np.ndarray, where: np.ndarray, askers: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs (P, 2) of videos, and how many frames of the first resemble the second.

    A frame counts a video only once, although several of its parts may answer.
    """
    count = int(max(askers.max(), owners.max())) + 1
    keys, numbers = [], []
    begins = np.searchsorted(askers, np.arange(0, count, _VOTES_AT_ONCE))
    for begin, end in zip(begins, [*begins[1:], len(askers)], strict=True):
        good = similar[begin:end] >= _CANDIDATES.least
        frame = np.broadcast_to(np.arange(begin, end)[:, None], good.shape)[good]
        once = np.unique(frame * count + owners[where[begin:end][good]])
        frame, other = np.divmod(once, count)
        key, number = np.unique(askers[frame].astype(np.int64) * count + other, return_counts=True)
        keys.append(key)
        numbers.append(number)
    return np.stack(np.divmod(np.concatenate(keys), count), axis=1), np.concatenate(numbers)


@dataclass(frozen=True)
class Removed:
    """Video that duplicates another one."""

    row: int  # row of the video
    match: int  # row of the most similar video in its group
    similarity: float  # correlation of frames, or cosine of features
    # Position of one video in the other, or None if no frames were compared.
    alignment: Alignment | None = None
    inner: bool = True  # whether ``match`` contains the video, not the other way round
    edited: EditedCopy | None = None  # shared stretch if the video is an edited copy


@dataclass(frozen=True)
class CopyQuality:
    """Properties by which one of several copies is preferred."""

    duration: float  # duration of the whole video in seconds
    height: int  # height of the frames in pixels
    width: int
    bitrate: float  # bits per second; 0 for unknown, objects, table rows and segments

    def of(self, name: str) -> int:
        """Return the value of a criterion in ``PREFERENCES``, larger for the better video.

        Length and bitrate are compared by their logarithms, rounded to a twentieth.
        """
        if name == "resolution":
            return self.height * self.width
        value = self.duration if name == "length" else self.bitrate
        return round(20 * np.log(max(value, 1e-3)))


@dataclass(frozen=True)
class DuplicateGroup:
    """Video that stays, and its direct and indirect near-duplicates."""

    kept: int
    removed: list[Removed]
    also_kept: list[int] = field(default_factory=list)  # other videos that the reader wants to keep

    @property
    def rows(self) -> list[int]:
        """All videos of the group. Those that stay come first."""
        return [self.kept, *self.also_kept, *(video.row for video in self.removed)]


@dataclass(frozen=True)
class Decisions:
    """Decisions about groups that a reader made on the page of an earlier curation.

    Attributes:
        keep: Paths of videos that stay even if they are copies.
        apart: For each path, the paths that are not copies of it, in both directions.
    """

    keep: frozenset[str] = frozenset()
    apart: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedPart:
    """Stretch that many videos contain, such as an intro, credits or an advertisement.

    Videos that share nothing else are not copies of each other.
    """

    stretches: list[tuple[int, float, float]]  # video, begin and end in seconds, sorted by video


@dataclass(frozen=True)
class Duplicates:
    """Result of the search for near-duplicates."""

    groups: list[DuplicateGroup]  # groups of two or more videos, largest first
    candidates: int  # number of compared pairs
    # Number of each video that was not compared because it cannot be read, and the reason.
    unread: list[tuple[int, str]] = field(default_factory=list)
    shared: list[SharedPart] = field(default_factory=list)  # most frequent stretch first
    quality: dict[int, CopyQuality] = field(default_factory=dict)  # for each video in a group


def candidate_pairs(similar: Tensor, where: Tensor) -> np.ndarray:
    """Return pairs of neighbours (P, 2) as (lower, higher) row, ascending.

    Args:
        similar: (N, k) cosines from
            :func:`~sce_video.evaluation.functional.clusters.neighbour_graph`, -inf in empty slots.
        where: (N, k) rows of the neighbours.
    """
    rows, slots = np.nonzero(similar.numpy() > -np.inf)
    return unique_pairs(np.stack([rows, where.numpy()[rows, slots]], axis=1))


def pairs_of_frames(
    stored: ThumbnailFile,
    pairs: np.ndarray,
    threshold: float,
    most: int,
    copies: Collection[str] = (),
    workers: int = 0,
    on_video: Callable[[str, int, bool], None] | None = None,
) -> tuple[dict[tuple[int, int], Removed], int]:
    """Find the pairs of videos that show the same frames, and count the compared pairs.

    Args:
        stored: Thumbnails of the videos. Videos without thumbnails are not compared.
        pairs: (P, 2) candidates by features, to which candidates by frames are added.
        threshold: Smallest mean correlation of the frames of a copy.
        most: Largest number of candidates by frames per video.
        copies: Kinds of edited copies to search as well, from ``EDITS``.
        workers: Number of processes. 0 compares in this process.
        on_video: Called with ``comparing`` or ``refining``, the total and whether it failed.

    Returns:
        The copies by (lower, higher) row, and the number of compared pairs.
    """
    numbers = sorted(stored.places)
    compared = pairs[np.isin(pairs, numbers).all(axis=1)]
    edges: dict[tuple[int, int], Removed] = {}
    if len(numbers) < 2:
        return edges, len(compared)
    compared = unique_pairs(np.concatenate([compared, pairs_by_frames(stored, numbers, most)]))
    for inner, outer, at in compare_pairs(stored, compared, threshold, workers, on_video):
        edges[min(inner, outer), max(inner, outer)] = Removed(inner, outer, at.similarity, at)
    for copy in edited_copies(stored, copies, most, workers, on_video) if copies else ():
        pair = min(copy.inner, copy.outer), max(copy.inner, copy.outer)
        edge = Removed(copy.inner, copy.outer, copy.alignment.similarity, edited=copy)
        edges.setdefault(pair, edge)
    return edges, len(compared)


def qualities(
    stored: ThumbnailFile, files: Sequence[str], rows: Collection[int]
) -> dict[int, CopyQuality]:
    """Return length, frame size and bitrate of the given rows of ``files``."""
    found = {}
    for row in rows:
        video = stored.places[row].video
        alone = not is_elsewhere(files[row]) and split_segment(files[row]) is None
        size = os.path.getsize(files[row]) if alone and os.path.exists(files[row]) else 0
        bitrate = 8 * size / max(video.duration, 1e-3)
        found[row] = CopyQuality(video.duration, video.height, video.width, bitrate)
    return found


def shared_parts(
    edges: dict[tuple[int, int], Removed], ends: Mapping[int, float], most: int
) -> list[SharedPart]:
    """Find stretches that are parts of more than ``most`` videos, and remove their edges.

    Only stretches shorter than 60 % of their video count. A longer stretch makes a copy, no matter
    how many videos contain it. Two stretches of a video are the same if their overlap is 60 % of
    the time that they cover. An edge connects the stretches of two videos.

    Args:
        edges: Copies by the lower and the higher row. Those that only share a stretch are removed.
        ends: End of the compared part of each video in seconds, by row.
        most: Largest number of videos with the same stretch that are still copies.
    """
    nodes: list[tuple[int, float, float]] = []
    known: dict[int, list[int]] = {}  # indices of a video's nodes
    links: dict[tuple[int, int], tuple[int, int]] = {}
    for pair, edge in sorted(edges.items()):
        ways = []
        for row, (begin, end) in zip((edge.row, edge.match), _stretches(edge, ends), strict=True):
            same = (
                number
                for number in known.setdefault(row, [])
                if min(end, nodes[number][2]) - max(begin, nodes[number][1])
                >= _SAME * (max(end, nodes[number][2]) - min(begin, nodes[number][1]))
            )
            ways.append(next(same, len(nodes)))
            if ways[-1] == len(nodes):
                known[row].append(len(nodes))
                nodes.append((row, begin, end))
        links[pair] = (ways[0], ways[1])

    def is_part(number: int) -> bool:
        row, begin, end = nodes[number]
        return end - begin < _PART_SHARE * ends[row]

    found = []
    for numbers in connected(list(links.values())):
        parts = [nodes[number] for number in numbers if is_part(number)]
        if len({row for row, _, _ in parts}) <= most:
            continue
        found.append(SharedPart(sorted(nodes[number] for number in numbers)))
        inside = set(numbers)
        for pair, (one, two) in links.items():
            if one in inside and (is_part(one) or is_part(two)):
                del edges[pair]
    return sorted(found, key=lambda part: -len(part.stretches))


def _stretches(edge: Removed, ends: Mapping[int, float]) -> list[tuple[float, float]]:
    """Return the stretch that two videos share, in seconds of the first and of the second."""
    if edge.edited is not None:
        own, other = edge.edited.inner_stretch, edge.edited.outer_stretch
        limits = ((own, ends[edge.row]), (other, ends[edge.match]))
        return [(max(0.0, begin), min(last, end)) for (begin, end), last in limits]
    assert edge.alignment is not None
    offset = edge.alignment.offset
    begin, end = max(0.0, offset), min(ends[edge.match], offset + ends[edge.row])
    return [(begin - offset, end - offset), (begin, end)]


def pairs_of_features(
    similar: Tensor, where: Tensor, threshold: float
) -> tuple[dict[tuple[int, int], Removed], dict[int, float]]:
    """Find the pairs of videos whose features have a cosine of at least ``threshold``.

    Args:
        similar: (N, k) cosines of the neighbours, as in :func:`candidate_pairs`.
        where: (N, k) rows of the neighbours.
        threshold: Smallest cosine of near-duplicates.

    Returns:
        The pairs by (lower, higher) row, and the sum of cosines for each video in a pair.
    """
    edges: dict[tuple[int, int], Removed] = {}
    closeness: dict[int, float] = {}
    for row, slot in torch.nonzero(similar >= threshold).tolist():
        other, value = int(where[row, slot]), float(similar[row, slot])
        edges[min(row, other), max(row, other)] = Removed(row, other, value)
        for end in (row, other):
            closeness[end] = closeness.get(end, 0.0) + value
    return edges, closeness


def grouped(
    edges: dict[tuple[int, int], Removed],
    worth: Callable[[int], tuple],
    paths: Sequence[str],
    decisions: Decisions,
    edited: Mapping[tuple[int, int], int] | None = None,
) -> list[DuplicateGroup]:
    """Group the videos that edges connect, and choose the videos that stay.

    The video with the smallest ``worth`` stays, and so does every video that the reader keeps. An
    edited video (:func:`~.originals.edited_videos`) is chosen only if all videos of its group were
    edited.

    No group contains two videos that the reader has declared not to be copies of each other. The
    most similar pairs are joined first, and a pair that would violate this rule is ignored.
    """
    row_of = {path: row for row, path in enumerate(paths)} if decisions.apart else {}
    apart = {
        row_of[path]: {row_of[other] for other in others if other in row_of}
        for path, others in decisions.apart.items()
        if path in row_of
    }
    ordered = sorted(edges, key=lambda pair: (-edges[pair].similarity, pair))
    groups = connected(ordered, apart)
    group_of = {row: number for number, rows in enumerate(groups) for row in rows}
    best: dict[int, Removed] = {}
    for a, b in ordered:
        if group_of.get(a, -1) != group_of.get(b, -2):
            continue
        edge = edges[a, b]
        for row, match in ((a, b), (b, a)):
            found = edge.similarity, edge.alignment, edge.row == row, edge.edited
            best.setdefault(row, Removed(row, match, *found))
    changed = {
        row for (a, b), row in (edited or {}).items() if group_of.get(a, -1) == group_of.get(b, -2)
    }

    def order(row: int) -> tuple:
        return paths[row] not in decisions.keep, row in changed, worth(row)

    result = []
    for rows in groups:
        kept, *others = sorted(rows, key=order)
        also = [row for row in sorted(others) if paths[row] in decisions.keep]
        removed = [best[row] for row in sorted(set(others).difference(also))]
        result.append(DuplicateGroup(kept, removed, also))
    return sorted(result, key=lambda group: (-len(group.removed), group.kept))


def connected(
    pairs: Sequence[tuple[int, int]], apart: Mapping[int, Collection[int]] | None = None
) -> list[list[int]]:
    """Return the connected groups of rows.

    Args:
        pairs: Pairs of rows, which are joined one after the other.
        apart: For each row, the rows that may not be in its group, in both directions. A pair that
            would violate this is ignored.

    Returns:
        Groups of at least two rows, ordered by their smallest row. Each group is ascending.
    """
    group_of = {row: {row} for pair in pairs for row in pair}
    for a, b in pairs:
        if group_of[a] is not group_of[b]:
            smaller, larger = sorted((group_of[a], group_of[b]), key=len)
            if apart and any(not larger.isdisjoint(apart.get(row, ())) for row in smaller):
                continue
            larger |= smaller
            group_of |= dict.fromkeys(smaller, larger)
    groups = {id(rows): rows for rows in group_of.values()}  # list each group only once
    return sorted(sorted(rows) for rows in groups.values() if len(rows) > 1)
