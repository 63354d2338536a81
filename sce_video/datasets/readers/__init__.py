"""Video decoding behind one interface: :func:`open_reader` opens a file with a backend.

A backend is a :class:`VideoReader` registered in ``READERS``; its registered name is the value of
``--backend``. A new one is a new module of this folder, or a module of one's own that the config
names in ``custom_imports``; nothing else changes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.backend_choice import choose_backend, remembered_choice
from sce_video.datasets.readers.base import VideoReader
from sce_video.registry import READERS
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.imports import import_submodules

import_submodules(__name__, __path__)


def backend_importable(backend: str) -> bool:
    """Whether the library of a backend can be imported here; False for an unknown backend."""
    kind = READERS.module_dict.get(backend)
    return kind is not None and kind.importable()


def check_backend(backend: str) -> None:
    """Raise ValueError for an unknown backend, ImportError for one that is not installed."""
    if backend == "auto":
        return
    known = READERS.module_dict
    if backend not in known:
        raise ValueError(f"unknown backend {backend!r}: choose auto, {', '.join(known)}")
    if not backend_importable(backend):
        hint = known[backend].import_hint
        raise MissingPackageError(
            f"backend {backend!r} cannot be imported here: install it, or choose 'av'"
            + (f"; {hint}" if hint else "")
        )


def open_reader(
    path: str,
    backend: str = "av",
    *,
    num_threads: int = 1,
    correction: np.ndarray | None = None,
    deadline: float | None = None,
    limits: DecodeLimits | None = None,
) -> VideoReader:
    """Open a video.

    Args:
        path: A regular file.
        backend: Registered name of a reader (``av``, ``decord``, ``torchcodec``, ...), or ``auto``:
            the fastest for files of this kind (container, codec, size, key-frame distance),
            measured in every process on the first of them, among the readers that return the same
            frames bit for bit, see
            :func:`~sce_video.datasets.readers.backend_choice.choose_backend`; where ``av`` cannot
            open the file, the first other reader that can.
        num_threads: Threads of the decoder.
        correction: ``FrameCountError.correction`` of an earlier attempt with the same backend.
        deadline: Value of ``time.monotonic()`` after which reading raises.
        limits: How large frames may be; None for the defaults.

    Raises:
        VideoDecodeError: The file cannot be opened; with ``auto``, the error of ``av``.
        ValueError: Unknown backend.
        ImportError: The backend is not installed.
    """
    check_backend(backend)
    options: dict[str, Any] = dict(
        num_threads=num_threads, correction=correction, deadline=deadline, limits=limits
    )
    if backend != "auto":
        return READERS.module_dict[backend](path, **options)
    try:
        reader = AvReader(path, **options)
    except VideoDecodeError as error:
        return _open_with_another(path, options, error)
    try:
        return _fastest(reader, options)
    except BaseException:
        reader.close()
        raise


def _other_readers() -> dict[str, type[VideoReader]]:
    """All readers but ``av`` that can be imported, by name."""
    return {
        name: kind
        for name, kind in READERS.module_dict.items()
        if name != "av" and backend_importable(name)
    }


def _open_with_another(path: str, options: dict[str, Any], error: VideoDecodeError) -> VideoReader:
    """The first other reader that opens the file; raises ``error`` if there is none."""
    if os.path.isfile(path):
        for kind in _other_readers().values():
            try:
                reader = kind(path, **options)
            except VideoDecodeError:
                continue
            if reader.uses_library:
                return reader
            reader.close()
    raise error


def _fastest(reader: AvReader, options: dict[str, Any]) -> VideoReader:
    """This reader, or that of a faster backend; then this one is closed."""
    if options["correction"] is not None:  # belongs to the backend that was chosen before
        name = remembered_choice(reader)
    else:
        name = choose_backend(reader, _other_readers(), options["num_threads"], options["deadline"])
    if name == "av":
        return reader
    try:
        other = READERS.module_dict[name](reader.path, **options)
    except VideoDecodeError:
        return reader
    reader.close()
    return other


__all__ = [
    "AvReader",
    "VideoReader",
    "backend_importable",
    "check_backend",
    "open_reader",
]
