"""Decoding with torchcodec, where it can be imported (it needs FFmpeg's shared libraries)."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import VideoReader, check_deadline, check_regular_file


class TorchcodecReader(VideoReader):
    """Reads a video with torchcodec.

    torchcodec offers no table of time stamps without decoding, so it is read from the packets with
    PyAV, which opens the file once more. Frames equal those of the other backends bit for bit
    (8-bit video; 10-bit video differs by 3 levels in the mean), except in AVI files with B frames
    (UCF101 as published, for one), where torchcodec confuses neighbouring frames.

    Args: see :class:`~sce_video.datasets.readers.av_reader.AvReader`.

    Raises:
        ImportError: torchcodec cannot be imported.
    """

    def __init__(
        self,
        path: str,
        *,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
    ) -> None:
        from torchcodec.decoders import VideoDecoder

        check_regular_file(path)
        self.path = path
        self._deadline = deadline
        with AvReader(path, deadline=deadline) as table:
            stamps, self.duration = table.timestamps, table.duration
        try:
            self._video = VideoDecoder(
                path, dimension_order="NHWC", num_ffmpeg_threads=num_threads, seek_mode="exact"
            )
        except (RuntimeError, ValueError) as error:
            raise VideoDecodeError(path, f"torchcodec cannot open it: {error}") from error
        count = min(len(self._video), len(stamps))
        if count == 0:
            raise VideoDecodeError(path, "holds no video frames")
        last = self.duration - float(stamps[-1])
        stamps = stamps[:count] if correction is None else stamps[correction]
        self.timestamps = stamps - stamps[0]
        self.duration = float(self.timestamps[-1]) + last

    def read(self, indices: np.ndarray) -> np.ndarray:
        indices = self._check_indices(indices)
        check_deadline(self.path, self._deadline)
        try:
            frames = self._video.get_frames_at(indices.tolist()).data.numpy()
        except (RuntimeError, IndexError):
            errors = (RuntimeError, IndexError)
            raise self._missing_frames("torchcodec", self._video.get_frame_at, errors) from None
        self.frames_converted += len(frames)
        self._size = frames.shape[1:3]
        return frames

    def close(self) -> None:
        self._video = None
