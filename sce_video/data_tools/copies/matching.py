"""Comparison of two videos by their thumbnails, over displacements in time and crops.

A copy that was cropped and trimmed shows, at a constant displacement in time, a constant part of
the frames of the other. So some frames of the one (anchors) are compared with every part of a grid
in every frame of the other, by normalised cross-correlation, and the similarity is averaged over
the anchors *before* the best displacement and part are chosen: frames of another video that
resemble one anchor do not resemble all of them in the same order and place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sce_video.data_tools.copies.thumbnails import RATE, SIDE

#: Side of a compared part, pixels: enough to tell videos apart, and blind to the encoding.
_PART = 8
#: Sides of the parts relative to the frame, and the step between their places.
SCALES, STEP = (1.0, 0.9, 0.8, 0.7, 0.6), 0.05
#: Compared frames of the shorter video, at equal steps, and the share of them that two videos must
#: have in common.
ANCHORS, _LEAST_INSIDE = 8, 0.65
#: Correlations that are computed at once, 4 bytes each: 16 MB, or those of one video if more.
_COMPARED = 2**22
#: Frames per second whose parts are indexed for candidates.
_INDEXED_RATE = 2.0
#: Standard deviation of a part, grey levels, below which it counts as flat: flat parts match all.
FLAT = 3.0


@dataclass(frozen=True)
class Alignment:
    """Where a video lies in another one.

    Attributes:
        similarity: Mean correlation of the compared frames, -1 to 1.
        offset: Seconds by which the copy begins after the other video.
        part: Left, top, width and height of the part that it shows, relative to the frame.
    """

    similarity: float
    offset: float
    part: tuple[float, float, float, float]


@cache
def _axis(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Starts of the intervals of one length, and their averaging matrices (n, 8, 32)."""
    room = 1.0 - scale
    starts = np.linspace(0.0, room, round(room / STEP) + 1)
    edges = (starts[:, None] + scale * np.linspace(0, 1, _PART + 1)) * SIDE
    pixels = np.arange(SIDE)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    overlap = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return starts, (overlap / overlap.sum(axis=2, keepdims=True)).astype(np.float32)


#: Relative height and width of the parts: of equal proportions, or cut along one axis only.
_SHAPES = (
    *((s, s) for s in SCALES),
    *((1.0, s) for s in SCALES[1:]),
    *((s, 1.0) for s in SCALES[1:]),
)


@cache
def _parts() -> list[tuple[float, float, float, float]]:
    """Left, top, width and height of every part, in the order of :func:`_cut`."""
    return [
        (float(left), float(top), wide, high)
        for high, wide in _SHAPES
        for top in _axis(high)[0]
        for left in _axis(wide)[0]
    ]


