"""The fastest backend for a kind of file, measured on the user's files once per process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import VideoReader

#: Container, codec, thousands of pixels, key-frame distance in powers of two.
Kind = tuple[str, str, int, int]

_MARGIN = 1.1  # a backend is chosen only if it is faster than av by this factor
_ROUNDS = 2  # runs of each backend, the fastest counts
_LEAST_SECONDS = 20.0  # no measurement if the deadline of the sample is nearer than this
_chosen: dict[Kind, str] = {}


def choose_backend(
    reader: AvReader,
    candidates: Mapping[str, type[VideoReader]],
    num_threads: int,
    deadline: float | None,
) -> str:
    """The fastest backend for files of the same kind as an open one.

    On the first file of a kind, each candidate opens it and reads the same frames, twice. It is
    chosen only if it is known to read such files correctly (``can_read``), all frames equal those
    of ``av`` bit for bit, and it is at least 10 % faster; so the choice changes the speed only.
    Later files of the kind get the same backend. Where nothing can be measured (a damaged file,
    little time left), ``av`` is returned, and the next file is measured.

    Args:
        reader: The file, opened with ``av``.
        candidates: The other backends that can be imported, by name.
        num_threads: Threads of the decoder.
        deadline: Value of ``time.monotonic()`` at which reading the file must have ended.

    Returns:
        ``av`` or the name of a candidate.
    """
    kind = kind_of(reader)
    if kind not in _chosen:
        usable = {name: backend for name, backend in candidates.items() if backend.can_read(reader)}
        if not usable:
            return "av"
        if deadline is not None and deadline - time.monotonic() < _LEAST_SECONDS:
            return "av"
        winner = _measure(reader, usable, num_threads)
        if winner is None:
            return "av"
        _chosen[kind] = winner
    return _chosen[kind] if _chosen[kind] in candidates else "av"


def remembered_choice(reader: AvReader) -> str:
    """The backend chosen before for files of this kind; ``av`` if none was measured yet."""
    return _chosen.get(kind_of(reader), "av")


def forget_choices() -> None:
    """Forget all measurements, so that the next file of each kind is measured again."""
    _chosen.clear()


def kind_of(reader: AvReader) -> Kind:
    """The properties of a file that determine which backend is fastest."""
    container, codec, pixels, distance = reader.facts
    return container, codec, pixels // 2**17, max(1, round(distance)).bit_length()


def _measure(
    reader: AvReader, candidates: Mapping[str, type[VideoReader]], num_threads: int
) -> str | None:
    indices = _frames_to_read(len(reader.timestamps))
    options: dict[str, Any] = {"num_threads": num_threads, "limits": reader.limits}
    try:
        expected, seconds = _timed(AvReader, reader.path, indices, options)
    except (VideoDecodeError, FrameCountError):
        return None
    winner, best = "av", seconds / _MARGIN
    for name, opener in candidates.items():
        try:
            frames, seconds = _timed(opener, reader.path, indices, options)
            same = np.array_equal(frames, expected)
        except (VideoDecodeError, FrameCountError, ValueError):
            continue
        if same and seconds < best:
            winner, best = name, seconds
    return winner


def _frames_to_read(count: int) -> np.ndarray:
    """First and last frame, and two runs of eight like the clips of a sample."""
    runs = [int(start * count) + np.arange(8) * max(1, count // 32) for start in (0.15, 0.55)]
    picked = np.unique(np.concatenate([[0, count - 1], *runs]))
    return picked[picked < count]


def _timed(
    opener: Callable[..., VideoReader], path: str, indices: np.ndarray, options: dict[str, Any]
) -> tuple[np.ndarray, float]:
    best = float("inf")
    for _ in range(_ROUNDS):
        # CPU time of all threads: loader workers use all cores, so a decoder thread is not free.
        start = time.process_time()
        with opener(path, **options) as reader:
            frames = reader.read(indices)
        best = min(best, time.process_time() - start)
    return frames, best
