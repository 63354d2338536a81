"""Repack one file: read and encode it, and verify the output."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import av
import av.logging
import cv2
import numpy as np

from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.data_tools.repack.video_source import SourceFacts, Span, VideoSource, read_source
from sce_video.datasets.readers.av_file import best_video_stream, file_url, open_container
from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError, check_regular_file
from sce_video.jobs import ItemError, StorageError
from sce_video.options.prepare import CRF_RANGE
from sce_video.utils.files import regular_file

_HIGHEST_PSNR = 100.0  # value reported for equal frames, in dB
#: Number of frames that are encoded several times to find the crf.
_PILOT_FRAMES = 16
_SLOPE = 0.65  # PSNR in dB that one step of crf costs on average
_STEP = 0.25  # step between the crf values that are tried


class Psnr:
    """Peak signal-to-noise ratio of many frames, computed from their mean squared error."""

    def __init__(self) -> None:
        self._errors = np.zeros(2)
        self._samples = np.zeros(2)

    def add(self, one: np.ndarray, other: np.ndarray) -> None:
        """Compare two frames, (3 H / 2, W) uint8 each, with the planes Y, U and V."""
        luma = one.shape[0] * 2 // 3
        for index, rows in enumerate((slice(0, luma), slice(0, None))):
            self._errors[index] += cv2.norm(one[rows], other[rows], cv2.NORM_L2SQR)
            self._samples[index] += one[rows].size

    def decibels(self) -> tuple[float, float]:
        """Return the PSNR of the luma plane and of all three planes together, at most 100 dB."""
        lowest = 255**2 / 10 ** (_HIGHEST_PSNR / 10)
        errors = np.maximum(self._errors / np.maximum(self._samples, 1), lowest)
        luma, planes = np.minimum(10 * np.log10(255**2 / errors), _HIGHEST_PSNR).tolist()
        return luma, planes


def encoder_options(settings: Settings, crf: float) -> dict[str, str]:
    """Return the options of libx264.

    Key frames have a fixed distance, also at scene cuts. Without B-frames, frames are stored in
    display order, and the first is displayed at time 0. Key frames have the quality of other frames
    (ipratio=1), because any frame may be read. This saves a twentieth of the bytes.
    """
    keyint = settings.keyint
    params = f"keyint={keyint}:min-keyint={keyint}:scenecut=0:bframes=0:ipratio=1"
    options = {"crf": f"{crf:g}", "preset": settings.preset, "x264-params": params}
    return {**options, "tune": settings.tune} if settings.tune else options


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
        frames: Frames to write, (3 H / 2, W) uint8 each, with the planes Y, U and V.
        path: Path of the file. An existing file is overwritten.
        size: Height and width of the frames, pixels.
        rate: Frames per second.
        options: Options of the encoder.
        tags: Attributes of the encoder, from ``colour_tags``.
        comment: Comment in the file's metadata.
        threads: Threads of the encoder.

    Raises:
        OSError or av.FFmpegError: If the file cannot be written. The error has an ``errno``.
    """
    movflags = {"movflags": "+faststart"}
    with av.open(file_url(path), "w", format="mp4", options=movflags) as container:
        container.metadata["comment"] = comment
        stream: Any = container.add_stream("libx264", rate=rate, options=options)
        for packet in _packets(stream.codec_context, frames, size, rate, tags, threads):
            packet.stream = stream
            container.mux(packet)


def _packets(
    codec: Any,
    frames: Iterable[np.ndarray],
    size: tuple[int, int],
    rate: Fraction,
    tags: Mapping[str, Any] = {},
    threads: int = 1,
) -> Iterator[Any]:
    """Yield the packets of a codec that is not open yet."""
    codec.height, codec.width = size
    codec.pix_fmt = "yuv420p"
    codec.framerate = rate
    codec.time_base = 1 / rate
    codec.thread_count = threads
    for name, value in tags.items():
        setattr(codec, name, value)
    for number, array in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(array, format="yuv420p")
        frame.pts, frame.time_base = number, 1 / rate
        yield from codec.encode(frame)
    yield from codec.encode(None)  # returns the frames that the encoder still holds


