"""Video decoding behind one interface: :func:`open_reader` opens a file with a backend.

A backend is a :class:`VideoReader` registered in ``READERS``; its registered name is the value of
``--backend``. A reader of the user's own is in a module of ``--import``.
"""

from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import (
    VideoReader,
    backend_importable,
    check_backend,
    open_reader,
)
from sce_video.utils.imports import import_submodules

import_submodules(__name__, __path__)

__all__ = ["AvReader", "VideoReader", "backend_importable", "check_backend", "open_reader"]
