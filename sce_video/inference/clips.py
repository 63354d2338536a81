"""Segments of videos as files, either frame-accurate or cut at key frames without re-encoding."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.resampler import AudioResampler

from sce_video.datasets.clip_sampling import frames_between
from sce_video.datasets.readers.av_file import (
    best_video_stream,
    continuous_table,
    file_url,
    open_container,
)
from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError
from sce_video.datasets.readers.frame_table import Clock, FrameTable
from sce_video.datasets.segments import format_seconds
from sce_video.datasets.sources import is_elsewhere, open_video
from sce_video.utils.files import atomic_file

#: Encoder settings for a cut that looks like its source (a PSNR of about 45 dB).
_ENCODER = {"crf": "16", "preset": "veryfast"}
_TICKS = 90_000  # ticks per second, fine enough for variable frame rates
#: FFmpeg's number for the colour matrix to which swscale converts RGB (AVCOL_SPC_SMPTE170M).
_BT601 = 6
#: FFmpeg's number for the colour range to which swscale converts RGB (AVCOL_RANGE_MPEG).
_LIMITED = 1
_SEEK_BEFORE = 1.0  # seconds of audio that a decoder may need before the first sample
#: Containers that accept any codec. Clips from all other containers are written as Matroska.
_REMUXED = (".mp4", ".mov", ".m4v", ".mkv", ".webm")
#: Maximum number of bytes that a clip's name takes from its source's name. File systems limit the
#: whole name to 255 bytes.
_STEM_BYTES = 120


def cut_clip(source: str, start: float, end: float, out: str | Path) -> int:
    """Write an mp4 of the frames that begin in ``[start, end)`` seconds, and return their number.

    They are re-encoded (h264) with the original distances of their timestamps, and with the audio
    of the same stretch (AAC), if there is any. Height and width are made even. Only some frames are
    in memory at a time.

    Raises:
        VideoDecodeError: If the file cannot be decoded, or ends before ``start``.
        WriteError: If ``out`` cannot be written.
    """
    with open_video(source) as reader, atomic_file(out) as unfinished:
        if start >= reader.duration:
            raise VideoDecodeError(source, f"ends at {reader.duration:.2f} s, before {start:g} s")
        first, stop = frames_between(reader.timestamps, start, min(end, reader.duration))
        begin = float(reader.timestamps[first])
        last = reader.duration if stop == len(reader.timestamps) else reader.timestamps[stop]
        height, width = (max(2, side // 2 * 2) for side in reader.size)
        count = 0
        with av.open(file_url(unfinished), "w", format="mp4") as container:
            video: Any = container.add_stream("libx264", rate=30, options=_ENCODER)
            video.height, video.width, video.pix_fmt = height, width, "yuv420p"
            video.codec_context.time_base = Fraction(1, _TICKS)
            video.codec_context.colorspace, video.codec_context.color_range = _BT601, _LIMITED
            sound = None
            if not is_elsewhere(source):
                sound = _Sound.of(source, begin, float(last), reader.restarts > 0)
            if sound is not None:
                sound.write(container)
            for numbers, frames in reader.stream(np.arange(first, stop)):
                for number, i in zip(numbers.tolist(), range(len(frames)), strict=True):
                    image = np.ascontiguousarray(frames[i][:height, :width])
                    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                    frame = frame.reformat(format="yuv420p")
                    frame.pts = round((float(reader.timestamps[number]) - begin) * _TICKS)
                    frame.time_base = Fraction(1, _TICKS)
                    end_of = last if number + 1 == stop else reader.timestamps[number + 1]
                    shown = float(end_of) - float(reader.timestamps[number])
                    frame.duration = round(shown * _TICKS)
                    container.mux(video.encode(frame))
                    count += 1
            container.mux(video.encode())
    return count


class _Sound:
    """Audio of a file from ``start`` to ``end``, in seconds after its first video frame."""

    def __init__(
        self, source: Any, video: Any, table: FrameTable | None, start: float, end: float
    ) -> None:
        self._source, self._table, self._unit = source, table, video.time_base
        first = video.start_time or 0
        zero = float((first if table is None else table.pts.min()) * video.time_base)
        self._start, self._end = zero + start, zero + end
        self._stream = source.streams.audio[0]

    @classmethod
    def of(cls, path: str, start: float, end: float, restarts: bool) -> _Sound | None:
        """Open the audio of a file; None if there is no audio."""
        source = open_container(path)
        if not source.streams.audio:
            source.close()
            return None
        table = continuous_table(path, DecodeLimits()) if restarts else None
        return cls(source, best_video_stream(path, source), table, start, end)

    def _frames(self) -> Iterator[Any]:
        """Yield decoded audio, beginning before the start of the stretch."""
        base = self._stream.time_base
        before = max(0, int((self._start - _SEEK_BEFORE) / base))
        if self._table is None:
            self._source.seek(before, stream=self._stream)
            yield from self._source.decode(self._stream)
            return
        # The clock restarts within the file, so times are ambiguous. The audio clock restarts as
        # often as the video clock.
        packets = [p for p in self._source.demux(self._stream) if p.size and p.pts is not None]
        clock = Clock(np.array([p.dts for p in packets], dtype=np.float64), Fraction(base), True)
        every = np.ones(len(packets), dtype=bool)
        pts, durations = np.array([(p.pts, p.duration or 0) for p in packets], dtype=np.int64).T
        starts = clock.restarts(pts, every, durations, every)
        recordings = np.searchsorted(
            [] if starts is None else starts, np.arange(len(packets)), "right"
        )
        shifts = self._table.shifts_of_recordings
        for packet, recording in zip(packets, recordings.tolist(), strict=True):
            packet.pts += round(shifts[min(recording, len(shifts) - 1)] * self._unit / base)
            if packet.pts >= before:
                yield from packet.decode()

    def _parts(self, rate: int) -> Iterator[np.ndarray]:
        """Yield the samples (2, n) float32 in order, with silence for missing ones."""
        resampler = AudioResampler(format="fltp", layout="stereo", rate=rate)
        base, at = self._stream.time_base, 0
        wanted = round((self._end - self._start) * rate)
        try:
            for frame in self._frames():
                if frame.pts is None:
                    continue
                if float(frame.pts * base) >= self._end:
                    break
                offset = round((float(frame.pts * base) - self._start) * rate)
                for part in resampler.resample(frame):
                    samples = part.to_ndarray()
                    begin, offset = offset, offset + samples.shape[1]
                    if offset <= at or at >= wanted:
                        continue
                    if begin > at:
                        yield np.zeros((2, min(begin, wanted) - at), dtype=np.float32)
                        at = min(begin, wanted)
                    own = samples[:, at - begin : wanted - begin]
                    yield own
                    at += own.shape[1]
        except (av.FFmpegError, OSError):
            pass  # audio is damaged from here on, so the rest is silent
        if at < wanted:
            yield np.zeros((2, wanted - at), dtype=np.float32)

    def write(self, container: Any) -> None:
        """Add the stream to an output, and write its packets."""
        try:
            rate = self._stream.rate or 44_100
            rate = rate if rate in (22_050, 24_000, 32_000, 44_100, 48_000) else 48_000
            stream = container.add_stream("aac", rate=rate, layout="stereo")
            pts = 0
            for samples in self._parts(rate):
                if not samples.shape[1]:
                    continue
                frame = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(samples), format="fltp", layout="stereo"
                )
                frame.sample_rate, frame.pts = rate, pts
                frame.time_base = Fraction(1, rate)
                pts += samples.shape[1]
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        finally:
            self._source.close()


def _with_decoding_times(packets: Iterable[Any]) -> Iterator[Any]:
    """Yield packets of several streams, and add decoding times that the first packets lack.

    In Matroska, FFmpeg does not know the decoding times of the first packets.
    """
    waiting: dict[int, list[Any]] = {}
    for packet in packets:
        if packet.pts is None:
            continue
        index = packet.stream.index
        if packet.dts is None:
            waiting.setdefault(index, []).append(packet)
            continue
        early = waiting.pop(index, [])
        for number, other in enumerate(reversed(early), 1):
            other.dts = packet.dts - number * max(1, packet.duration or 0)
        yield from (*early, packet)


def copy_clip(source: str, start: float, end: float, out: str | Path) -> tuple[float, float]:
    """Copy the packets between the key frames around the seconds ``start`` to ``end``.

    Nothing is re-encoded, and one video and one audio stream are kept. The copy begins with the
    last key frame that is not after ``start``, and ends before the first key frame that is not
    before ``end``. The function returns its start and its end in seconds. Frames that an edit list
    hides before the start of the video are copied, because other frames refer to them, but they
    stay hidden.

    Raises:
        VideoDecodeError: If the file cannot be opened, has no video, hides frames that the copy
            would show, or its clock restarts.
        WriteError: If ``out`` cannot be written.
    """
    if continuous_table(source, DecodeLimits()) is not None:
        raise VideoDecodeError(source, "has timestamps that restart or jump. Remove --fast")
    with open_container(source) as given, atomic_file(out) as unfinished:
        video = best_video_stream(source, given)
        base = video.time_base
        zero = float((video.start_time or 0) * base)
        kind = "matroska" if Path(out).suffix == ".mkv" else "mp4"
        with av.open(file_url(unfinished), "w", format=kind) as container:
            streams = {
                stream.index: container.add_stream_from_template(stream)
                for stream in (video, *given.streams.audio[:1])
            }
            given.seek(int((zero + start) / base), stream=video)
            begin: float | None = None
            stop = float("inf")  # time of the first key frame at or after the end
            reached = zero + start
            for packet in _with_decoding_times(given.demux([given.streams[i] for i in streams])):
                time, is_video = float(packet.pts * packet.time_base), packet.stream is video
                if is_video and packet.is_keyframe:
                    begin = time if begin is None else begin
                    stop = time if time >= zero + end - 1e-6 else stop
                if (len(streams) == 1 and time >= stop) or (not is_video and time >= stop):
                    break
                # Packets with the last audio may follow that key frame, so only video stops there.
                if begin is None or time < begin or (is_video and stop < float("inf")):
                    continue
                if is_video and packet.is_discard and (time >= zero or kind != "mp4"):
                    raise VideoDecodeError(source, "hides frames with an edit list. Remove --fast")
                if is_video:
                    reached = max(reached, time + float((packet.duration or 0) * packet.time_base))
                shift = round(max(begin, zero) / packet.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = streams[packet.stream.index]
                container.mux(packet)
    if begin is None:
        raise VideoDecodeError(source, f"has no key frame before {start:g} s")
    return max(begin, zero) - zero, reached - zero


def clip_name(number: int, source: str, start: float, end: float, fast: bool = False) -> str:
    """Return ``0001_walk_12.5-17.mp4`` from a result's number, its file and its seconds."""
    stem, suffix = os.path.splitext(os.path.basename(source))
    short = os.fsdecode(os.fsencode(stem)[:_STEM_BYTES])
    kept = suffix.lower() if suffix.lower() in _REMUXED[:3] else ".mkv"
    times = f"{format_seconds(round(start, 3))}-{format_seconds(round(end, 3))}"
    return f"{number:04d}_{short}_{times}{kept if fast else '.mp4'}"


def write_clips(
    folder: str | os.PathLike[str],
    segments: Iterable[tuple[str, float, float]],
    fast: bool = False,
) -> tuple[list[Path], list[tuple[str, str]]]:
    """Write each segment (file, start, end) to a file of a folder, which is made if needed.

    Returns:
        The files, and (path, reason) of each file that cannot be cut.
    """
    os.makedirs(folder, exist_ok=True)
    written: list[Path] = []
    failures: list[tuple[str, str]] = []
    for number, (file, start, end) in enumerate(segments, 1):
        out = Path(folder, clip_name(number, file, start, end, fast))
        try:
            if fast:
                if is_elsewhere(file):
                    raise VideoDecodeError(file, "can be copied only from files. Remove --fast")
                copy_clip(file, start, end, out)
            else:
                cut_clip(file, start, end, out)
        except VideoDecodeError as error:
            failures.append((file, error.reason))
            continue
        written.append(out)
    return written, failures