def choose_crf(
    held: dict[int, np.ndarray], size: tuple[int, int], rate: Fraction, settings: Settings
) -> float:
    """Return the highest crf, in quarters, at which sample frames reach ``settings.psnr``.

    Args:
        held: Prepared frames by number, in complete runs from one key frame to the next.
        size: Height and width of the frames, pixels.
        rate: Frames per second.
        settings: Settings with the PSNR to reach and the options of the encoder.
    """
    numbers, run = sorted(held), settings.keyint
    runs = [numbers[i : i + run] for i in range(0, len(numbers), run)]
    wanted = max(1, round(_PILOT_FRAMES / run))  # number of runs, spread evenly
    picked = np.unique(np.linspace(0, len(runs) - 1, wanted + 2)[1:-1].round().astype(int))
    frames = [held[number] for index in picked for number in runs[index]]

    goal = settings.psnr + 0.1  # frames that are not in the sample may be a little worse
    found: dict[float, float] = {}
    crf = 24.0
    for _ in range(4):  # secant method, because PSNR is a nearly linear function of crf
        if crf in found:
            break
        found[crf] = _try_quality(frames, size, rate, encoder_options(settings, crf))
        # Follow the line through the two values nearest to the goal.
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
        crf = float(min(high, max(low, _STEP * np.floor(crf / _STEP))))
    reached = [tried for tried, psnr in found.items() if psnr >= goal]
    if len(reached) in (0, len(found)):
        return max(reached, default=CRF_RANGE[0])
    return crf  # this crf was not tried, but PSNR is nearly linear between the last two values


def _try_quality(
    frames: list[np.ndarray], size: tuple[int, int], rate: Fraction, options: dict[str, str]
) -> float:
    """Return the PSNR of frames after encoding and decoding in memory."""
    encoder: Any = av.CodecContext.create("libx264", "w")
    encoder.options = options
    decoder: Any = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    psnr = Psnr()
    wanted = iter(frames)
    for packet in [*_packets(encoder, frames, size, rate), None]:
        for frame in decoder.decode(packet):
            psnr.add(next(wanted), frame.to_ndarray())
    return min(psnr.decibels())


#: Prefix of the comment in every output, which distinguishes outputs from other files.
COMMENT = "sce_video repack"
#: Errors that are caused by the disk or the network, and not by the video.
_STORAGE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ENOENT, errno.ESTALE,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputFacts:
    """Facts about an output that were found by decoding it.

    Attributes:
        frames: Number of frames.
        seconds: Duration.
        video_bytes: Size of the video stream in bytes.
        psnr: PSNR of all planes of the compared frames in dB.
        psnr_luma: PSNR of the luma planes of the compared frames in dB.
        psnr_frames: Number of compared frames. Only frames of a sample are compared in long videos.
    """

    frames: int
    seconds: float
    video_bytes: int
    psnr: float
    psnr_luma: float
    psnr_frames: int


@dataclass(frozen=True, kw_only=True)
class RepackFacts:
    """Facts about a repacked file and its source.

    Attributes:
        source: Facts about the source.
        output: Facts about the output.
        crf: Quality of x264.
        rate: Frames per second, as a fraction.
        height, width: Size of the output in pixels.
        scaled: Whether the output and the source differ in size.
        constant: Whether the source has a constant rate, so that all frames are kept.
        bytes: Size of the output in bytes.
        frames_not_shown: Number of frames that are missing in the output.
        cpu_seconds: Processor time.
    """

    source: SourceFacts
    output: OutputFacts
    crf: float
    rate: str
    height: int
    width: int
    scaled: bool
    constant: bool
    bytes: int
    frames_not_shown: int
    cpu_seconds: float = 0.0

    def as_record(self) -> dict[str, Any]:
        """Return all facts as a flat dict of JSON values. Keys of the source begin with source_."""
        own = asdict(self)
        source = {f"source_{name}": value for name, value in own.pop("source").items()}
        return {**own.pop("output"), **source, **own}


def repack_file(
    source: str,
    temporary: str,
    settings: Settings,
    limits: EncoderLimits | None = None,
    span: Span | None = None,
) -> RepackFacts:
    """Write one output and verify it.

    Args:
        source: Path of the file to read.
        temporary: Path of the output, which exists afterwards only if it is good.
        settings: Settings of the output.
        limits: Limits of the work. None uses the defaults.
        span: Start and end of a segment in seconds; None for the whole file.

    Raises:
        ItemError: If no good output was made. The kind is one of ``KINDS``.
        StorageError: If the output cannot be written because of the disk and not because of the
            video.
    """
    av.logging.set_libav_level(av.logging.FATAL)
    start = time.process_time()
    try:
        facts = _repack(source, temporary, settings, limits or EncoderLimits(), span)
    except (VideoDecodeError, ItemError, StorageError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, VideoDecodeError):
            raise
        exists, readable = os.path.exists(source), os.access(source, os.R_OK)
        kind = "missing" if not exists else "bad" if readable else "denied"
        raise ItemError(kind, error.reason) from error
    return replace(facts, cpu_seconds=round(time.process_time() - start, 3))


