"""Video decoding behind one interface; :func:`open_reader` chooses the backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import VideoReader
from sce_video.datasets.readers.decord_reader import DecordReader
from sce_video.datasets.readers.torchcodec_reader import TorchcodecReader

BACKENDS: dict[str, Callable[..., VideoReader]] = {
    "av": AvReader,
    "decord": DecordReader,
    "torchcodec": TorchcodecReader,
}


def backend_importable(backend: str) -> bool:
    """Whether the library of a backend can be imported here."""
    library = {"torchcodec": "torchcodec.decoders"}.get(backend, backend)
    try:
        importlib.import_module(library)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def open_reader(
    path: str,
    backend: str = "av",
    *,
    num_threads: int = 1,
    correction: np.ndarray | None = None,
    deadline: float | None = None,
) -> VideoReader:
    """Open a video.

    Args:
        path: A regular file.
        backend: ``av``, ``decord``, ``torchcodec``, or ``auto``: ``av``, and where that cannot open
            the file the others that can be imported.
        num_threads: Threads of the decoder.
        correction: ``FrameCountError.correction`` of an earlier attempt with the same backend.
        deadline: Value of ``time.monotonic()`` after which reading gives up.

    Raises:
        VideoDecodeError: The file cannot be opened; with ``auto``, the error of ``av``.
        ValueError: Unknown backend.
    """
    check_backend(backend)
    options = dict(num_threads=num_threads, correction=correction, deadline=deadline)
    if backend != "auto":
        return BACKENDS[backend](path, **options)
    try:
        return AvReader(path, num_threads=num_threads, correction=correction, deadline=deadline)
    except VideoDecodeError as first:
        for name in ("torchcodec", "decord"):
            if backend_importable(name):
                try:
                    return BACKENDS[name](path, **options)
                except VideoDecodeError:
                    continue
        raise first


def check_backend(backend: str) -> None:
    """Raise ValueError for an unknown backend, ImportError for one that is not installed."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: choose auto, {', '.join(BACKENDS)}")
    if backend != "auto" and not backend_importable(backend):
        raise ImportError(
            f"backend {backend!r} cannot be imported here: install it, or choose 'av'"
            + (
                "; torchcodec needs FFmpeg's shared libraries and a build for the installed torch"
                if backend == "torchcodec"
                else ""
            )
        )


__all__ = [
    "BACKENDS",
    "AvReader",
    "DecordReader",
    "TorchcodecReader",
    "VideoReader",
    "backend_importable",
    "check_backend",
    "open_reader",
]
