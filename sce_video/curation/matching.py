"""Comparison of two videos by their thumbnails, over displacements in time and crops.

A copy that was cropped and trimmed shows a constant part of the other video's frames at a constant
displacement in time. Some frames of one video (anchors) are therefore compared, by normalised
cross-correlation, with every part of a grid in every frame of the other video. The similarity is
averaged over the anchors *before* the best displacement and part are chosen. A different video may
resemble one anchor, but not all of them in the same order and place.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from sce_video.datasets.clip_sampling import shown_at
from sce_video.datasets.readers.base import VideoDecodeError, check_deadline
from sce_video.datasets.sources import open_video, video_exists

#: Side of a thumbnail in pixels. Frames are squeezed into this square.
SIDE = 32
#: Number of frames per second that the first comparison uses.
RATE = 16.0
#: Maximum number of frames per second to keep. The refinement in time uses all of them.
MAX_RATE = 32.0
#: Maximum number of seconds to read from the beginning of a video.
MAX_SECONDS = 60.0
#: Time limit in seconds for reading a file. For a longer stretch, the limit is its duration.
READ_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Small frames of a video from its beginning."""

    # Luma of all frames, or of every n-th frame if there are more than ``MAX_RATE`` per second, (T,
    # 32, 32) uint8.
    frames: np.ndarray
    times: np.ndarray  # start of each frame in seconds, (T,) float64
    duration: float  # duration of the whole video in seconds
    height: int  # height of the original frames in pixels
    width: int
    most: float = MAX_SECONDS  # number of seconds from which frames were read

    @property
    def end(self) -> float:
        """End of the last frame in seconds."""
        return min(self.duration, self.most)

    def sampled(self) -> np.ndarray:
        """Return the frames (T', 32, 32) of the first minute, ``RATE`` per second."""
        count = max(1, int(min(self.end, MAX_SECONDS) * RATE))
        # Use the middle of each interval, because rounded timestamps may miss its ends.
        return self.frames[shown_at(self.times, (np.arange(count) + 0.5) / RATE)]


def read_thumbnail(file: str, most: float = MAX_SECONDS) -> Thumbnails:
    """Read the thumbnails of the first minute of a video, or of its first ``most`` seconds.

    Frames are converted to luma and averaged to 32 x 32 pixels.

    Raises:
        VideoDecodeError: If the file is missing, cannot be decoded, or takes too long to read.
    """
    import cv2

    if not video_exists(file):
        raise VideoDecodeError(file, "the file is missing")
    patience = max(READ_SECONDS, most)
    deadline = time.monotonic() + patience
    with open_video(file, deadline=deadline) as reader:
        times = np.asarray(reader.timestamps, dtype=np.float64)
        times = times[: max(1, np.searchsorted(times, most))]
        kept = max(1.0, min(reader.duration, most) * MAX_RATE)
        wanted = np.arange(0, len(times), math.ceil(len(times) / kept))
        small, indices, size = [], [], (0, 0)
        # Read all frames in one pass, because each further pass would have to start at a key frame.
        for numbers, frames in reader.stream(wanted, patience):
            check_deadline(file, deadline)
            indices.extend(numbers.tolist())
            for frame in map(frames.__getitem__, range(len(frames))):
                size = frame.shape[:2]
                grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
                small.append(cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA))
        if not small:
            raise VideoDecodeError(file, "no frame can be decoded")
        duration = reader.duration
        if indices[-1] != wanted[-1]:  # the video has fewer frames than its header states
            duration = 2 * times[indices[-1]] - times[max(0, indices[-1] - 1)]
        times, start = times[indices], times[indices[0]]
        return Thumbnails(np.stack(small), times - start, float(duration - start), *size, most)


