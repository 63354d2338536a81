"""The reader that decodes with decord."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.containers import file_url
from sce_video.datasets.readers.fallback_reader import FallbackReader
from sce_video.registry import READERS


@READERS.register_module("decord")
class DecordReader(FallbackReader):
    """Reads a video with decord 0.6.0 where decord reads it correctly, elsewhere with PyAV.

    Its frames of 8-bit h264, MPEG-4, VP8 and VP9 in mp4, mov, Matroska and WebM files equal those
    of the other backends bit for bit. Other files are read with PyAV because of known errors of
    decord 0.6.0:

    - it cannot open AV1 or GIF files, and crashes on some truncated AVI files when it is given
      their bytes;
    - its random access returns wrong frames for files with open GOPs (MPEG-4 with B frames as
      encoded by FFmpeg), with intra refresh, and for some with very short distances between key
      frames (wmv2, some HEVC); for Matroska files with negative time stamps all are wrong;
    - its colours of interlaced video differ from FFmpeg's;
    - its time stamps of AVI files with B frames (UCF101 as published) and of MPEG program streams
      are unusable;
    - its colours of 10-bit video differ (3 levels in the mean), because it rounds differently.

    For a file whose header lists more frames than exist it may repeat frames or hang; the data
    set's time limit ends the latter. Prefer ``av``, which is faster on every file measured.

    Args: see :class:`~sce_video.datasets.readers.av_reader.AvReader`.
    """

    library = "decord"
    codecs = frozenset({"h264", "mpeg4", "vp8", "vp9"})
    _video: Any = None

    @classmethod
    def can_read(cls, av_reader: AvReader) -> bool:
        if not super().can_read(av_reader):
            return False
        try:
            return av_reader.random_access_at_keys and not av_reader.interlaced
        except (VideoDecodeError, FrameCountError, StopIteration):
            return False  # damaged: PyAV reports it

    def _import(self) -> None:
        import decord

        decord.logging.set_level(decord.logging.QUIET)  # errors are raised anyway
        self.errors = (decord.DECORDError, RuntimeError, IndexError)

    def _open(self, path: str, num_threads: int) -> int:
        import decord

        self._video = decord.VideoReader(file_url(path), ctx=decord.cpu(0), num_threads=num_threads)
        return len(self._video)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._video.get_batch(indices).asnumpy()

    def _release(self) -> None:
        self._video = None
