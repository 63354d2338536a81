"""Encode prepared frames to h264, choose the quality, and measure the PSNR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np

from sce_video.data_tools.repack.settings import CRF_RANGE, Settings
from sce_video.datasets.readers.containers import file_url

_HIGHEST_PSNR = 100.0  # reported for equal frames
_PILOT_FRAMES = 16
_SLOPE = 0.65  # dB that one step of crf costs on average
_STEP = 0.25  # of crf


class Psnr:
    """Peak signal-to-noise ratio over many frames, from their overall mean squared error."""

    def __init__(self) -> None:
        self._errors = np.zeros(2)
        self._samples = np.zeros(2)

    def add(self, one: np.ndarray, other: np.ndarray) -> None:
        """Compare two frames, (3 H / 2, W) uint8 each: Y, U, V."""
        luma = one.shape[0] * 2 // 3
        for index, rows in enumerate((slice(0, luma), slice(0, None))):
            self._errors[index] += cv2.norm(one[rows], other[rows], cv2.NORM_L2SQR)
            self._samples[index] += one[rows].size

    @property
    def luma(self) -> float:
        """dB of the luma plane, at most 100."""
        return self._decibel(0)

    @property
    def all_planes(self) -> float:
        """dB over the samples of all three planes, at most 100."""
        return self._decibel(1)

    @property
    def worse(self) -> float:
        """The lower of the two."""
        return min(self.luma, self.all_planes)

    def _decibel(self, index: int) -> float:
        error = self._errors[index] / max(self._samples[index], 1)
        if error <= 255**2 / 10 ** (_HIGHEST_PSNR / 10):
            return _HIGHEST_PSNR
        return float(10 * np.log10(255**2 / error))


def encoder_options(settings: Settings, crf: float) -> dict[str, str]:
    """Options of libx264.

    Key frames are at fixed distances (no scene cuts) and there are no B-frames, so frames are
    stored in the order of presentation and the first is shown at time 0. Key frames get no better
    quality than other frames (ipratio=1), since any frame may be read: this saves a twentieth of
    the bytes.
    """
    keyint = settings.keyint
    options = {
        "crf": f"{crf:g}",
        "preset": settings.preset,
        "x264-params": f"keyint={keyint}:min-keyint={keyint}:scenecut=0:bframes=0:ipratio=1",
    }
    if settings.tune:
        options["tune"] = settings.tune
    return options


def encode(
    frames: Iterable[np.ndarray],
    path: str,
    *,
    size: tuple[int, int],
    rate: Fraction,
    options: dict[str, str],
    tags: dict[str, Any],
    comment: str = "",
    threads: int = 1,
) -> None:
    """Write an mp4 with one video stream and the index at the beginning.

    Args:
        frames: (3 H / 2, W) uint8 each: Y, U, V.
        path: The file; overwritten.
        size: (H, W).
        rate: Frames per second.
        options: Options of the encoder.
        tags: Attributes of the encoder, from ``colour_tags``.
        comment: Comment in the file's metadata.
        threads: Threads of the encoder.

    Raises:
        OSError or av.FFmpegError: The file cannot be written; has an ``errno``.
    """
    with av.open(
        file_url(path), "w", format="mp4", options={"movflags": "+faststart"}
    ) as container:
        container.metadata["comment"] = comment
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        _set_up(stream.codec_context, size, rate, tags, threads)
        for packet in _packets(stream.codec_context, frames, rate):
            packet.stream = stream
            container.mux(packet)


def _set_up(
    codec: Any, size: tuple[int, int], rate: Fraction, tags: dict[str, Any], threads: int
) -> None:
    codec.height, codec.width = size
    codec.pix_fmt = "yuv420p"
    codec.framerate = rate
    codec.time_base = 1 / rate
    codec.thread_count = threads
    for name, value in tags.items():
        setattr(codec, name, value)


def _packets(codec: Any, frames: Iterable[np.ndarray], rate: Fraction) -> Iterator[Any]:
    for number, array in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(array, format="yuv420p")
        frame.pts, frame.time_base = number, 1 / rate
        yield from codec.encode(frame)
    yield from codec.encode(None)


def choose_crf(
    held: dict[int, np.ndarray], size: tuple[int, int], rate: Fraction, settings: Settings
) -> float:
    """The highest crf, in quarters, at which sample frames of the video reach ``settings.psnr``.

    Args:
        held: Prepared frames by number; of each run between key frames all or none.
        size: (H, W).
        rate: Frames per second.
        settings: The PSNR to reach, and the options of the encoder.
    """
    frames = _pilot(held, settings.keyint)
    goal = settings.psnr + 0.1  # the other frames may be a little worse
    found: dict[float, float] = {}
    crf = 24.0
    for _ in range(4):
        if crf in found:
            break
        found[crf] = _try_quality(frames, size, rate, encoder_options(settings, crf))
        crf = _next_guess(found, goal)
    reached = [tried for tried, psnr in found.items() if psnr >= goal]
    if len(reached) in (0, len(found)):
        return max(reached, default=CRF_RANGE[0])
    return crf  # the curve is nearly linear between the last two values tried


def _next_guess(found: dict[float, float], goal: float) -> float:
    """Where the line through the two values nearest to the goal meets it, rounded down."""
    above = max(((c, p) for c, p in found.items() if p >= goal), default=None)
    below = min(((c, p) for c, p in found.items() if p < goal), default=None)
    if above and below and below[0] > above[0]:
        share = (above[1] - goal) / max(above[1] - below[1], 1e-9)
        crf = above[0] + share * (below[0] - above[0])
    else:
        near = above or below
        assert near is not None
        crf = near[0] + (near[1] - goal) / _SLOPE
    low, high = CRF_RANGE
    return float(min(high, max(low, _STEP * np.floor(crf / _STEP))))


def lower_crf(crf: float, missing: float) -> float | None:
    """A crf that should gain ``missing`` dB; None if the lowest has been reached."""
    if crf <= CRF_RANGE[0]:
        return None
    steps = max(1.0, np.ceil(missing / _SLOPE / _STEP))
    return float(max(CRF_RANGE[0], crf - steps * _STEP))


def _pilot(held: dict[int, np.ndarray], run: int) -> list[np.ndarray]:
    """Whole runs between key frames, evenly spread, about 16 frames in total."""
    numbers = sorted(held)
    runs: list[Sequence[int]] = [numbers[i : i + run] for i in range(0, len(numbers), run)]
    wanted = max(1, round(_PILOT_FRAMES / run))
    picked = np.unique(np.linspace(0, len(runs) - 1, wanted + 2)[1:-1].round().astype(int))
    return [held[number] for index in picked for number in runs[index]]


def _try_quality(
    frames: list[np.ndarray], size: tuple[int, int], rate: Fraction, options: dict[str, str]
) -> float:
    """PSNR of frames after encoding and decoding in memory."""
    encoder: Any = av.CodecContext.create("libx264", "w")
    _set_up(encoder, size, rate, {}, 1)
    encoder.options = options
    decoder: Any = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    psnr = Psnr()
    wanted = iter(frames)
    for packet in [*_packets(encoder, frames, rate), None]:
        for frame in decoder.decode(packet):
            psnr.add(next(wanted), frame.to_ndarray())
    return psnr.worse
