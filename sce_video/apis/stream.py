"""Features of the windows of a camera, a pipe or a growing file, as it plays.

A thread decodes and resizes frames and packs each window when its last frame has come; the caller
embeds. Frames of one window and a few packed windows are in memory, however long the stream is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sce_video.apis.embed_options import EmbedOptions, VideoNetwork, embed_sample
from sce_video.apis.window_features import (
    ResizeFrames,
    WindowFeature,
    WindowFeatures,
    WindowPacker,
    gather_windows,
)
from sce_video.datasets import VideoDecodeError
from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.live_video import live_frames
from sce_video.datasets.source_names import is_camera, is_stream
from sce_video.datasets.windows import Windows, clips_of_span

__all__ = ["LiveWindow", "embed_stream", "embed_stream_to_end", "is_stream"]

_WAITING = 2  # packed windows
_TIMEOUT = 10.0  # seconds without a frame, after which a camera has stopped
_EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class LiveWindow(WindowFeature):
    """A window of a stream.

    Attributes:
        lag: Seconds from the arrival of its last frame to its feature.
        skipped: Windows before it that were left out, as embedding was slower than the camera.
    """

    lag: float = 0.0
    skipped: int = 0


@dataclass(frozen=True)
class _Packed:
    start: float
    end: float
    sample: dict[str, Any] | None
    arrived: float
    skipped: int = 0


def embed_stream(
    network: VideoNetwork,
    source: str,
    windows: Windows,
    options: EmbedOptions | None = None,
    *,
    timeout: float = _TIMEOUT,
    follow: bool = False,
) -> Iterator[LiveWindow]:
    """Features of the windows of a stream, each as soon as it is complete.

    Where embedding is slower than a camera, windows are skipped, the oldest first, so that the lag
    is that of at most three windows; the writer of a pipe waits instead, and nothing is skipped.
    The last window of a stream that ends, ends with it, as that of a file does.

    Args:
        network: From :func:`~sce_video.apis.load_model`.
        source: ``rtsp://...`` (rtmp, srt, udp, tcp), a named pipe, ``-`` for the standard input, or
            with ``follow`` a file that is being written.
        windows: Length and stride; ``shots`` cannot be used.
        options: Views of a window.
        timeout: Seconds without a frame after which a camera has stopped, or a growing file is
            complete.
        follow: ``source`` is a growing file, in a container that can be read while it is written
            (mpegts, Matroska).

    Raises:
        VideoDecodeError: The stream cannot be opened, or stops; all windows before have been
            returned.
        ValueError: ``shots``.
    """
    if windows.shots:
        raise ValueError("shots cannot be found in a stream: give windows without shots")
    options = options or EmbedOptions()
    decoding = _Decoding(network, source, windows, options, follow, timeout)
    thread = threading.Thread(target=decoding.run, daemon=True, name="stream")
    thread.start()
    try:
        for packed in decoding.packed():
            if packed.sample is not None:
                name = f"{source} at {packed.start:g} s"
                feature = embed_sample(network, packed.sample, options, name)
                lag = time.monotonic() - packed.arrived
                yield LiveWindow(feature, packed.start, packed.end, lag, packed.skipped)
    finally:
        decoding.stop()


def embed_stream_to_end(
    network: VideoNetwork, source: str, windows: Windows, options: EmbedOptions
) -> WindowFeatures:
    """All windows of a stream; ``reason`` says why it ended, if by an error.

    Raises:
        VideoDecodeError: It ended before the first window.
    """
    rows: list[WindowFeature] = []
    reason = ""
    try:
        for window in embed_stream(network, source, windows, options):
            rows.append(window)
    except VideoDecodeError as error:
        if not rows:
            raise
        reason = error.reason
    return gather_windows(rows, network.row_size, reason)


class _Decoding:
    """The thread that makes windows of frames, and what it hands over."""

    def __init__(
        self,
        network: VideoNetwork,
        source: str,
        windows: Windows,
        options: EmbedOptions,
        follow: bool,
        timeout: float,
    ) -> None:
        self._settings, self._options = network.settings, options
        self._source, self._windows = source, windows
        self._follow, self._timeout = follow, timeout
        self._resize = ResizeFrames(network, options)
        self._packer = WindowPacker(network, options)
        self._ready: queue.Queue[_Packed | Exception | None] = queue.Queue(_WAITING)
        self._stopped = threading.Event()
        self._progress = time.monotonic()
        self._skipped = 0
        self._times: list[float] = []
        self._frames: list[np.ndarray] = []
        self._end = 0.0  # of the latest window
        self._begin = 0.0  # of the next

    # -- in the caller's thread --------------------------------------------------------------

    def packed(self) -> Iterator[_Packed]:
        """Packed windows until the stream ends.

        Raises:
            VideoDecodeError: No frame has come for ``timeout`` seconds.
        """
        while True:
            try:
                item = self._ready.get(timeout=min(0.2, self._timeout))
            except queue.Empty:
                # A growing file ends by itself after this time.
                if not self._follow and time.monotonic() - self._progress > self._timeout:
                    reason = f"no frame came for {self._timeout:g} s: it has stopped"
                    raise VideoDecodeError(self._source, reason, False) from None
                continue
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
            self._progress = max(self._progress, time.monotonic() - self._timeout / 2)

    def stop(self) -> None:
        """Let the thread end at its next frame."""
        self._stopped.set()

    # -- in the thread -----------------------------------------------------------------------

    def run(self) -> None:
        """Decode to the end; errors are handed over."""
        try:
            self._decode()
        except Exception as error:  # raised again by packed()
            self._hand_over(error)
        else:
            self._hand_over(None)

    def _decode(self) -> None:
        limits = DecodeLimits()
        for moment, frame in live_frames(self._source, self._timeout, self._follow, limits):
            self._progress = time.monotonic()
            if self._stopped.is_set():
                return
            while moment >= self._begin + self._windows.seconds - _EPSILON:
                self._finish(self._begin + self._windows.seconds)
                self._begin += self._windows.step
            small = self._resize(frame)[0]
            self._times.append(moment)
            self._frames.append(small)
            self._drop(self._times[-1] - self._windows.seconds - 1.0)
            limits.check_held(self._source, len(self._frames), len(self._frames) * small.nbytes)
        if self._times:
            self._finish_last()

    def _finish_last(self) -> None:
        """The window that ends with the stream, unless one has."""
        period = float(np.median(np.diff(self._times))) if len(self._times) > 1 else 0.04
        duration = self._times[-1] + period
        while duration >= self._begin + self._windows.seconds - _EPSILON:
            self._finish(self._begin + self._windows.seconds)
            self._begin += self._windows.step
        if duration - self._end > _EPSILON:
            self._begin = max(0.0, duration - self._windows.seconds)
            self._finish(duration)

    def _finish(self, end: float) -> None:
        """Pack the window from ``begin`` to ``end``."""
        start, self._end = self._begin, end
        times = np.array(self._times)
        inside = np.flatnonzero((times >= start - _EPSILON) & (times < end - _EPSILON))
        if not len(inside):  # a gap in the stream
            return
        first = times[inside[0]]
        clips = clips_of_span(
            times - first,
            start - first,
            end - first,
            clip_duration=self._settings.clip_duration,
            num_frames=self._settings.num_frames,
            num_clips=self._options.num_clips,
        )
        needed = np.unique([clip.frames for clip in clips])
        sample = self._packer.pack(dict(enumerate(self._frames)), needed, clips)
        self._hand_over(_Packed(start, end, sample, time.monotonic(), self._skipped))

    def _drop(self, before: float) -> None:
        """Forget frames of windows that are finished."""
        kept = int(np.searchsorted(self._times, before))
        del self._times[:kept], self._frames[:kept]

    def _hand_over(self, item: _Packed | Exception | None) -> None:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.0 if self._is_ahead(item) else 0.2)
                return
            except queue.Full:
                if self._is_ahead(item):
                    self._skip_oldest()

    def _is_ahead(self, item: _Packed | Exception | None) -> bool:
        """Whether older windows make room for this one: a camera does not wait."""
        return isinstance(item, _Packed) and is_camera(self._source)

    def _skip_oldest(self) -> None:
        try:
            oldest = self._ready.get_nowait()
        except queue.Empty:
            return
        if oldest is not None:
            self._skipped += 1