#: Side of a compared part in pixels. It suffices to distinguish videos, but not their encodings.
_PART = 8
#: Sides of the parts relative to the frame. With smaller sides, there would be far more parts.
SCALES = (1.0, 0.9, 0.8, 0.7, 0.6)
#: Step between the positions of parts, relative to the frame. The refinement fills the gaps.
STEP = 0.05
#: Sides of the parts that are searched for candidates, relative to the frame.
SEARCHED_SIDES = (1.0, 0.9, 0.8, 0.7)
#: Step between the positions of searched parts. It is large because all videos' parts are kept.
SEARCHED_STEP = 0.1
#: Minimum number of frames of the shorter video to compare, at equal steps.
ANCHORS = 8
#: Fraction of the compared frames that both videos must show, which is about two thirds of the
#: shorter video.
_LEAST_INSIDE = 0.65
#: Number of correlations to compute together (16 MB), unless a single video has more.
_COMPARED = 2**22
#: Number of frames per second whose parts are indexed for candidates.
_INDEXED_RATE = 2.0
#: Standard deviation in grey levels below which a part is flat. Flat parts match everything.
FLAT = 3.0
#: Left, top, width and height of a part, relative to the frame.
Part = tuple[float, float, float, float]
#: Part that covers the whole frame.
WHOLE: Part = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Alignment:
    """Alignment of one video within another one.

    Attributes:
        similarity: Mean correlation of the compared frames, -1 to 1.
        offset: Seconds from the start of the other video to the start of the copy.
        part: Part of the other video's frame that the copy shows.
        changes: Agreement of what changes in both videos, at most 1; None if it was not computed.
    """

    similarity: float
    offset: float
    part: Part
    changes: float | None = None


def averaging(starts: np.ndarray, lengths: np.ndarray | float, side: int) -> np.ndarray:
    """Return matrices (n, side, 32) that average the pixels in intervals of the frame."""
    edges = (starts[:, None] + np.reshape(lengths, (-1, 1)) * _shares(side)) * SIDE
    pixels = np.arange(SIDE)
    low, high = edges[:, :-1, None], edges[:, 1:, None]
    overlap = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return (overlap / overlap.sum(axis=2, keepdims=True)).astype(np.float32)


@cache
def _shares(count: int) -> np.ndarray:
    return np.linspace(0, 1, count + 1)


