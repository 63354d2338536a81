"""Decoding with decord."""

from __future__ import annotations

from typing import Any

import numpy as np

from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.fallback_reader import FallbackReader


class DecordReader(FallbackReader):
    """Reads a video with decord 0.6.0, where decord reads it rightly; elsewhere with PyAV.

    Its frames of 8-bit h264, MPEG-4, VP8 and VP9 in mp4, mov, Matroska and WebM files equal those
    of the other backends bit for bit. Known faults of decord 0.6.0, which is why other files are
    read with PyAV:

    - it cannot open AV1 or GIF files, and crashes on some AVI files that are cut short when it is
      handed their bytes;
    - asked for single frames, it returns wrong ones in files with open GOPs (MPEG-4 with B frames
      as FFmpeg makes it), with intra refresh, and in some with very short distances between key
      frames (wmv2, some HEVC); in Matroska files that begin before 0 all are wrong;
    - its colours of interlaced video are others;
    - its time stamps of AVI files with B frames (UCF101 as published) and of MPEG program streams
      are no numbers one can use;
    - in 10-bit video its colours differ (3 levels in the mean) by another way of rounding.

    Of a file whose header promises more frames than exist it may repeat frames or hang; the data
    set's time limit ends the latter. Prefer ``av``, which is faster on every file measured.

    Args: see :class:`~sce_video.datasets.readers.av_reader.AvReader`.
    """

    codecs = frozenset({"h264", "mpeg4", "vp8", "vp9"})
    _video: Any = None

    @classmethod
    def can_read(cls, reader: AvReader) -> bool:
        if not super().can_read(reader):
            return False
        try:
            return reader.begins_anew_at_keys and not reader.interlaced
        except (VideoDecodeError, FrameCountError, StopIteration):
            return False  # damaged: PyAV says how

    def _import(self) -> None:
        import decord

        decord.logging.set_level(decord.logging.QUIET)  # what matters is raised
        self.errors = (decord.DECORDError, RuntimeError, IndexError)

    def _open(self, path: str, num_threads: int) -> int:
        import decord

        self._video = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=num_threads)
        return len(self._video)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._video.get_batch(indices).asnumpy()

    def _release(self) -> None:
        self._video = None
