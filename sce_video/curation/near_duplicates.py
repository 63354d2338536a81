"""Near-duplicates among videos: candidates by their features, decided by their frames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sce_video.curation.comparison import ThumbnailFile, compare_pairs, read_thumbnails
from sce_video.curation.edited_copies import LATE, LATE_SECONDS, EditedCopy, edited_copies
from sce_video.curation.matching import MAX_SECONDS, Alignment, index_vectors, query_vectors
from sce_video.evaluation.functional.clusters import as_bytes, nearest_in_cells

#: Answers to a frame, the smallest correlation of one, and the frames that a candidate answers for.
_ANSWERS, _LEAST, _FEWEST_FRAMES = 10, 0.7, 3
_VOTES_AT_ONCE = 1000  # videos


def pairs_by_frames(stored: ThumbnailFile, numbers: Sequence[int], most: int) -> np.ndarray:
    """Pairs (P, 2), lower and higher, of videos of which frames of one resemble parts of the other.

    Memory: 5 KB per second of video: 3.8 KB for the parts of each of two frames, one byte per
    number, 1 KB for the 16 frames that are queries; and 1.3 KB for their answers.

    Args:
        stored: Thumbnails of the videos.
        numbers: Of the videos, ascending.
        most: Candidates of a video, those with the most similar frames first.
    """
    parts: list[np.ndarray] = []
    frames: list[np.ndarray] = []
    for number in numbers:
        sampled = stored.places[number].read().sampled()
        parts.append(as_bytes(torch.from_numpy(index_vectors(sampled))).numpy())
        frames.append(as_bytes(torch.from_numpy(query_vectors(sampled))).numpy())
    (gallery, owners), (queries, askers) = _gathered(parts), _gathered(frames)
    similar, where = nearest_in_cells(
        queries, gallery, _ANSWERS, torch.from_numpy(askers), torch.from_numpy(owners), seed=0
    )
    pairs, votes = _votes(similar.numpy(), where.numpy(), askers, owners)
    pairs, votes = pairs[votes >= _FEWEST_FRAMES], votes[votes >= _FEWEST_FRAMES]
    pairs = pairs[np.lexsort((-votes, pairs[:, 0]))]
    starts = np.searchsorted(pairs[:, 0], pairs[:, 0])
    pairs = pairs[np.arange(len(pairs)) - starts < most]
    return unique_pairs(np.asarray(numbers, dtype=np.int64)[pairs])


def unique_pairs(pairs: np.ndarray) -> np.ndarray:
    """Pairs of numbers (P, 2) as (lower, higher), each once, in ascending order."""
    if len(pairs) == 0:
        return np.empty((0, 2), dtype=np.int64)
    count = int(pairs.max()) + 1
    # One number for a pair: sorted much faster than rows of two.
    keys = np.unique(pairs.min(axis=1).astype(np.int64) * count + pairs.max(axis=1))
    return np.stack(np.divmod(keys, count), axis=1)


def _gathered(blocks: list[np.ndarray]) -> tuple[Tensor, np.ndarray]:
    """All rows of the blocks, which are emptied, and for each the position of its block, int32."""
    counts = [len(block) for block in blocks]
    rows = np.empty((sum(counts), blocks[0].shape[1]), dtype=np.int8)
    end = len(rows)
    while blocks:  # they are released one by one: memory is not needed twice
        block = blocks.pop()
        rows[end - len(block) : end] = block
        end -= len(block)
    return torch.from_numpy(rows), np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _votes(
    similar: np.ndarray, where: np.ndarray, askers: np.ndarray, owners: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (P, 2) of videos, the asking one first, and the frames of it that the other resembles.

    Each video counts once for a frame: several of its parts may answer.
    """
    count = int(max(askers.max(), owners.max())) + 1
    keys, numbers = [], []
    begins = np.searchsorted(askers, np.arange(0, count, _VOTES_AT_ONCE))
    for begin, end in zip(begins, [*begins[1:], len(askers)], strict=True):
        # In blocks: the keys of all frames would take as much memory as the answers.
        good = similar[begin:end] >= _LEAST
        frame = np.broadcast_to(np.arange(begin, end)[:, None], good.shape)[good]
        once = np.unique(frame * count + owners[where[begin:end][good]])
        frame, other = np.divmod(once, count)
        key, number = np.unique(askers[frame].astype(np.int64) * count + other, return_counts=True)
        keys.append(key)
        numbers.append(number)
    return np.stack(np.divmod(np.concatenate(keys), count), axis=1), np.concatenate(numbers)


@dataclass(frozen=True)
class Removed:
    """A video that duplicates another one."""

    row: int  # its number
    match: int  # the video of its group that it resembles most
    similarity: float  # of the two: correlation of frames, or cosine of features
    # Where the one lies in the other; None if frames were not compared.
    alignment: Alignment | None = None
    inner: bool = True  # whether it lies in ``match``, and not the other way round
    edited: EditedCopy | None = None  # what the two share, if that is how they were found


@dataclass(frozen=True)
class DuplicateGroup:
    """The video that stays, and near-duplicates of it, directly or by way of others."""

    kept: int
    removed: list[Removed]


@dataclass(frozen=True)
class Duplicates:
    """Result of the search."""

    groups: list[DuplicateGroup]  # of two or more videos, the largest first
    candidates: int  # pairs that were compared
    # (number, reason) of videos that were not compared, since their frames cannot be read.
    unread: list[tuple[int, str]] = field(default_factory=list)


