"""Repack one file: read, encode, verify."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
import av.logging
import numpy as np

from sce_video.data_tools.repack.encoding import (
    Psnr,
    choose_crf,
    encode,
    encoder_options,
    lower_crf,
)
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.source import Source, read_source
from sce_video.datasets.decode_limits import MAX_PIXELS, DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.base import check_regular_file
from sce_video.datasets.readers.containers import open_video

#: Prefix of the comment in every output, by which outputs are told from other files.
COMMENT = "sce_video repack"
_STORAGE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file may not become that large here",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write",
    errno.EPERM: "no permission to write",
    errno.EIO: "the disk reports an error",
    errno.ENOENT: "the folder does not exist any more",
    errno.ESTALE: "the network file system lost the file",
}


@dataclass(frozen=True)
class Job:
    """What one process is to do.

    Attributes:
        source: File to read.
        temporary: File to write.
        settings: Settings of the output.
        min_psnr: dB that the output must have, of luma and of all planes.
        threads: Threads of the encoder.
        max_pixels: Height x width of the largest frames that are read.
        span: (start, end) in seconds of the part to write; None for the whole file.
    """

    source: str
    temporary: str
    settings: Settings
    min_psnr: float
    threads: int = 1
    max_pixels: int = MAX_PIXELS
    span: tuple[float, float] | None = None


class RefusedError(Exception):
    """The output is wrong; ``kind`` is a key of :data:`report.KINDS`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class CannotWriteError(Exception):
    """The output cannot be written, because of the disk and not because of the video."""


def repack_file(job: Job) -> dict[str, Any]:
    """Write one output to its temporary path and verify it.

    Returns:
        Facts that JSON can hold. ``status``: ``done``, ``failed`` (with ``kind`` and ``reason``;
        the temporary file is removed) or ``storage`` (with ``reason``; the run should stop). With
        ``done`` also:

        - ``frames``, ``seconds``, ``rate``, ``height``, ``width``, ``scaled``, ``bytes``,
          ``video_bytes``; ``constant``: rate and frames of the source are kept.
        - ``crf``; ``psnr`` (all planes) and ``psnr_luma`` in dB over ``psnr_frames`` frames.
        - ``source_frames``; ``frames_not_shown``: those of them that no output frame shows;
          ``source_promised``: frames by the packets; ``source_seconds``, ``source_video_bytes``.
        - ``cpu_seconds``.
    """
    av.logging.set_libav_level(av.logging.FATAL)
    start = time.process_time()
    try:
        facts = _repack(job)
        return {"status": "done", **facts, "cpu_seconds": round(time.process_time() - start, 3)}
    except VideoDecodeError as error:
        answer = {"status": "failed", "kind": _kind(job.source), "reason": error.reason}
    except RefusedError as error:
        answer = {"status": "failed", "kind": error.kind, "reason": str(error)}
    except CannotWriteError as error:
        answer = {"status": "storage", "reason": str(error)}
    with contextlib.suppress(OSError):
        os.unlink(job.temporary)
    return answer


def _kind(path: str) -> str:
    if not os.path.exists(path):
        return "missing"
    return "bad" if os.access(path, os.R_OK) else "denied"


