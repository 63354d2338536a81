"""Worker processes of the search page, which decode and embed videos.

Damaged files may crash or hang a decoder, so this happens in processes that can be replaced.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, wait
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
from sce_video.pages.gallery import (
    GalleryEntry,
    encode_clip,
    encode_jpeg,
    read_entry,
    read_frames,
)
from sce_video.utils.command import explain
from sce_video.utils.errors import UserError

T = TypeVar("T")
#: Content types of files that a browser may be able to play. If it cannot, the page says so.
PLAYABLE = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # almost the same container, but browsers refuse video/quicktime
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
}


class RecentItems(Generic[T]):
    """Cache of the most recently used items. Several threads can use it.

    Args:
        limit: Largest total size of all items.
        size: Function that returns the size of an item; None counts the items.
    """

    def __init__(self, limit: int, size: Callable[[T], int] | None = None) -> None:
        self._limit, self._size_of, self._size = limit, size or (lambda _: 1), 0
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the item with this key, and make it if it is missing."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        # The lock is not held here, so two threads may make the same item, which is harmless.
        item = make()
        with self._lock:
            if key not in self._items:
                self._items[key] = item
                self._size += self._size_of(item)
            while self._size > self._limit:
                _, removed = self._items.popitem(last=False)
                self._size -= self._size_of(removed)
        return item


# -- functions that the workers run --------------------------------------------------------


#: Longest clip in seconds. Clips are kept in memory.
LONGEST_CLIP = 600.0


def middle_frame(file: str, span: tuple[float, float] | None = None) -> bytes:
    """Return the middle frame of a video, or of a moment in it, as JPEG."""
    frames, _, _ = read_frames(file, 1, played=False, span=span)
    return encode_jpeg(frames[0])


def animation(file: str, span: tuple[float, float] | None = None) -> bytes:
    """Return three seconds from the middle of a video, or of a moment in it, as a small mp4.

    For a very short moment, the clip consists of four frames.

    Raises:
        VideoDecodeError: If the video cannot be decoded.
    """
    frames, played, _ = read_frames(file, span=span)
    return encode_clip(played if len(played) > 1 else frames)


def cut(file: str, start: float, end: float) -> bytes:
    """Return a frame-accurate clip of a video as mp4, with its audio."""
    with tempfile.TemporaryDirectory(prefix="sce_video_clip_") as folder:
        out = os.path.join(folder, "clip.mp4")
        cut_clip(file, start, end, out)
        return Path(out).read_bytes()


def whole(file: str, _: object = None) -> bytes:
    """Return the first ten minutes of a video in a table as mp4, which a browser can play."""
    return cut(file, 0.0, LONGEST_CLIP)


def embed_file(
    index: VideoIndex, network: IndexNetwork, file: str
) -> tuple[np.ndarray, bytes, str]:
    """Embed a video or an image with the network of an index.

    Args:
        index: Index, of which only the header is used.
        network: Location of the network.
        file: Video or image to embed.

    Returns:
        The feature (D,), the preview (a small clip as mp4, or the image as JPEG), and the kind of
        the file ("video" or "image").

    Raises:
        ValueError: If the file cannot be decoded, or :func:`.index_network.model_of_index` refuses
            the network.
    """
    model = _model(index, network)
    kind = "image" if is_image(file) else "video"
    try:
        feature = embed_query(model, Query(file), index.options)
        if kind == "image":
            return feature, encode_jpeg(read_entry(GalleryEntry("", file)).frames[0]), kind
        return feature, animation(file), kind
    except VideoDecodeError as error:
        raise ValueError(f"the {kind} cannot be decoded: {error.reason}") from None


def embed_moment(index: VideoIndex, network: IndexNetwork, moment: Query) -> np.ndarray:
    """Embed a moment of a video, and return the feature (D,)."""
    return embed_query(_model(index, network), moment, index.options)


def embed_text(index: VideoIndex, network: IndexNetwork, text: str) -> np.ndarray:
    """Embed a text with the video-text model of an index, and return the feature (D,)."""
    checkpoint = checkpoint_of_index(index, network.checkpoint)
    return text_feature(checkpoint, index.header.model["backbone"], text)


def embed_near(
    index: VideoIndex, network: IndexNetwork, file: str, start: float, end: float, step: float
) -> Features:
    """Embed the windows around a window with :func:`.refined_moments.windows_near`."""
    return windows_near(_model(index, network), index.options, file, start, end, step)


#: Networks that this worker has loaded, by the source of the network
_networks: dict[Hashable, VideoModel] = {}


def _model(index: VideoIndex, network: IndexNetwork) -> VideoModel:
    """Return the network of an index, which is loaded again only if the checkpoint has changed."""
    path = network.checkpoint or index.header.checkpoint
    changed = os.stat(path).st_mtime_ns if os.path.isfile(path) else None
    key = (index.header.sha256, path, changed, network)
    if key not in _networks:
        network.modules.load()
        _networks.clear()
        _networks[key] = model_of_index(index, network)
    return _networks[key]


#: Number of attempts for a call, which fails if a worker has ended between two calls
_TRIES = 3
#: Seconds between two checks of whether the pool of a call still exists.
_CHECK_SECONDS = 1.0
_CLOSING = "the page is being closed"


class CallError(UserError, RuntimeError):
    """Error of a call in a worker, as a sentence about the file or the network."""


class MediaWorkers:
    """Pool of worker processes, which several threads can share.

    Args:
        count: Number of processes. Each runs one call at a time, and further calls wait.
        preload: Modules that the fork server imports before it forks workers.
    """

    def __init__(self, count: int, preload: tuple[str, ...] = ()) -> None:
        # A process that is forked directly could inherit a lock that another thread holds.
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
                # Ctrl-C on a terminal signals all processes, but only the server should react. The
                # workers inherit the signal mask, so SIGINT is blocked while they start.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    # With the default action, SIGTERM ends a worker immediately, even in C code.
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
        """Call a function in a worker, which is ended after ``timeout`` seconds.

        Raises:
            CallError: If the call fails.
        """
        for _ in range(_TRIES):
            try:
                pool = self.open()
                call = pool.schedule(_attempt, args=(function, arguments), timeout=timeout)
                # A pool that ends leaves some calls without an outcome: those that were being
                # scheduled when a worker died, and all calls when it is stopped.
                while not wait([call], _CHECK_SECONDS).done:
                    if self._closed or not pool.active:
                        raise BrokenProcessPool
                value, problem = call.result()
            except TimeoutError:
                value, problem = None, f"reading the file took longer than {timeout:g} s"
            except ProcessExpired:
                value, problem = None, "reading the file crashed the decoder"
            # A pool that has been stopped raises RuntimeError.
            except (BrokenProcessPool, CancelledError, RuntimeError):
                if not self._closed:
                    continue
                value, problem = None, _CLOSING
            if problem:
                raise CallError(problem)
            return value
        raise CallError("the processes that decode videos exit immediately. Restart the page")

    def close(self) -> None:
        """End all processes. Current and later calls raise CallError."""
        self._closed = True
        # A pool that is still importing cannot be stopped. kill_fork_server ends it.
        if self._started.done():
            self._stop()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            pool.join()


def kill_fork_server() -> None:
    """End the process that forks the workers, shortly before this process ends.

    The fork server may still be importing modules for many seconds. It would then fork a worker,
    which would print an error because this process no longer exists.
    """
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Call a function, and return its result and "", or None and a message if it fails.

    An exception is converted to a message, because it may not be picklable.
    """
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, explain(error) or f"{type(error).__name__}: {error}"
