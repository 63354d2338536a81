"""The reader that decodes with torchcodec (which needs FFmpeg's shared libraries)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.readers.containers import file_url
from sce_video.datasets.readers.fallback_reader import FallbackReader
from sce_video.registry import READERS


@READERS.register_module("torchcodec")
class TorchcodecReader(FallbackReader):
    """Reads a video with torchcodec where torchcodec reads it correctly, elsewhere with PyAV.

    Its frames of 8-bit h264, HEVC, VP8, VP9 and AV1 in mp4, mov, Matroska and WebM files equal
    those of the other backends bit for bit. Read with PyAV: AVI files with B frames (UCF101 as
    published), of which it swaps neighbouring frames; MPEG program streams, of which it loses
    frames; and 10-bit video, whose colours differ by 3 levels in the mean.

    Args: see :class:`~sce_video.datasets.readers.av_reader.AvReader`.

    Raises:
        ImportError: torchcodec cannot be imported.
    """

    library = "torchcodec.decoders"
    import_hint = "torchcodec needs FFmpeg's shared libraries and a build for the installed torch"
    codecs = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
    errors = (RuntimeError, IndexError, ValueError)
    _video: Any = None

    def _import(self) -> None:
        import torchcodec.decoders  # noqa: F401

    def _open(self, path: str, num_threads: int) -> int:
        from torchcodec.decoders import VideoDecoder

        self._video = VideoDecoder(
            file_url(path),
            dimension_order="NHWC",
            num_ffmpeg_threads=num_threads,
            seek_mode="exact",
        )
        return len(self._video)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._video.get_frames_at(indices).data.numpy()

    def _release(self) -> None:
        self._video = None
