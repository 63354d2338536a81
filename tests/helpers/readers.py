"""Readers for tests: of frames in memory, and a fallback reader that decodes by PyAV."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.readers import AvReader, VideoReader
from sce_video.datasets.readers.optional_readers import FallbackReader
from sce_video.datasets.transforms.lazy_view import grey_difference


def rgb_difference(frames, first, second):
    """(T, H, W, 3) uint8, three equal channels, of indices (T,) into frames (n, H, W, 3)."""
    pairs = zip(first, second, strict=True)
    differences = np.stack([grey_difference(frames[i], frames[j]) for i, j in pairs])
    return np.repeat(differences[..., None], 3, axis=-1)


class FramesReader(VideoReader):
    """A reader of given frames; records the indices of each read."""

    def __init__(self, frames: np.ndarray, fps: float = 10.0) -> None:
        self.frames = frames
        self.timestamps = np.arange(len(frames)) / fps
        self.duration = len(frames) / fps
        self.path, self.calls = "frames", list[list[int]]()

    def read(self, indices: np.ndarray) -> np.ndarray:
        self.calls.append(indices.tolist())
        return self.frames[indices]

    def close(self) -> None:
        pass


class SlowCopy(FallbackReader):
    """A fallback reader that decodes by PyAV; tests set how long it takes."""

    codecs = frozenset({"h264"})

    def _open(self, path: str, num_threads: int) -> int:
        self._library = AvReader(path)
        return len(self._library.timestamps)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._library.read(np.array(indices))


class Wrong(SlowCopy):
    """A library that returns other pixels."""

    def _read(self, indices: list[int]) -> np.ndarray:
        return 255 - super()._read(indices)