@cache
def _axis(scale: float, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of intervals of one length, and their matrices from :func:`averaging`."""
    room = 1.0 - scale
    starts = np.linspace(0.0, room, round(room / step) + 1)
    return starts, averaging(starts, scale, _PART)


#: Relative height and width of all parts that have the same size.
Shape = tuple[float, float]


#: Relative heights and widths of the parts, cut equally along both axes, or along only one.
_SHAPES = (
    *((s, s) for s in SCALES),
    *((1.0, s) for s in SCALES[1:]),
    *((s, 1.0) for s in SCALES[1:]),
)


@cache
def grid_parts(shapes: Sequence[Shape], step: float) -> tuple[Part, ...]:
    """Return the parts of some shapes at all places of a grid, in the order of :func:`cut_grid`."""
    return tuple(
        (float(left), float(top), wide, high)
        for high, wide in shapes
        for top in _axis(high, step)[0]
        for left in _axis(wide, step)[0]
    )


def squares(sides: Sequence[float]) -> tuple[Shape, ...]:
    """Return the shapes of parts with the frame's aspect ratio."""
    return tuple((side, side) for side in sides)


def cut_grid(
    frames: np.ndarray, shapes: Sequence[Shape], step: float, others: Sequence[Part] = ()
) -> np.ndarray:
    """Cut parts from frames (T, 32, 32), and return (T, P, 64) minus the mean of each part.

    The parts are those of :func:`grid_parts`, then ``others``.
    """
    frames = frames.astype(np.float32)
    found = []
    for high, wide in shapes:
        rows, columns = _axis(high, step)[1], _axis(wide, step)[1]
        tall = np.matmul(rows.reshape(-1, SIDE), frames)  # (T, ny * 8, 32)
        cut = np.matmul(tall, columns.reshape(-1, SIDE).T)
        cut = cut.reshape(len(frames), len(rows), _PART, len(columns), _PART)
        found.append(cut.transpose(0, 1, 3, 2, 4).reshape(len(frames), -1, _PART * _PART))
    if others:
        left, top, wide, high = np.array(others).T
        rows, columns = averaging(top, high, _PART), averaging(left, wide, _PART)
        cut = np.matmul(np.matmul(rows, frames[:, None]), columns.swapaxes(1, 2))
        found.append(cut.reshape(len(frames), -1, _PART * _PART))
    parts = np.concatenate(found, axis=1)
    parts -= parts.mean(axis=2, keepdims=True)
    return parts


def cut_part(frames: np.ndarray, part: Part, side: int) -> np.ndarray:
    """Cut a part from frames (T, 32, 32), averaged to (T, side, side) float32."""
    left, top, wide, high = part
    rows = averaging(np.array([top]), high, side)[0]
    columns = averaging(np.array([left]), wide, side)[0]
    return np.matmul(np.matmul(rows, frames.astype(np.float32)), columns.T)


def query_vectors(frames: np.ndarray) -> np.ndarray:
    """Convert frames (n, 32, 32) to unit vectors (n, 64), as queries for :func:`index_vectors`.

    Each frame is averaged to 8 x 8 pixels, minus the mean. Vectors of flat frames are shorter than
    1, because flat frames should resemble nothing.
    """
    factor = SIDE // _PART
    small = frames.reshape(len(frames), _PART, factor, _PART, factor)
    vectors = small.mean(axis=(2, 4), dtype=np.float32).reshape(len(frames), -1)
    vectors -= vectors.mean(axis=1, keepdims=True)
    return vectors / norms(vectors)[:, None]


def norms(vectors: np.ndarray) -> np.ndarray:
    """Return L2 norms over the last axis, but at least the norm below which a part is flat."""
    least = FLAT * math.sqrt(vectors.shape[-1])
    return np.maximum(np.sqrt(np.einsum("...i,...i->...", vectors, vectors)), least)


def index_vectors(frames: np.ndarray) -> np.ndarray:
    """Convert parts of two frames per second to unit vectors (n, 64) for the search.

    Args:
        frames: (T, 32, 32) thumbnails at ``RATE``. Every 8th frame is used.

    Returns:
        (n, 64) float32 vectors, frame by frame, scaled as in :func:`query_vectors`. Each part has
        the frame's aspect ratio and 0.7 to 1 times its side lengths.
    """
    every = round(RATE / _INDEXED_RATE)
    chosen = frames[min(every // 2, len(frames) - 1) :: every]
    parts = cut_grid(chosen, squares(SEARCHED_SIDES), SEARCHED_STEP)
    return (parts * (1 / norms(parts))[..., None]).reshape(-1, _PART * _PART)


class CopyMatcher:
    """Comparison of other videos with one video, whose frames are (T, 32, 32) uint8."""

    def __init__(self, frames: np.ndarray) -> None:
        self._count = len(frames)
        parts = cut_grid(frames, _SHAPES, STEP)
        parts *= (1 / norms(parts))[..., None]
        self._vectors = parts.reshape(-1, _PART * _PART)

    def alignments(self, videos: Sequence[np.ndarray], most: int) -> list[list[Alignment]]:
        """Return at most ``most`` alignments of each video (T', 32, 32) uint8, the best first.

        Alignments are peaks of the similarity over displacements. Several are returned, because
        repeated motion has several peaks, and sampling may favour the wrong one.
        """
        found = []
        # Compare several videos in one matrix product, because reading the parts takes longest.
        block = max(1, _COMPARED // (ANCHORS * len(self._vectors)))
        for begin in range(0, len(videos), block):
            some = videos[begin : begin + block]
            counts = [len(frames) for frames in some]
            steps = [max(1, min(self._count, count) // ANCHORS) for count in counts]
            # Choose which frames of each video to compare.
            anchors = [
                np.arange(min(step // 2, count - 1), count, step)
                for step, count in zip(steps, counts, strict=True)
            ]
            chosen = [frames[at] for frames, at in zip(some, anchors, strict=True)]
            similar = query_vectors(np.concatenate(chosen)) @ self._vectors.T
            similar = similar.reshape(len(similar), self._count, -1)
            parts = np.split(similar, np.cumsum([len(at) for at in anchors])[:-1])
            found += [
                self._best(part, at, min(self._count, len(frames)), most)
                for part, at, frames in zip(parts, anchors, some, strict=True)
            ]
        return found

    def _best(
        self, similar: np.ndarray, anchors: np.ndarray, shorter: int, most: int
    ) -> list[Alignment]:
        """Return the best alignments, given the correlations (anchors, frames, parts)."""
        shifts = np.arange(-anchors[-1], self._count - anchors[0])
        total = np.zeros((len(shifts), similar.shape[2]), dtype=np.float32)
        counts = np.zeros(len(shifts), dtype=np.int64)
        for row, begin in zip(similar, (anchors[-1] - anchors).tolist(), strict=True):
            total[begin : begin + self._count] += row
            counts[begin : begin + self._count] += 1
        # Lower the minimum if necessary, so that the displacement with the most anchors remains.
        least = min(
            counts.max(), max(1, np.ceil(_LEAST_INSIDE * shorter / max(1, shorter // ANCHORS)))
        )
        good = counts >= least
        shifts, counts, total = shifts[good], counts[good], total[good]
        means = total / counts[:, None].astype(np.float32)
        best = means.max(axis=1)
        padded = np.pad(best, 1, constant_values=-np.inf)
        peaks = np.flatnonzero((best >= padded[:-2]) & (best >= padded[2:]))
        order = peaks[np.argsort(-best[peaks], kind="stable")][:most]
        return [
            Alignment(
                float(best[at]),
                int(shifts[at]) / RATE,
                grid_parts(_SHAPES, STEP)[int(means[at].argmax())],
            )
            for at in order.tolist()
        ]


#: Minimum similarity of an alignment to refine, first in time, then in place.
REFINED = 0.5
#: Maximum number of alignments per pair to refine in time.
MOST_STARTS = 6
#: Maximum number of alignments per pair to refine in place as well, which takes longer.
_MOST_CLIMBED = 2
#: Side of a compared part in pixels. With only 8 x 8 pixels, merely similar videos correlate as
#: well as copies.
FINE = 16
#: Maximum number of frames to compare, at equal steps.
_ANCHORS = 16
#: Displacements to try in seconds. The largest, 3/32 s, is 1.5 times the time between samples.
_SHIFTS = np.arange(-6, 7) / 64
#: Steps of the hill climbing, as fractions of the frame (positions) and of the part (sizes).
_STEPS = (0.03, 0.015, 0.0075, 0.004)
#: Maximum number of moves with each step size.
_MOST_MOVES = 6
#: Maximum gain in similarity to expect after a move. It is about twice the largest gain (0.24) that
#: we measured for 355 alignments that reached 0.93.
_FIRST_GAIN = 0.4
#: Maximum gain still possible after the moves with each step size. The first three are about twice
#: the measured gains of 0.10, 0.08 and 0.01.
_GAINS = (0.2, 0.15, 0.04, 0.0)
#: Grey level to subtract, so that sums of squares are small.
_MIDDLE = 128


def refined(
    outer: Thumbnails, inner: Thumbnails, starts: Sequence[Alignment], threshold: float = 0.0
) -> Alignment:
    """Find the alignment near one of ``starts`` at which two videos are most similar.

    Args:
        outer: Video that contains the other one.
        inner: The other video.
        starts: Alignments from the first comparison. The best of them are also refined in place.
        threshold: Similarity to reach. The refinement ends early if it cannot be expected to reach
            this value. The default is 0.

    Returns:
        The best alignment, with the mean correlation of up to 16 frames at 16 x 16 pixels.
    """
    pair = _Frames(outer, inner)
    found = sorted(((*_displaced(pair, s.offset, s.part), s.part) for s in starts), reverse=True)
    best = [_climbed(pair, *f, threshold) for f in found[:_MOST_CLIMBED] if f[0] >= REFINED]
    return Alignment(*max(best or found))


class _Frames:
    """Two videos, of which parts of the outer one are compared with frames of the inner one."""

    def __init__(self, outer: Thumbnails, inner: Thumbnails) -> None:
        self._times, self._end = outer.times, outer.end
        self._frames = outer.frames.astype(np.float32) - _MIDDLE
        self._middles = (inner.times + np.append(inner.times[1:], inner.end)) / 2
        whole = averaging(np.zeros(1), 1.0, FINE)
        own, norms = cut_parts(inner.frames.astype(np.float32) - _MIDDLE, whole, whole)
        own = own - own.mean(axis=(1, 3), keepdims=True)
        self._own = (own / norms[:, None, :, None])[0]  # (16, T', 16)

    def at_parts(self, offset: float, parts: Sequence[Part]) -> np.ndarray:
        """Return the similarity (P,) at some parts; -1 for parts that extend beyond the frame."""
        left, top, wide, high = np.asarray(parts).T
        inside = np.flatnonzero(
            (np.minimum(left, top) >= 0) & (left + wide <= 1) & (top + high <= 1)
        )
        values = np.full(len(parts), -1.0)
        own, shown = self._compared(offset)
        if len(own) and len(inside):
            rows = averaging(top[inside], high[inside], FINE)
            columns = averaging(left[inside], wide[inside], FINE)
            cut, norms = cut_parts(self._frames[shown], rows, columns)
            # The mean of ``own`` is zero, so the mean of the part need not be subtracted.
            products = np.einsum("pinj,inj->pn", cut, self._own[:, own], optimize=True)
            values[inside] = (products / norms).mean(axis=1)
        return values

    def at_offsets(self, offsets: Sequence[float], part: Part) -> list[float]:
        """Return the similarity at each displacement; -1 if the videos do not overlap in time."""
        compared = [self._compared(offset) for offset in offsets]
        shown, place = np.unique(np.concatenate([c[1] for c in compared]), return_inverse=True)
        if len(shown) == 0:
            return [-1.0] * len(offsets)
        left, top, wide, high = np.asarray(part)[:, None]
        cut, norms = cut_parts(
            self._frames[shown], averaging(top, high, FINE), averaging(left, wide, FINE)
        )
        unit = cut[0] / norms[0][None, :, None]
        places = np.split(place, np.cumsum([len(c[1]) for c in compared])[:-1])
        return [
            float((unit[:, at] * self._own[:, own]).sum(axis=(0, 2)).mean()) if len(own) else -1.0
            for (own, _), at in zip(compared, places, strict=True)
        ]

    def _compared(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """Return indices of up to 16 inner frames, and of the outer frames at the same times."""
        moments = self._middles + offset
        common = np.flatnonzero((moments >= 0) & (moments < self._end))
        if len(common) == 0:
            return common, common
        steps = np.linspace(0, len(common) - 1, min(len(common), _ANCHORS))
        chosen = common[steps.round().astype(int)]
        return chosen, shown_at(self._times, moments[chosen])


def _displaced(pair: _Frames, offset: float, part: Part) -> tuple[float, float]:
    """Return the highest similarity near a displacement, and where it was found."""
    values = pair.at_offsets((offset + _SHIFTS).tolist(), part)
    best = max(zip(values, -np.abs(_SHIFTS), offset + _SHIFTS, strict=True))
    return best[0], float(best[2])


def _climbed(
    pair: _Frames, best: float, offset: float, part: Part, threshold: float
) -> tuple[float, float, Part]:
    """Move a part to where the videos are most similar, in smaller and smaller steps."""
    for step, gain in zip(_STEPS, _GAINS, strict=True):
        for _ in range(_MOST_MOVES):
            parts = _moved(part, step)
            value, moved = max(zip(pair.at_parts(offset, parts).tolist(), parts, strict=True))
            if value <= best:
                break
            best, part = value, moved
            if best + _FIRST_GAIN < threshold:
                return best, offset, part
        if step in _STEPS[::2]:
            best, offset = _displaced(pair, offset, part)
        if best + gain < threshold:
            break
    return best, offset, part


def _moved(part: Part, step: float) -> list[Part]:
    """Return parts that are slightly shifted, larger or smaller."""
    left, top, wide, high = part
    parts = [(left + d, top, wide, high) for d in (-step, step)]
    parts += [(left, top + d, wide, high) for d in (-step, step)]
    fixed = (0.0, 0.5, 1.0)  # points of the part that stay in place
    for d, across, down in product((-step, step), fixed, fixed):
        x, y = max(0.0, left - d * wide * across), max(0.0, top - d * high * down)
        parts.append((x, y, min(wide * (1 + d), 1 - x), min(high * (1 + d), 1 - y)))
    return parts


def cut_lines(frames: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Cut parts from frames (T, 32, 32), and return (P, 16, T, 16).

    With this order of axes, two matrix products suffice. Bytes are transposed before they are
    converted, because they take a quarter of the memory.
    """
    lines = frames.transpose(1, 0, 2).reshape(SIDE, -1).astype(np.float32, copy=False)
    tall = (rows.reshape(-1, SIDE) @ lines).reshape(len(rows), -1, SIDE)  # (P, 16 * T, 32)
    cut = np.matmul(tall, columns.transpose(0, 2, 1))
    return cut.reshape(len(rows), FINE, len(frames), FINE)


def cut_parts(
    frames: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return :func:`cut_lines` and the norms (P, T) of the parts minus their means.

    Norms are at least the norm below which a part is flat.
    """
    cut = cut_lines(frames, rows, columns)
    total = cut.sum(axis=(1, 3))
    squares = np.einsum("pinj,pinj->pn", cut, cut)
    norms = np.sqrt(np.maximum(squares - total**2 / FINE**2, 0))
    return cut, np.maximum(norms, FLAT * FINE)
