"""Decoded frames of PyAV, converted to RGB when they are needed."""

from __future__ import annotations

from collections.abc import Callable

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from sce_video.datasets.readers.base import DecodedFrames


class AvFrames(DecodedFrames):
    """Decoded frames of a reader; still valid after the reader is closed.

    Args:
        frames: Frames of the decoder.
        size: Height and width as displayed; frames of another size are scaled to it.
        num_threads: Threads of the conversion to RGB.
        count: Called at each conversion.
    """

    def __init__(
        self,
        frames: list[av.VideoFrame],
        size: tuple[int, int],
        num_threads: int,
        count: Callable[[], None],
    ) -> None:
        self.size = size
        self._frames = frames
        self._num_threads = num_threads
        self._count = count
        self._reformatter = VideoReformatter()

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def interlaced(self) -> bool:
        """Whether the first frame is interlaced."""
        return bool(self._frames[0].interlaced_frame)

    def __getitem__(self, index: int) -> np.ndarray:
        frame = self._frames[index]
        turns = quarter_turns(frame)
        height, width = self.size[::-1] if turns % 2 else self.size
        # By default every reformatter starts a thread pool of its own, which takes many times
        # longer than the conversion of one frame.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=self._num_threads
        )
        self._count()
        array = rgb.to_ndarray()
        return np.ascontiguousarray(np.rot90(array, k=turns)) if turns else array


def displayed_size(frame: av.VideoFrame) -> tuple[int, int]:
    """Height and width of a frame after the rotation in its metadata."""
    size = (frame.height, frame.width)
    return size[::-1] if quarter_turns(frame) % 2 else size


def frame_bytes(frame: av.VideoFrame) -> int:
    """Memory of the pixels of a frame."""
    return frame.width * frame.height * frame.format.padded_bits_per_pixel // 8


def quarter_turns(frame: av.VideoFrame) -> int:
    """Quarter turns counter-clockwise, from the display matrix."""
    return round(frame.rotation / 90) % 4
