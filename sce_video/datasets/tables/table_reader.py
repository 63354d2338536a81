"""The reader of one row of a table: frames from packets, without a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Unpack

import av
import numpy as np

from sce_video.datasets.readers.av_file import decoder_options
from sce_video.datasets.readers.av_reader import AvFrames, HeldFrames
from sce_video.datasets.readers.base import (
    DecodedFrames,
    ReaderOptions,
    VideoReader,
    check_deadline,
)
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.readers.limits import DecodeLimits
from sce_video.datasets.tables.rows import CodecParameters, FrameIndex

_Key = tuple[CodecParameters, int, int]


class DecoderPool:
    """Open decoders that are not in use, by their parameters.

    A table has few kinds of streams, and opening a decoder takes as long as decoding a frame or
    two. A decoder that raised an error, or whose thread was abandoned, does not come back.

    Args:
        capacity: Number of decoders kept.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = capacity
        self._idle: OrderedDict[_Key, Any] = OrderedDict()
        self._lock = Lock()

    def decode(
        self,
        parameters: CodecParameters,
        packets: Iterable[tuple[int, bytes | memoryview]],
        wanted: set[int],
        num_threads: int,
        limits: DecodeLimits,
    ) -> dict[int, av.VideoFrame]:
        """Decode packets and return the frames of the wanted time stamps.

        Args:
            parameters: Of the stream.
            packets: (pts, bytes) in decoding order, beginning with a key frame.
            wanted: Time stamps.
            num_threads: Threads of the decoder.
            limits: Of the frame size.

        Raises:
            av.FFmpegError: The decoder refuses a packet.
        """
        key = (parameters, num_threads, limits.max_pixels)
        with self._lock:
            codec = self._idle.pop(key, None)
        if codec is None:
            codec = open_decoder(parameters, num_threads, limits)
        found: dict[int, av.VideoFrame] = {}
        count = 0
        for count, (pts, data) in enumerate(packets, 1):  # noqa: B007
            packet = av.Packet(data)
            packet.pts = packet.dts = pts
            for frame in codec.decode(packet):
                if frame.pts in wanted:
                    found[frame.pts] = frame
        if len(found) < len(wanted):
            for frame in codec.decode(None):  # those that the decoder still holds back
                if frame.pts in wanted:
                    found[frame.pts] = frame
            codec.flush_buffers()
        elif count > len(wanted):  # it may hold a frame that was not wanted
            codec.flush_buffers()
        with self._lock:
            self._idle[key] = codec
            while len(self._idle) > self._capacity:
                self._idle.popitem(last=False)
        return found


def open_decoder(parameters: CodecParameters, num_threads: int, limits: DecodeLimits) -> Any:
    """A decoder with the parameters that a container would give it.

    Raises:
        av.FFmpegError: There is no such decoder, or it refuses the parameters.
    """
    codec: Any = av.CodecContext.create(parameters.codec, "r")
    codec.extradata = parameters.extradata or None
    codec.width, codec.height = parameters.width, parameters.height
    names = ("color_range", "colorspace", "color_primaries", "color_trc")
    for name, value in zip(names, parameters.colors, strict=True):
        setattr(codec, name, value)
    codec.thread_count = num_threads
    if num_threads > 1:
        codec.thread_type = "AUTO"
    codec.options = decoder_options(limits)
    codec.open(strict=False)
    return codec


_decoders = DecoderPool()


class TableReader(VideoReader):
    """Reads the frames of a row; they equal those of ``AvReader`` on the same stream, bit for bit.

    Args:
        path: Of the row, for messages.
        index: Where its frames are.
        fetch: Takes ascending positions of packets, returns their bytes.
        options: Of a reader; a row has no frames that its packets do not hold, so ``correction`` is
            not used. A reader that was opened ahead of its sample gets that one's ``deadline``.

    Raises:
        VideoDecodeError: Its frames are too large.
    """

    def __init__(
        self,
        path: str,
        *,
        index: FrameIndex,
        fetch: Callable[[np.ndarray], Sequence[bytes | memoryview]],
        **options: Unpack[ReaderOptions],
    ) -> None:
        super().__init__(path, **options)
        self._index = index
        self._fetch = fetch
        self.limits.check_frame(path, index.parameters.height, index.parameters.width)
        self.timestamps = index.timestamps
        self.duration = index.duration

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self.decode(indices).stacked(self.path, self.limits)

    def decode(self, indices: np.ndarray) -> DecodedFrames:
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
                self._index.parameters, watched(), set(wanted), self.num_threads, self.limits
            )
        except (av.FFmpegError, ValueError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error
        self.frames_decoded += len(positions)
        if len(found) < len(wanted):
            missing = [int(i) for i, pts in zip(indices, wanted, strict=True) if pts not in found]
            raise VideoDecodeError(self.path, f"frame {missing[0]} cannot be decoded", False)
        held = HeldFrames(self.path, self.limits)
        frames = [held.checked(found[pts]) for pts in wanted]
        count, turns = self._count_conversion, self._index.turns
        decoded = AvFrames(frames, None, self.num_threads, count, turns)
        self._size = decoded.size
        return decoded

    def close(self) -> None:
        """Does nothing: a reader keeps no file open."""
