"""Video decoding behind one interface; :func:`open_reader` chooses the backend."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.backend_choice import choose_backend, remembered_choice
from sce_video.datasets.readers.base import VideoReader
from sce_video.datasets.readers.decord_reader import DecordReader
from sce_video.datasets.readers.fallback_reader import FallbackReader
from sce_video.datasets.readers.torchcodec_reader import TorchcodecReader

BACKENDS: dict[str, Callable[..., VideoReader]] = {
    "av": AvReader,
    "decord": DecordReader,
    "torchcodec": TorchcodecReader,
}
_OTHERS: dict[str, type[FallbackReader]] = {
    "torchcodec": TorchcodecReader,
    "decord": DecordReader,
}


@functools.cache
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
        backend: ``av``, ``decord``, ``torchcodec``, or ``auto``: the fastest for files of this
            kind (container, codec, size, key-frame distance), measured in every process on the
            first of them, among those that give the same frames bit for bit, see
            :func:`~sce_video.datasets.readers.backend_choice.choose_backend`; where ``av`` cannot
            open the file, the others that can be imported.
        num_threads: Threads of the decoder.
        correction: ``FrameCountError.correction`` of an earlier attempt with the same backend.
        deadline: Value of ``time.monotonic()`` after which reading gives up.

    Raises:
        VideoDecodeError: The file cannot be opened; with ``auto``, the error of ``av``.
        ValueError: Unknown backend.
    """
    check_backend(backend)
    options: dict[str, Any] = dict(
        num_threads=num_threads, correction=correction, deadline=deadline
    )
    if backend != "auto":
        return BACKENDS[backend](path, **options)
    try:
        reader = AvReader(path, num_threads=num_threads, correction=correction, deadline=deadline)
    except VideoDecodeError as first:
        for name, kind in _OTHERS.items():
            if not backend_importable(name):
                continue
            try:
                other = kind(path, **options)
            except VideoDecodeError:
                continue
            if other.uses_library:
                return other
            other.close()
        raise first
    try:
        return _fastest(reader, options)
    except BaseException:
        reader.close()
        raise


def _fastest(reader: AvReader, options: dict[str, Any]) -> VideoReader:
    """This reader, or that of a faster backend, which then closes this one."""
    if options["correction"] is not None:  # made by the backend that was chosen before
        name = remembered_choice(reader)
    else:
        others = {name: kind for name, kind in _OTHERS.items() if backend_importable(name)}
        name = choose_backend(reader, others, options["num_threads"], options["deadline"])
    if name == "av":
        return reader
    try:
        other = BACKENDS[name](reader.path, **options)
    except VideoDecodeError:
        return reader
    reader.close()
    return other


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
