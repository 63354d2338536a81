"""Decoded frames of PyAV, converted to RGB when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.readers.base import DecodedFrames


class AvFrames(DecodedFrames):
    """Decoded frames of a reader; still valid after the reader is closed.

    Args:
        frames: Frames of the decoder.
        size: Height and width as displayed; frames of another size are scaled to it.
        num_threads: Threads of the conversion to RGB.
        count: Called at each conversion.
        turns: Quarter turns counter-clockwise; None takes those of each frame's metadata.
    """

    def __init__(
        self,
        frames: list[av.VideoFrame],
        size: tuple[int, int],
        num_threads: int,
        count: Callable[[], None],
        turns: int | None = None,
    ) -> None:
        self.size = size
        self._frames = frames
        self._num_threads = num_threads
        self._count = count
        self._turns = turns
        self._reformatter = VideoReformatter()

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def interlaced(self) -> bool:
        """Whether the first frame is interlaced."""
        return bool(self._frames[0].interlaced_frame)

    @property
    def turns(self) -> int:
        """Quarter turns counter-clockwise of the first frame."""
        return quarter_turns(self._frames[0]) if self._turns is None else self._turns

    @property
    def pixel_format(self) -> str:
        """FFmpeg's name of the pixel format of the first frame."""
        return str(self._frames[0].format.name)

    def __getitem__(self, index: int) -> np.ndarray:
        frame = self._frames[index]
        turns = quarter_turns(frame) if self._turns is None else self._turns
        height, width = self.size[::-1] if turns % 2 else self.size
        # By default every reformatter starts a thread pool of its own, which takes many times
        # longer than the conversion of one frame.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=self._num_threads
        )
        self._count()
        plane: Any = rgb.planes[0]  # shown as it lies there, where to_ndarray copies padded rows
        strides = (plane.line_size, 3, 1)
        array: np.ndarray = np.ndarray((height, width, 3), np.uint8, plane, strides=strides)
        return np.ascontiguousarray(np.rot90(array, k=turns)) if turns else array


def displayed_size(frame: av.VideoFrame, turns: int | None = None) -> tuple[int, int]:
    """Height and width of a frame after its quarter turns; None: those of its metadata."""
    size = (frame.height, frame.width)
    turns = quarter_turns(frame) if turns is None else turns
    return size[::-1] if turns % 2 else size


def frame_bytes(frame: av.VideoFrame) -> int:
    """Memory of the pixels of a frame."""
    return frame.width * frame.height * frame.format.padded_bits_per_pixel // 8


def quarter_turns(frame: av.VideoFrame) -> int:
    """Quarter turns counter-clockwise, from the display matrix."""
    return round(frame.rotation / 90) % 4


class HeldFrames:
    """The memory of the frames that one call has decoded and keeps."""

    def __init__(self, path: str, limits: DecodeLimits) -> None:
        self._path = path
        self._limits = limits
        self._count = self._bytes = 0

    def checked(self, frame: av.VideoFrame) -> av.VideoFrame:
        """The frame; VideoDecodeError if it, or all frames together, are too large."""
        self._limits.check_frame(self._path, frame.height, frame.width)
        self._count += 1
        self._bytes += frame_bytes(frame)
        self._limits.check_held(self._path, self._count, self._bytes)
        return frame
