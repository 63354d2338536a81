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
from sce_video.evaluation.functional.clusters import nearest_in_cells

#: Answers to a frame, the smallest correlation of one, and the frames that a candidate answers for.
_ANSWERS, _LEAST, _FEWEST_FRAMES = 10, 0.7, 3


def pairs_by_frames(
    stored: ThumbnailFile, numbers: Sequence[int], most: int, seed: int = 0
) -> list[tuple[int, int]]:
    """Pairs (lower, higher) of videos of which frames of one resemble parts of the other's.

    Memory: 10 KB per second of video: 3.8 KB for the parts of each of two frames, half precision,
    and 2 KB for the 16 frames that are queries; their answers come on top.

    Args:
        stored: Thumbnails of the videos.
        numbers: Of the videos.
        most: Candidates of a video, those with the most similar frames first.
        seed: Of the cells that are searched.
    """
    parts, frames = [], []
    for number in numbers:
        sampled = stored[number].sampled()
        parts.append(index_vectors(sampled).astype(np.float16))
        frames.append(query_vectors(sampled).astype(np.float16))
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    askers = np.repeat(np.arange(len(frames)), [len(part) for part in frames])
    similar, where = nearest_in_cells(
        torch.from_numpy(np.concatenate(frames)),
        torch.from_numpy(np.concatenate(parts)),
        _ANSWERS,
        torch.from_numpy(askers),
        torch.from_numpy(owners),
        seed=seed,
    )
    good = (similar >= _LEAST).numpy()
    # Each video counts once for a frame: several of its parts may answer.
    frame = np.broadcast_to(np.arange(len(askers))[:, None], good.shape)[good]
    found = np.unique(np.stack([frame, owners[where.numpy()[good]]], axis=1), axis=0)
    pairs, votes = np.unique(
        np.stack([askers[found[:, 0]], found[:, 1]], axis=1), axis=0, return_counts=True
    )
    pairs, votes = pairs[votes >= _FEWEST_FRAMES], votes[votes >= _FEWEST_FRAMES]
    order = np.lexsort((-votes, pairs[:, 0]))
    pairs = pairs[order]
    starts = np.searchsorted(pairs[:, 0], pairs[:, 0])
    pairs = pairs[np.arange(len(pairs)) - starts < most]
    named = np.asarray(numbers, dtype=np.int64)[np.sort(pairs, axis=1)]
    return [(a, b) for a, b in np.unique(named.reshape(-1, 2), axis=0).tolist()]
