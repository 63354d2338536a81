"""The reader of one row of a table: frames from packets, without a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import av
import numpy as np

from sce_video.datasets.readers.av_reader import AvFrames, displayed_size, frame_bytes
from sce_video.datasets.readers.base import DecodedFrames, VideoReader, check_deadline
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.readers.limits import DecodeLimits
from sce_video.datasets.tables.rows import DecoderPool, FrameIndex

_decoders = DecoderPool()


class TableReader(VideoReader):
    """Reads the frames of a row; they equal those of ``AvReader`` on the same stream, bit for bit.

    Args:
        path: Of the row, for messages.
        index: Where its frames are.
        fetch: Takes ascending positions of packets, returns their bytes.
        num_threads: Threads of the decoder.
        correction: Not used: a row has no frames that its packets do not hold.
        deadline: Value of ``time.monotonic()`` after which reading raises.
        limits: How large frames may be; None for the defaults.

    Raises:
        VideoDecodeError: Its frames are too large.

    Attributes:
        deadline: As given; a reader that was opened ahead of its sample gets that of the sample.
    """

    def __init__(
        self,
        path: str,
        *,
        index: FrameIndex,
        fetch: Callable[[np.ndarray], Sequence[bytes | memoryview]],
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
        limits: DecodeLimits | None = None,
    ) -> None:
        self.path = path
        self._index = index
        self._fetch = fetch
        self._num_threads = num_threads
        self.deadline = deadline
        self._limits = limits or DecodeLimits()
        self._limits.check_frame(path, index.parameters.height, index.parameters.width)
        self.timestamps = index.timestamps
        self.duration = index.duration

    def read(self, indices: np.ndarray) -> np.ndarray:
        """See :meth:`VideoReader.read`."""
        decoded = self.decode(indices)
        self._limits.check_held(self.path, len(decoded), len(decoded) * math.prod(decoded.size) * 3)
        return np.stack([decoded[i] for i in range(len(decoded))])

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        """See :meth:`VideoReader.decode`."""
        indices = self._check_indices(indices)
        positions = self._index.packets_for(indices)
        packets = self._fetch(positions)
        wanted = self._index.pts[indices].tolist()
        stamps = self._index.pts[positions].tolist()

        def watched() -> zip:
            check_deadline(self.path, self.deadline)
            return zip(stamps, packets, strict=True)

        try:
            found = _decoders.decode(
                self._index.parameters, watched(), set(wanted), self._num_threads, self._limits
            )
        except (av.FFmpegError, ValueError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error
        self.frames_decoded += len(positions)
        if len(found) < len(wanted):
            missing = [int(i) for i, pts in zip(indices, wanted, strict=True) if pts not in found]
            raise VideoDecodeError(self.path, f"frame {missing[0]} cannot be decoded", False)
        frames = [found[pts] for pts in wanted]
        self._check_frames(frames)
        size = displayed_size(frames[0], self._index.turns)
        self._size = size
        return AvFrames(frames, size, self._num_threads, self._count_conversion, self._index.turns)

    def _check_frames(self, frames: list[av.VideoFrame]) -> None:
        held = 0
        for count, frame in enumerate(frames, 1):
            self._limits.check_frame(self.path, frame.height, frame.width)
            held += frame_bytes(frame)
            self._limits.check_held(self.path, count, held)

    def _count_conversion(self) -> None:
        self.frames_converted += 1

    def close(self) -> None:
        """Does nothing: a reader keeps no file open."""
