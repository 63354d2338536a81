"""Small pictures and clips of videos, made when they are asked for and kept in memory."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.apis.embed import embed
from sce_video.apis.index import VideoIndex
from sce_video.apis.index_files import StoredRecords
from sce_video.apis.model import VideoModel
from sce_video.apis.refined_moments import windows_near
from sce_video.apis.search import model_of_index
from sce_video.apis.window_features import WindowFeatures
from sce_video.datasets import VideoDecodeError
from sce_video.visualization.gallery import encode_clip, encode_jpeg, read_frames

#: Content types of the files that a browser is asked to play; it says itself if it cannot.
PLAYABLE = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same container; browsers refuse video/quicktime
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
}


class MediaCache:
    """The most recently used pictures, up to a number of bytes; for several threads.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int = 256 * 2**20) -> None:
        self._limit = limit
        self._size = 0
        self._content: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The content of a key; made if it is not there."""
        with self._lock:
            if key in self._content:
                self._content.move_to_end(key)
                return self._content[key]
        content = make()  # outside the lock: two threads may make the same, which harms nothing
        with self._lock:
            if key not in self._content:
                self._content[key] = content
                self._size += len(content)
            while self._size > self._limit:
                _, removed = self._content.popitem(last=False)
                self._size -= len(removed)
        return content


# -- what workers run ----------------------------------------------------------------------


def thumbnail(file: str, span: tuple[float, float] | None = None) -> bytes:
    """A frame from the middle of a video, or of a moment of it, as JPEG.

    Raises:
        VideoDecodeError: the file cannot be read.
    """
    frames, _, _ = read_frames(file, 1, played=False, span=span)
    return encode_jpeg(frames[0])


def animation(file: str, span: tuple[float, float] | None = None) -> bytes:
    """Three seconds from the middle of a video, or of a moment of it, as a small mp4; four frames
    of one of an instant.

    Raises:
        VideoDecodeError: the file cannot be read.
    """
    frames, played, _ = read_frames(file, span=span)
    return encode_clip(played if len(played) > 1 else frames)


def embed_file(
    header: dict[str, Any], folder: str, network: tuple[str | None, ...], file: str
) -> tuple[np.ndarray, bytes]:
    """The feature (D,) of a video by the network of an index, and its small clip.

    Args:
        header: Root, checkpoint and settings of the index.
        folder: Of the index, for messages.
        network: Checkpoint, config and device, as of
            :func:`~sce_video.apis.search.model_of_index`.
        file: The video.

    Raises:
        FileNotFoundError: the checkpoint is missing.
        ValueError: it is another one.
        VideoDecodeError: the video cannot be decoded; its message does not contain the path.
    """
    index = _index_of(header, folder)
    model = _model(index, network)
    try:
        feature = embed(model, file, index.options)[0]
        return feature, animation(file)
    except VideoDecodeError as error:
        raise ValueError(f"the video cannot be decoded: {error.reason}") from None


def embed_near(
    header: dict[str, Any],
    folder: str,
    network: tuple[str | None, ...],
    file: str,
    start: float,
    end: float,
    step: float,
) -> WindowFeatures:
    """Windows beside one of a video, by the network of an index.

    Args:
        header: As of :func:`embed_file`.
        folder: Likewise.
        network: Likewise.
        file: The video.
        start: Of the window, seconds.
        end: Likewise.
        step: Seconds from one window to the next.

    Raises:
        FileNotFoundError, ValueError: As of :func:`embed_file`.
        VideoDecodeError: the video cannot be decoded.
    """
    index = _index_of(header, folder)
    return windows_near(_model(index, network), index.options, file, start, end, step)


def _index_of(header: dict[str, Any], folder: str) -> VideoIndex:
    """An index without rows, from which its network can be built."""
    nothing = np.empty(0, dtype=np.int64)
    paths, features = np.empty(0, dtype=np.str_), np.empty((0, 1), dtype=np.float32)
    stored = StoredRecords(header, paths, features, np.zeros(1), nothing, nothing, {})
    return VideoIndex(Path(folder), stored)


#: The network that this worker has loaded, by what it was loaded from.
_networks: dict[tuple[Any, ...], VideoModel] = {}


def _model(index: VideoIndex, network: tuple[str | None, ...]) -> VideoModel:
    path = network[0] or index.checkpoint["path"]
    changed = os.stat(path).st_mtime_ns if os.path.isfile(path) else None
    key = (index.checkpoint["sha256"], path, changed, network)
    if key not in _networks:
        _networks.clear()
        _networks[key] = model_of_index(index, *network)
    return _networks[key]
