"""What the readers that do not use PyAV for their frames have in common."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import DecodedFrames, VideoReader, check_deadline

_MP4, _MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
_H264_8_BIT = (66, 77, 88, 100)  # baseline, main, extended, high: profile_idc


class FallbackReader(VideoReader):
    """A reader with frames of another library and the time stamps of PyAV.

    The table comes from :class:`AvReader`: of an mp4 file that is a look at its index, and other
    libraries' tables have faults (decord's time stamps of AVI files with B frames are no time
    stamps at all). Files that the library is known to read wrongly, or cannot open, are read with
    PyAV altogether: what a backend is for is speed, and its frames are those of the others.

    Args: see :class:`AvReader`.

    Raises:
        ImportError: The library cannot be imported.
        VideoDecodeError: PyAV cannot open the file.
    """

    #: Codecs that the library reads rightly out of mp4, mov, Matroska and WebM files.
    codecs: frozenset[str] = frozenset()
    #: What it raises where there is no frame.
    errors: tuple[type[Exception], ...] = (RuntimeError, IndexError)

    def __init__(
        self,
        path: str,
        *,
        num_threads: int = 1,
        correction: np.ndarray | None = None,
        deadline: float | None = None,
    ) -> None:
        self._import()
        self.path = path
        self._deadline = deadline
        own = AvReader(path, num_threads=num_threads, correction=correction, deadline=deadline)
        self.timestamps, self.duration = own.timestamps, own.duration
        self._own: AvReader | None = own
        # A correction means that frames are missing: then PyAV knows which ones.
        trusted = correction is None and self.can_read(own)
        try:
            if trusted and self._open(path, num_threads) == len(own.timestamps):
                own.close()
                self._own = None
        except self.errors:
            pass  # PyAV has opened it, so it reads it
        except BaseException:
            own.close()
            raise

    @property
    def uses_library(self) -> bool:
        """Whether frames come from the library, not from PyAV."""
        return self._own is None

    @classmethod
    def can_read(cls, reader: AvReader) -> bool:
        """Whether the library's frames of this file are known to be right, bit for bit."""
        container, codec = reader.facts[:2]
        if container not in (_MP4, _MATROSKA) or codec not in cls.codecs or reader.by_count:
            return False
        extradata = reader.extradata
        if codec == "h264":  # the libraries round 10 bits in different ways
            return len(extradata) > 1 and extradata[0] == 1 and extradata[1] in _H264_8_BIT
        if codec == "hevc":
            return len(extradata) > 1 and extradata[0] == 1 and extradata[1] & 31 == 1
        return True

    @abstractmethod
    def _import(self) -> None:
        """Raise ImportError where the library is missing."""

    @abstractmethod
    def _open(self, path: str, num_threads: int) -> int:
        """Open the file with the library; returns how many frames it speaks of."""

    @abstractmethod
    def _read(self, indices: list[int]) -> np.ndarray:
        """(n, H, W, 3) uint8 of frames counted from the start of the file."""

    @abstractmethod
    def _release(self) -> None:
        """Let the library close the file."""

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._own is not None:
            return self._noted(self._own, self._own.read(indices))
        indices = self._check_indices(indices)
        check_deadline(self.path, self._deadline)
        try:
            frames = self._read(indices.tolist())
        except self.errors:
            return self._read_after_failure(indices)
        self.frames_converted += len(frames)
        self._size = (int(frames.shape[1]), int(frames.shape[2]))
        return frames

    def _read_after_failure(self, indices: np.ndarray) -> np.ndarray:
        """PyAV reads what the library cannot, or says which frames there are."""
        self._release()
        self._own = AvReader(self.path, deadline=self._deadline)
        if len(self._own.timestamps) != len(self.timestamps):
            raise VideoDecodeError(self.path, "changed while it was being read")
        return self._noted(self._own, self._own.read(indices))

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        return super().decode(indices) if self._own is None else self._own.decode(indices)

    def _noted(self, own: AvReader, frames: np.ndarray) -> np.ndarray:
        self.frames_decoded, self.frames_converted = own.frames_decoded, own.frames_converted
        self._size = (int(frames.shape[1]), int(frames.shape[2]))
        return frames

    def close(self) -> None:
        self._release()
        if self._own is not None:
            self._own.close()