def _repack(
    path: str, temporary: str, settings: Settings, limits: EncoderLimits, span: Span | None
) -> RepackFacts:
    check_regular_file(path)
    source = read_source(path, settings, DecodeLimits(limits.max_pixels), span)
    crf = settings.crf
    if crf is None:
        crf = choose_crf(source.held, source.preparation.size, source.schedule.rate, settings)
    while True:
        _write(temporary, source, encoder_options(settings, crf), limits.threads)
        found = verify_output(temporary, source, settings.keyint)
        worse = min(found.psnr_luma, found.psnr)
        missing = settings.psnr - worse
        if settings.crf is not None or missing <= 0 or crf <= CRF_RANGE[0]:
            break
        # The crf was chosen on a sample of the frames. All frames together may need a lower one.
        steps = max(1.0, np.ceil(missing / _SLOPE / _STEP))
        crf = float(max(CRF_RANGE[0], crf - steps * _STEP))
    if worse < limits.min_psnr:
        below = f"is below {limits.min_psnr:g} dB (--min-psnr)"
        raise ItemError("quality", f"PSNR {worse:.2f} dB at crf {crf:g} {below}")
    height, width = source.preparation.size
    return RepackFacts(
        source=source.facts,
        output=replace(found, psnr=round(found.psnr, 3), psnr_luma=round(found.psnr_luma, 3)),
        crf=crf,
        height=height,
        width=width,
        scaled=source.preparation.scaled,
        constant=source.schedule.constant,
        rate=f"{source.schedule.rate}",
        bytes=os.path.getsize(temporary),
        frames_not_shown=source.facts.frames - len(np.unique(source.schedule.shown)),
    )


def _write(path: str, source: VideoSource, options: dict[str, str], threads: int) -> None:
    """Encode to a file and flush it to the disk."""
    try:
        encode(
            source.prepared_frames(),
            path,
            size=source.preparation.size,
            rate=source.schedule.rate,
            options=options,
            tags=source.tags,
            comment=COMMENT,
            threads=threads,
        )
        # Flush the data, because the rename could reach the disk first, and the power could fail.
        with open(path, "rb", opener=regular_file) as file:
            os.fsync(file.fileno())
    except (OSError, av.FFmpegError) as error:
        if error.errno in _STORAGE:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        raise ItemError("encode", f"cannot be encoded: {error}") from error


def verify_output(path: str, source: VideoSource, keyint: int) -> OutputFacts:
    """Decode an output completely and compare it with its source.

    Args:
        path: Path of the output.
        source: Source of the output.
        keyint: Distance of key frames.

    Raises:
        ItemError: If the number of frames, their size, timestamps or key frames, or the duration
            are wrong.
    """

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise ItemError("check", f"{what} of the output is wrong")

    psnr = Psnr()
    shown, rate = source.schedule.shown, source.schedule.rate
    compared = number = video_bytes = packets = 0
    try:
        with open_container(path) as container:
            stream = best_video_stream(path, container)
            stream.codec_context.thread_count = 1
            for packet in container.demux(stream):
                video_bytes += packet.size
                if packet.size:
                    require(packet.is_keyframe == (packets % keyint == 0), "key frames")
                    packets += 1
                for frame in packet.decode():
                    require((frame.height, frame.width) == source.preparation.size, "the size")
                    require(frame.pts * frame.time_base == number / rate, "a timestamp")
                    reference = source.held.get(int(shown[number])) if number < len(shown) else None
                    if reference is not None:
                        psnr.add(reference, frame.to_ndarray())
                        compared += 1
                    number += 1
            seconds = float((stream.duration or 0) * stream.time_base)
            streams = len(container.streams)
    except (av.FFmpegError, VideoDecodeError, OSError, IndexError) as error:
        raise ItemError("check", f"the output cannot be decoded: {error}") from error
    require(streams == 1, "the number of streams")
    require(number == packets == len(shown), f"the frame count ({number} of {len(shown)})")
    require(abs(seconds - len(shown) / rate) <= 0.01 / rate, f"the duration ({seconds:.3f} s)")
    require(compared > 0, "the number of frames to compare")
    luma, planes = psnr.decibels()
    return OutputFacts(
        frames=number,
        seconds=round(seconds, 6),
        video_bytes=video_bytes,
        psnr=planes,
        psnr_luma=luma,
        psnr_frames=compared,
    )
