"""Which backend is the fastest for a kind of file: measured on the user's own, once per process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import VideoReader
from sce_video.datasets.readers.fallback_reader import FallbackReader

#: Container, codec, thousands of pixels, key-frame distance in powers of two.
Kind = tuple[str, str, int, int]

_MARGIN = 1.1  # another backend must be this much faster than av to be taken
_ROUNDS = 2  # the faster of so many counts
_LEAST_SECONDS = 20.0  # measuring is put off when the time limit of a sample is nearer than this
_chosen: dict[Kind, str] = {}


def choose_backend(
    reader: AvReader,
    candidates: Mapping[str, type[FallbackReader]],
    num_threads: int,
    deadline: float | None,
) -> str:
    """The fastest backend for files like an open one.

    The first file of a kind is measured: each candidate opens it and reads the same frames, twice.
    One is taken only if it is known to read such files rightly, all of these frames equal those of
    ``av``, bit for bit, and it is at least a tenth faster; so the choice changes speed and nothing
    else (time stamps are those of ``av`` whichever is taken). Later files of the kind get the same
    answer. Where nothing can be measured (a damaged file, little time left) the answer is ``av``,
    and the next file is tried.

    Args:
        reader: The file, opened with ``av``.
        candidates: The other backends that can be imported, by name.
        num_threads: Threads of the decoder.
        deadline: Value of ``time.monotonic()`` at which reading the file must be over.

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
    """The answer for files like this one without measuring; ``av`` if there is none yet."""
    return _chosen.get(kind_of(reader), "av")


def forget_choices() -> None:
    """Measure anew."""
    _chosen.clear()


def kind_of(reader: AvReader) -> Kind:
    """What decides which backend is fastest."""
    container, codec, pixels, distance = reader.facts
    return container, codec, pixels // 2**17, max(1, round(distance)).bit_length()


def _measure(
    reader: AvReader, candidates: Mapping[str, type[FallbackReader]], num_threads: int
) -> str | None:
    indices = _frames_to_read(len(reader.timestamps))
    options: dict[str, Any] = {"num_threads": num_threads}
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
    """First and last frame, and two stretches of eight like the clips of a sample."""
    stretches = [int(start * count) + np.arange(8) * max(1, count // 32) for start in (0.15, 0.55)]
    picked = np.unique(np.concatenate([[0, count - 1], *stretches]))
    return picked[picked < count]


def _timed(
    opener: Callable[..., VideoReader], path: str, indices: np.ndarray, options: dict[str, Any]
) -> tuple[np.ndarray, float]:
    best = float("inf")
    for _ in range(_ROUNDS):
        # CPU time of all threads: the cores are full of loader workers, so a thread is not free.
        start = time.process_time()
        with opener(path, **options) as reader:
            frames = reader.read(indices)
        best = min(best, time.process_time() - start)
    return frames, best
