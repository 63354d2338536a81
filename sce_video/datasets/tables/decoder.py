"""Decode packets without a container: a bare codec context of PyAV for each kind of stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any

import av

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.readers.av_file import decoder_options
from sce_video.datasets.tables.rows import CodecParameters

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
        """Decode packets and return the wanted frames, by time stamp.

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
