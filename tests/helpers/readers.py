"""Readers for tests: of frames in memory, and with a library that is PyAV itself."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.fallback_reader import FallbackReader


class FramesReader:
    """A video of given frames; records which ones were read."""

    def __init__(self, frames: np.ndarray, fps: float = 10.0) -> None:
        self.frames = frames
        self.timestamps = np.arange(len(frames)) / fps
        self.duration = len(frames) / fps
        self.calls: list[list[int]] = []

    def read(self, indices: np.ndarray) -> np.ndarray:
        self.calls.append(indices.tolist())
        return self.frames[indices]


class SlowCopy(FallbackReader):
    """A library that reads like PyAV; how long it takes is set by the test."""

    codecs = frozenset({"h264"})

    def _import(self) -> None:
        """PyAV is there."""

    def _open(self, path: str, num_threads: int) -> int:
        self._library = AvReader(path)
        return len(self._library.timestamps)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._library.read(np.array(indices))

    def _release(self) -> None:
        if hasattr(self, "_library"):
            self._library.close()


class Wrong(SlowCopy):
    """A library that returns other pixels."""

    def _read(self, indices: list[int]) -> np.ndarray:
        return 255 - super()._read(indices)
