"""Decoding with decord."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import (
    VideoReader,
    check_deadline,
    check_regular_file,
    last_frame_duration,
)


class DecordReader(VideoReader):
    """Reads a video with decord 0.6.0.

    Where it is right, its frames equal those of the other backends bit for bit (8-bit video).
    Known faults of decord 0.6.0, none of which can be mended from outside:

    - it cannot open AV1 or GIF files;
    - asked for single frames, it returns wrong ones in some files with very short distances
      between key frames (wmv2, some HEVC);
    - of a file whose header promises more frames than exist it may repeat frames or hang; the
      data set's time limit ends the latter;
    - in 10-bit video its colours differ (3 levels in the mean) by another way of rounding.

    Prefer ``av`` unless there is a reason not to.

    Args: see :class:`~sce_video.datasets.readers.av_reader.AvReader`.
    """

    def __init__(
        self,
        path: str,
        *,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
    ) -> None:
        import decord

        check_regular_file(path)
        self.path = path
        self._deadline = deadline
        try:
            self._video = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=num_threads)
            count = len(self._video)
            stamps = np.asarray(self._video.get_frame_timestamp(range(count)), dtype=np.float64)
        except (decord.DECORDError, RuntimeError, IndexError) as error:
            raise VideoDecodeError(path, f"decord cannot open it: {_brief(error)}") from error
        if count == 0:
            raise VideoDecodeError(path, "holds no video frames")
        fps = float(self._video.get_avg_fps()) or None
        last = last_frame_duration(stamps[:, 0], float(stamps[-1, 1] - stamps[-1, 0]), fps)
        if correction is not None:
            stamps = stamps[correction]
        self.timestamps = stamps[:, 0] - stamps[0, 0]
        self.duration = float(self.timestamps[-1]) + last

    def read(self, indices: np.ndarray) -> np.ndarray:
        import decord

        indices = self._check_indices(indices)
        check_deadline(self.path, self._deadline)
        try:
            frames = self._video.get_batch(indices.tolist()).asnumpy()
        except (decord.DECORDError, RuntimeError, IndexError):
            errors = (decord.DECORDError, RuntimeError, IndexError)
            raise self._missing_frames("decord", self._video.__getitem__, errors) from None
        self.frames_converted += len(frames)
        self._size = frames.shape[1:3]
        return frames

    def close(self) -> None:
        self._video = None


def _brief(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
