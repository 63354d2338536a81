"""Pairs of videos that may show the same frames, found by their frames.

The features of a self-supervised network tell classes apart, and are blind to crops by training:
copies of a video are not reliably among its nearest neighbours (docs/curate.md has the measured
shares). So the frames themselves are searched as well: parts of two frames per second of every
video are indexed, all frames are queries, and videos that answer for several frames are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sce_video.data_tools.copies import ThumbnailFile, index_vectors, query_vectors
from sce_video.evaluation.functional.clusters import as_bytes, nearest_in_cells

#: Answers to a frame, the smallest correlation of one, and the frames that a candidate answers for.
_ANSWERS, _LEAST, _FEWEST_FRAMES = 10, 0.7, 3
_VOTES_AT_ONCE = 1000  # videos


def pairs_by_frames(
    stored: ThumbnailFile, numbers: Sequence[int], most: int, seed: int = 0
) -> np.ndarray:
    """Pairs (P, 2), lower and higher, of videos of which frames of one resemble parts of the other.

    Memory: 5 KB per second of video: 3.8 KB for the parts of each of two frames, one byte per
    number, 1 KB for the 16 frames that are queries; and 1.3 KB for their answers.

    Args:
        stored: Thumbnails of the videos.
        numbers: Of the videos, ascending.
        most: Candidates of a video, those with the most similar frames first.
        seed: Of the cells that are searched.
    """
    parts, frames = _Rows(), _Rows()
    for number in numbers:
        sampled = stored[number].sampled()
        parts.add(index_vectors(sampled))
        frames.add(query_vectors(sampled))
    (gallery, owners), (queries, askers) = parts.take(), frames.take()
    similar, where = nearest_in_cells(
        queries, gallery, _ANSWERS, torch.from_numpy(askers), torch.from_numpy(owners), seed=seed
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


class _Rows:
    """Unit vectors of many videos, one byte per number."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._counts: list[int] = []

    def add(self, vectors: np.ndarray) -> None:
        """Keep the vectors (n, D) of the next video."""
        self._blocks.append(as_bytes(torch.from_numpy(vectors)).numpy())
        self._counts.append(len(vectors))

    def take(self) -> tuple[torch.Tensor, np.ndarray]:
        """All vectors (N, D), and for each the position of its video, int32; can be called once."""
        counts = np.array(self._counts)
        rows = np.empty((counts.sum(), self._blocks[0].shape[1]), dtype=np.int8)
        end = len(rows)
        while self._blocks:  # the blocks are released one by one: memory is not needed twice
            block = self._blocks.pop()
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
        good = similar[begin:end] >= _LEAST
        frame = np.broadcast_to(np.arange(begin, end)[:, None], good.shape)[good]
        once = np.unique(frame * count + owners[where[begin:end][good]])
        frame, other = np.divmod(once, count)
        key, number = np.unique(askers[frame].astype(np.int64) * count + other, return_counts=True)
        keys.append(key)
        numbers.append(number)
    return np.stack(np.divmod(np.concatenate(keys), count), axis=1), np.concatenate(numbers)
