"""Thumbnails and clips of videos, which are created on request and kept in memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from pebble import ProcessExpired, ProcessPool

from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.sources import Query, is_image
from sce_video.find.examples import embed_query
from sce_video.find.index_network import IndexNetwork, checkpoint_of_index, model_of_index
from sce_video.find.refined_moments import windows_near
from sce_video.find.store import VideoIndex
from sce_video.inference.clips import cut_clip
from sce_video.inference.encoders.text import text_feature
from sce_video.inference.features import Features
from sce_video.inference.model import VideoModel
from sce_video.pages.gallery import encode_clip, encode_jpeg, read_entry, read_frames
from sce_video.utils.command import explain
from sce_video.utils.errors import UserError

T = TypeVar("T")
#: Content types of files that are sent to a browser for playback. The browser reports files that it
#: cannot play.
PLAYABLE = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same container, but browsers refuse video/quicktime
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
}


class RecentItems(Generic[T]):
    """Cache of the most recently used items, for use by several threads.

    Args:
        limit: Largest total size of all items.
        size: Returns the size of an item; None counts the items.
    """

    def __init__(self, limit: int, size: Callable[[T], int] | None = None) -> None:
        self._limit, self._size_of, self._size = limit, size or (lambda _: 1), 0
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the item of a key, and create it if it is missing."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        item = make()  # without the lock; two threads may create the same item, which is harmless
        with self._lock:
            if key not in self._items:
                self._items[key] = item
                self._size += self._size_of(item)
            while self._size > self._limit:
                _, removed = self._items.popitem(last=False)
                self._size -= self._size_of(removed)
        return item


# -- functions that workers run ------------------------------------------------------------


#: Longest clip in seconds, because clips are kept in memory
LONGEST_CLIP = 600.0


def middle_frame(file: str, span: tuple[float, float] | None = None) -> bytes:
    """Return a frame from the middle of a video, or of a moment of it, as JPEG."""
    frames, _, _ = read_frames(file, 1, played=False, span=span)
    return encode_jpeg(frames[0])


def animation(file: str, span: tuple[float, float] | None = None) -> bytes:
    """Return three seconds from the middle of a video, or of a moment of it, as a small mp4.

    A very short moment has four frames.

    Raises:
        VideoDecodeError: If the video cannot be decoded.
    """
    frames, played, _ = read_frames(file, span=span)
    return encode_clip(played if len(played) > 1 else frames)


def cut(file: str, start: float, end: float) -> bytes:
    """Return a frame-accurate mp4 of a segment of a video, with its audio."""
    with tempfile.TemporaryDirectory(prefix="sce_video_clip_") as folder:
        out = os.path.join(folder, "clip.mp4")
        cut_clip(file, start, end, out)
        return Path(out).read_bytes()


def whole(file: str, _: object = None) -> bytes:
    """Return the first ten minutes of a video in a table as mp4, for browsers."""
    return cut(file, 0.0, LONGEST_CLIP)


def embed_file(
    index: VideoIndex, network: IndexNetwork, file: str
) -> tuple[np.ndarray, bytes, str]:
    """Embed a video or an image with the network of an index.

    Args:
        index: Index without its rows.
        network: Location of the network.
        file: Video or image to embed.

    Returns:
        The feature (D,), a small clip as mp4 or the image as JPEG, and "video" or "image".

    Raises:
        ValueError: If the file cannot be decoded, or :func:`.index_network.model_of_index` refuses
            the network.
    """
    model = _model(index, network)
    kind = "image" if is_image(file) else "video"
    try:
        feature = embed_query(model, Query(file), index.options)
        if kind == "image":
            return feature, encode_jpeg(read_entry("", file).frames[0]), kind
        return feature, animation(file), kind
    except VideoDecodeError as error:
        raise ValueError(f"the {kind} cannot be decoded: {error.reason}") from None


def embed_moment(index: VideoIndex, network: IndexNetwork, moment: Query) -> np.ndarray:
    """Embed a moment of a video to a feature (D,)."""
    return embed_query(_model(index, network), moment, index.options)


def embed_text(index: VideoIndex, network: IndexNetwork, text: str) -> np.ndarray:
    """Embed a text to a feature (D,) with the video-text model of an index."""
    checkpoint = checkpoint_of_index(index, network.checkpoint)
    return text_feature(checkpoint, index.header.model["backbone"], text)


def embed_near(
    index: VideoIndex, network: IndexNetwork, file: str, start: float, end: float, step: float
) -> Features:
    """Embed windows around a window of a video with :func:`.refined_moments.windows_near`."""
    return windows_near(_model(index, network), index.options, file, start, end, step)


#: Networks that this worker has loaded, by their source
_networks: dict[Hashable, VideoModel] = {}


def _model(index: VideoIndex, network: IndexNetwork) -> VideoModel:
    path = network.checkpoint or index.header.checkpoint
    changed = os.stat(path).st_mtime_ns if os.path.isfile(path) else None
    key = (index.header.sha256, path, changed, network)
    if key not in _networks:
        network.modules.load()
        _networks.clear()
        _networks[key] = model_of_index(index, network)
    return _networks[key]


#: Number of tries for a call, because a pool breaks if its worker ends between two calls
_TRIES = 3
_CLOSING = "the page is being closed"


class CallError(UserError, RuntimeError):
    """Problem with the file or the network of a call, as one sentence."""


class MediaWorkers:
    """Pool of ``count`` worker processes for functions that take a file. Threads can share it.

    Args:
        count: Number of processes. Each runs one call at a time, and other calls wait.
        preload: Modules that are imported before processes are forked.
    """

    def __init__(self, count: int, preload: tuple[str, ...] = ()) -> None:
        # A fork could inherit locks that this process's threads hold, so use a fork server.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._count, self._closed, self._lock = count, False, threading.Lock()
        self._pool: ProcessPool | None = None
        self._started: Future = Future()

    def open(self) -> ProcessPool:
        """Start the processes unless they are running; raise CallError after :meth:`close`."""
        with self._lock:
            if not self._closed and (self._pool is None or not self._pool.active):
                self._stop()
                # Processes inherit the signal mask. Only the server handles Ctrl-C on a terminal.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    # SIGTERM must end a worker immediately, even inside C code.
                    self._pool = ProcessPool(
                        self._count,
                        initializer=signal.signal,
                        initargs=(signal.SIGTERM, signal.SIG_DFL),
                        context=self._context,
                    )
                    self._started = self._pool.schedule(int)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if self._closed or self._pool is None:
                raise CallError(_CLOSING)
            return self._pool

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """Call a function in a worker, which is stopped after ``timeout`` seconds.

        Raises:
            CallError: If the call fails.
        """
        for _ in range(_TRIES):
            try:
                call = self.open().schedule(_attempt, args=(function, arguments), timeout=timeout)
                value, problem = call.result()
            except TimeoutError:
                value, problem = None, f"reading it took longer than {timeout:g} s"
            except ProcessExpired:
                value, problem = None, "reading it ended the process that decodes it"
            # A pool that is no longer active raises RuntimeError.
            except (BrokenProcessPool, CancelledError, RuntimeError):
                if not self._closed:
                    continue
                value, problem = None, _CLOSING
            if problem:
                raise CallError(problem)
            return value
        raise CallError("the processes that decode videos exit immediately. Start the page again")

    def close(self) -> None:
        """End all running processes. Calls in progress and later ones raise CallError."""
        self._closed = True
        if self._started.done():  # otherwise it is still importing, and ends with this process
            self._stop()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()


def kill_fork_server() -> None:
    """End the process that forks workers, when this process ends.

    It may still be importing for many seconds. If it continued, it would fork another worker, which
    would complain that its parent process no longer exists.
    """
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the result and "", or None and a message, because exceptions may not be picklable."""
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, explain(error) or f"{type(error).__name__}: {error}"