def _repack(job: Job) -> dict[str, Any]:
    check_regular_file(job.source)
    settings = job.settings
    source = read_source(job.source, settings, DecodeLimits(job.max_pixels), job.span)
    crf = settings.crf
    if crf is None:
        crf = choose_crf(source.held, source.size, source.schedule.rate, settings)
    while True:
        _write(job, source, crf)
        facts, psnr = verify_output(job.temporary, source, settings.keyint)
        missing = settings.psnr - psnr.worse
        lower = lower_crf(crf, missing) if settings.crf is None and missing > 0 else None
        if lower is None:
            break
        crf = lower
    if psnr.worse < job.min_psnr:
        raise RefusedError(
            "quality",
            f"PSNR {psnr.worse:.2f} dB at crf {crf:g} is below {job.min_psnr:g} dB (--min-psnr)",
        )
    height, width = source.size
    return {
        **facts,
        "crf": crf,
        "psnr": round(psnr.all_planes, 3),
        "psnr_luma": round(psnr.luma, 3),
        "height": height,
        "width": width,
        "scaled": source.preparation.scaled,
        "constant": source.schedule.constant,
        "rate": f"{source.schedule.rate}",
        "bytes": os.path.getsize(job.temporary),
        "frames_not_shown": source.schedule.never_shown(source.frames),
        "source_frames": source.frames,
        "source_promised": source.promised,
        "source_seconds": round(source.duration, 6),
        "source_video_bytes": source.video_bytes,
    }


def _write(job: Job, source: Source, crf: float) -> None:
    """Encode to the temporary file and flush it to the disk."""
    with _storage_errors(job.temporary):
        encode(
            _output_frames(source),
            job.temporary,
            size=source.size,
            rate=source.schedule.rate,
            options=encoder_options(job.settings, crf),
            tags=source.tags,
            comment=COMMENT,
            threads=job.threads,
        )
        descriptor = os.open(job.temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _output_frames(source: Source) -> Iterator[np.ndarray]:
    try:
        yield from source.prepared_frames()
    except av.FFmpegError as error:  # of reading the source, not of writing the output
        raise VideoDecodeError(source.path, f"cannot be decoded: {error}") from error


@contextlib.contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, av.FFmpegError) as error:
        number = getattr(error, "errno", None)
        if number in _STORAGE:
            raise CannotWriteError(f"cannot write {path}: {_STORAGE[number]}") from error
        raise RefusedError("encode", f"cannot be encoded: {error}") from error


def verify_output(path: str, source: Source, keyint: int) -> tuple[dict[str, Any], Psnr]:
    """Decode an output completely and compare it with its source.

    Args:
        path: The output.
        source: Its source.
        keyint: Every ``keyint``-th frame must be a key frame.

    Returns:
        ``frames``, ``seconds``, ``video_bytes``, ``psnr_frames``; and the PSNR over the source's
        frames that are kept in memory: all of them, unless the video is long.

    Raises:
        RefusedError: Number, size, time stamps, duration or key frames are wrong.
    """
    psnr = Psnr()
    shown, rate = source.schedule.shown, source.schedule.rate
    compared = number = video_bytes = packets = 0
    try:
        with open_video(path) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            for packet in container.demux(stream):
                video_bytes += packet.size
                if packet.size:
                    _require(packet.is_keyframe == (packets % keyint == 0), "key frames")
                    packets += 1
                for frame in packet.decode():
                    _require((frame.height, frame.width) == source.size, "the size")
                    _require(frame.pts * frame.time_base == number / rate, "a time stamp")
                    reference = source.held.get(int(shown[number])) if number < len(shown) else None
                    if reference is not None:
                        psnr.add(reference, frame.to_ndarray())
                        compared += 1
                    number += 1
            seconds = float((stream.duration or 0) * stream.time_base)
            streams = len(container.streams)
    except (av.FFmpegError, VideoDecodeError, OSError, IndexError) as error:
        raise RefusedError("check", f"the output cannot be decoded: {error}") from error
    _require(streams == 1, "the number of streams")
    _require(number == packets == len(shown), f"the frame count ({number} of {len(shown)})")
    # The schedule has the source's duration within a frame; the file must have the schedule's.
    _require(abs(seconds - len(shown) / rate) <= 0.01 / rate, f"the duration ({seconds:.3f} s)")
    _require(compared > 0, "the number of frames to compare")
    facts = {
        "frames": number,
        "seconds": round(seconds, 6),
        "video_bytes": video_bytes,
        "psnr_frames": compared,
    }
    return facts, psnr


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise RefusedError("check", f"{what} of the output is wrong")