def candidate_pairs(similar: Tensor, where: Tensor) -> np.ndarray:
    """Every two rows (P, 2) of which one is a neighbour of the other, (lower, higher), ascending.

    ``similar`` (N, k) are the cosines of
    :func:`~sce_video.evaluation.functional.clusters.neighbour_graph`, -inf in an empty slot,
    ``where`` (N, k) their rows.
    """
    rows, slots = np.nonzero(similar.numpy() > -np.inf)
    return unique_pairs(np.stack([rows, where.numpy()[rows, slots]], axis=1))


def duplicates_by_frames(
    files: Sequence[str],
    pairs: np.ndarray,
    most: int,
    threshold: float,
    folder: str,
    workers: int,
    on_video: Callable[[str, int, bool], None] | None = None,
    copies: Collection[str] = (),
) -> Duplicates:
    """Groups of videos that show the same frames, of the candidates.

    The longest video of a group is kept; of equally long ones (to a twentieth) the one with the
    largest frames, then the first path.

    Args:
        files: All videos.
        pairs: (P, 2), candidates by features; those by frames are added.
        most: Candidates by frames of a video.
        threshold: Smallest mean correlation of the frames of a copy.
        folder: For a temporary file of 32 KB per second of video, at most, and as much that is
            kept for a later run.
        workers: Processes.
        on_video: Called with ``reading frames``, ``comparing`` or ``refining``, the total and
            whether it failed.
        copies: Of :data:`~sce_video.curation.edited_copies.EDITS`: copies that are searched, too.
    """
    seconds = LATE_SECONDS if LATE in copies else MAX_SECONDS
    with closing(ThumbnailFile(folder)) as stored:
        unread = read_thumbnails(stored, files, workers, on_video, seconds)
        readable = np.zeros(len(files), dtype=bool)
        readable[list(stored.places)] = True
        compared = pairs[readable[pairs].all(axis=1)]
        if readable.sum() > 1:
            by_frames = pairs_by_frames(stored, np.flatnonzero(readable).tolist(), most)
            compared = unique_pairs(np.concatenate([compared, by_frames]))
        edges: dict[tuple[int, int], Removed] = {}
        for inner, outer, at in compare_pairs(stored, compared, threshold, workers, on_video):
            edges[min(inner, outer), max(inner, outer)] = Removed(inner, outer, at.similarity, at)
        if copies and readable.sum() > 1:
            for copy in edited_copies(stored, copies, most, workers, on_video):
                pair = min(copy.inner, copy.outer), max(copy.inner, copy.outer)
                edge = Removed(copy.inner, copy.outer, copy.alignment.similarity, edited=copy)
                edges.setdefault(pair, edge)

        def worth(row: int) -> tuple[float, int, str]:
            found = stored.places[row].read()
            length = -round(20 * np.log(max(found.duration, 1e-3)))
            return length, -found.height * found.width, files[row]

        groups = _groups(edges, worth)
    return Duplicates(groups, len(compared), unread)


def duplicates_by_features(
    paths: Sequence[str], similar: Tensor, where: Tensor, threshold: float
) -> Duplicates:
    """Groups of videos whose features have a cosine of at least ``threshold``.

    The video that resembles the others of its group most is kept, of equal ones the first path.

    Args:
        paths: (N,) of the videos.
        similar: (N, k) cosines with the neighbours of each, as of :func:`candidate_pairs`.
        where: (N, k) their rows.
        threshold: Smallest cosine of near-duplicates.
    """
    pairs = torch.nonzero(similar >= threshold).tolist()
    edges: dict[tuple[int, int], Removed] = {}
    closeness: dict[int, float] = {}
    for row, slot in pairs:
        other, value = int(where[row, slot]), float(similar[row, slot])
        edges[min(row, other), max(row, other)] = Removed(row, other, value)
        for end in (row, other):
            closeness[end] = closeness.get(end, 0.0) + value
    groups = _groups(edges, lambda row: (-round(closeness[row], 6), 0, paths[row]))
    return Duplicates(groups, len(candidate_pairs(similar, where)))


def _groups(
    edges: dict[tuple[int, int], Removed], worth: Callable[[int], tuple[float, int, str]]
) -> list[DuplicateGroup]:
    """The connected groups; the video of the smallest ``worth`` is kept."""
    best: dict[int, Removed] = {}
    for (a, b), edge in sorted(edges.items()):
        for row, match in ((a, b), (b, a)):
            if row not in best or edge.similarity > best[row].similarity:
                found = edge.similarity, edge.alignment, edge.row == row, edge.edited
                best[row] = Removed(row, match, *found)
    groups = []
    for rows in connected(list(edges)):
        kept, *others = sorted(rows, key=worth)
        groups.append(DuplicateGroup(kept, [best[row] for row in sorted(others)]))
    return sorted(groups, key=lambda group: (-len(group.removed), group.kept))


def connected(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The connected groups of the rows of some pairs, in ascending order.

    Returns:
        Groups by their smallest row, each ascending; rows without a pair are in none.
    """
    group_of = {row: {row} for pair in pairs for row in pair}
    for a, b in pairs:
        if group_of[a] is not group_of[b]:
            smaller, larger = sorted((group_of[a], group_of[b]), key=len)
            larger |= smaller
            group_of |= dict.fromkeys(smaller, larger)
    groups = {id(rows): rows for rows in group_of.values()}  # each once
    return sorted(sorted(rows) for rows in groups.values())