def _cut(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every part of every frame (T, 32, 32): pixels (T, P, 64), and 1 / their norm (T, P)."""
    frames = frames.astype(np.float32)
    found = []
    for high, wide in _SHAPES:
        rows, columns = _axis(high)[1], _axis(wide)[1]
        tall = np.matmul(rows.reshape(-1, SIDE), frames)  # (T, ny * 8, 32)
        cut = np.matmul(tall, columns.reshape(-1, SIDE).T)
        cut = cut.reshape(len(frames), len(rows), _PART, len(columns), _PART)
        found.append(cut.transpose(0, 1, 3, 2, 4).reshape(len(frames), -1, _PART * _PART))
    parts = np.concatenate(found, axis=1)
    parts -= parts.mean(axis=2, keepdims=True)
    return parts, 1 / _norms(parts)


def _whole(frames: np.ndarray) -> np.ndarray:
    """Frames (n, 32, 32) as vectors (n, 64) without their mean, divided by their norm."""
    factor = SIDE // _PART
    small = frames.reshape(len(frames), _PART, factor, _PART, factor)
    vectors = small.mean(axis=(2, 4), dtype=np.float32).reshape(len(frames), -1)
    vectors -= vectors.mean(axis=1, keepdims=True)
    return vectors / _norms(vectors)[:, None]


def _norms(vectors: np.ndarray) -> np.ndarray:
    """L2 norms over the last axis; at least those of a part that is flat."""
    return np.maximum(np.sqrt(np.einsum("...i,...i->...", vectors, vectors)), FLAT * _PART)


def index_vectors(frames: np.ndarray) -> np.ndarray:
    """Parts of two frames per second as unit vectors (n, 64), on a coarse grid: to be searched.

    Args:
        frames: (T, 32, 32) uint8, of :meth:`Thumbnails.sampled`.
    """
    every = round(RATE / _INDEXED_RATE)
    chosen = frames[min(every // 2, len(frames) - 1) :: every]
    parts, factors = _cut(chosen)
    coarse = _coarse_parts()
    return (parts[:, coarse] * factors[:, coarse, None]).reshape(-1, _PART * _PART)


def query_vectors(frames: np.ndarray) -> np.ndarray:
    """Every frame as a unit vector (T, 64), to search among :func:`index_vectors`."""
    return _whole(frames)


@cache
def _coarse_parts() -> list[int]:
    """Numbers of the parts of equal proportions, 0.7 to 1 of the side, at steps of 0.1."""

    def coarse(value: float) -> bool:
        return abs(10 * value - round(10 * value)) < 1e-6

    return [
        number
        for number, (left, top, wide, high) in enumerate(_parts())
        if wide == high and wide > 0.65 and coarse(left) and coarse(top)
    ]


class CopyMatcher:
    """Compares videos with one video, whose parts are cut once.

    Args:
        frames: (T, 32, 32) uint8, of :meth:`Thumbnails.sampled`.
    """

    def __init__(self, frames: np.ndarray) -> None:
        self._count = len(frames)
        parts, factors = _cut(frames)
        parts *= factors[..., None]
        self._vectors = parts.reshape(-1, _PART * _PART)

    def align(self, frames: np.ndarray) -> Alignment:
        """Where a video (T', 32, 32) uint8, perhaps a copy, lies best in this one."""
        return self.alignments([frames], 1)[0][0]

    def alignments(self, videos: Sequence[np.ndarray], most: int) -> list[list[Alignment]]:
        """The best alignments of each video, those at peaks over displacements, most similar first.

        Motion that repeats has several, and between two samples another one may look better.

        Args:
            videos: Frames (T', 32, 32) uint8 of each.
            most: Alignments of a video; fewer if there are fewer peaks.
        """
        found = []
        # One matrix product for several videos: it is limited by the reading of the parts.
        block = max(1, _COMPARED // (ANCHORS * len(self._vectors)))
        for begin in range(0, len(videos), block):
            some = videos[begin : begin + block]
            anchors = [self._anchors(len(frames)) for frames in some]
            chosen = [frames[at] for frames, at in zip(some, anchors, strict=True)]
            similar = _whole(np.concatenate(chosen)) @ self._vectors.T
            similar = similar.reshape(len(similar), self._count, -1)
            parts = np.split(similar, np.cumsum([len(at) for at in anchors])[:-1])
            found += [
                self._best(part, at, min(self._count, len(frames)), most)
                for part, at, frames in zip(parts, anchors, some, strict=True)
            ]
        return found

    def _anchors(self, count: int) -> np.ndarray:
        """Numbers of the compared frames of a video of ``count``."""
        step = self._step(min(self._count, count))
        return np.arange(min(step // 2, count - 1), count, step)

    @staticmethod
    def _step(shorter: int) -> int:
        return max(1, shorter // ANCHORS)

    def _best(
        self, similar: np.ndarray, anchors: np.ndarray, shorter: int, most: int
    ) -> list[Alignment]:
        """The best alignments by the correlations (anchors, frames, parts)."""
        shifts = np.arange(-anchors[-1], self._count - anchors[0])
        total = np.zeros((len(shifts), similar.shape[2]), dtype=np.float32)
        counts = np.zeros(len(shifts), dtype=np.int64)
        for row, begin in zip(similar, (anchors[-1] - anchors).tolist(), strict=True):
            total[begin : begin + self._count] += row
            counts[begin : begin + self._count] += 1
        # At least one displacement remains: that of the most anchors.
        least = min(counts.max(), max(1, np.ceil(_LEAST_INSIDE * shorter / self._step(shorter))))
        good = counts >= least
        shifts, counts, total = shifts[good], counts[good], total[good]
        means = total / counts[:, None].astype(np.float32)
        best = means.max(axis=1)
        padded = np.pad(best, 1, constant_values=-np.inf)
        peaks = np.flatnonzero((best >= padded[:-2]) & (best >= padded[2:]))
        order = peaks[np.argsort(-best[peaks], kind="stable")][:most]
        return [
            Alignment(float(best[at]), int(shifts[at]) / RATE, _parts()[int(means[at].argmax())])
            for at in order.tolist()
        ]
