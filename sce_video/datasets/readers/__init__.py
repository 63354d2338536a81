"""Video decoding behind one interface: :func:`open_reader` opens a file with a backend.

A backend is a :class:`VideoReader` registered in ``READERS``; its registered name is the value of
``--backend``. A new one is a module that the config names in ``custom_imports``.
"""

from __future__ import annotations

from typing import Unpack

from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import ReaderOptions, VideoReader
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
    known = READERS.module_dict
    if backend not in known:
        raise ValueError(f"unknown backend {backend!r}: choose {', '.join(known)}")
    if not backend_importable(backend):
        hint = known[backend].import_hint
        raise MissingPackageError(
            f"backend {backend!r} cannot be imported here: install it, or choose 'av'"
            + (f"; {hint}" if hint else "")
        )


def open_reader(path: str, backend: str = "av", **options: Unpack[ReaderOptions]) -> VideoReader:
    """Open a video.

    Args:
        path: A regular file.
        backend: Registered name of a reader (``av``, ``decord``, ``torchcodec``, ...). All
            return the same frames, bit for bit; ``av`` was the fastest on every file measured.
        options: See :class:`~sce_video.datasets.readers.base.ReaderOptions`.

    Raises:
        VideoDecodeError: The file cannot be opened.
        ValueError: Unknown backend; ImportError: it is not installed.
    """
    check_backend(backend)
    return READERS.module_dict[backend](path, **options)


__all__ = ["AvReader", "VideoReader", "backend_importable", "check_backend", "open_reader"]
