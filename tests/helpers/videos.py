"""Small videos for tests, encoded with PyAV, with frame numbers readable after compression."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

_BITS = 10


def moving_noise(count: int, height: int = 96, width: int = 128, seed: int = 0) -> np.ndarray:
    """``count`` frames of smooth noise that moves, uint8 (count, height, width, 3)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 4 + 20, width // 4 + 40, 3), dtype=np.uint8)
    large = small.repeat(4, axis=0).repeat(4, axis=1)
    return np.stack([large[i % 70 :, 2 * i % 140 :][:height, :width] for i in range(count)])


def damage_packets(source: Path | str, target: Path | str, seed: int) -> str:
    """Copy a file with 1 to 20 flipped bits, seeded, in the packets of its video."""
    rng = np.random.default_rng(seed)
    with av.open(str(source)) as container:
        stored = [(p.pos, p.size) for p in container.demux(video=0) if p.size and p.pos]
    data = bytearray(Path(source).read_bytes())
    for _ in range(rng.choice((1, 2, 5, 20))):
        position, size = stored[rng.integers(len(stored))]
        data[position + rng.integers(size)] ^= 1 << rng.integers(8)
    Path(target).write_bytes(data)
    return str(target)


def damaged_h264(folder: Path, packets: int) -> tuple[str, int]:
    """An mp4 of 60 frames with the second half of some packets zeroed; how many are flagged.

    The decoder conceals the errors, and PyAV flags the frames.
    """
    options = {"crf": "20", "g": "1", "bf": "0", "x264-params": "cabac=0"}
    whole = write_video(folder / f"whole{packets}.mp4", moving_noise(60), options=options)
    with av.open(str(whole)) as container:
        stored = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    data = bytearray(whole.read_bytes())
    for position, size in stored[5 : 5 + packets]:
        data[position + size // 2 : position + size] = bytes(size - size // 2)
    path = folder / f"damaged{packets}.mp4"
    path.write_bytes(data)
    with av.open(str(path)) as container:
        return str(path), sum(frame.is_corrupt for frame in container.decode(video=0))


def damaged_hevc(folder: Path, count: int = 16) -> tuple[str, list[str]]:
    """An mp4 of 30 frames of HEVC without B frames, and ``count`` damaged copies of it.

    Skips the test if FFmpeg lacks the encoder.
    """
    options = {"x265-params": "log-level=none:pools=1:frame-threads=1:keyint=30:bframes=0"}
    try:
        whole = write_video(folder / "w.mp4", moving_noise(30), codec="libx265", options=options)
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"cannot be encoded here: {error}")
    return str(whole), [damage_packets(whole, folder / f"{i}.mp4", i) for i in range(count)]


def numbered_frames(count: int, height: int = 64, width: int = 80) -> np.ndarray:
    """``count`` grey frames; frame i shows i in binary as vertical bars, most significant bit left.

    Returns uint8 (count, height, width, 3).
    """
    bar = width // _BITS
    frames = np.full((count, height, width, 3), 128, dtype=np.uint8)
    for i in range(count):
        for bit in range(_BITS):
            on = (i >> (_BITS - 1 - bit)) & 1
            frames[i, :, bit * bar : (bit + 1) * bar] = 220 if on else 30
    return frames


def read_number(frame: np.ndarray) -> int:
    """The number that :func:`numbered_frames` drew into a frame (H, W, 3), at any frame size."""
    height, width = frame.shape[:2]
    bar = (width // _BITS) if width % _BITS == 0 else width / _BITS
    number = 0
    for bit in range(_BITS):
        centre = int((bit + 0.5) * bar)
        number = number * 2 + int(frame[height // 2, centre].mean() > 125)
    return number


def read_numbers(frames: Iterable[np.ndarray]) -> list[int]:
    """The numbers of several frames, see :func:`read_number`."""
    return [read_number(frame) for frame in frames]


def write_video(
    path: Path | str,
    frames: np.ndarray,
    fps: int = 25,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    pts: list[int] | None = None,
) -> Path:
    """Encode frames (T, H, W, 3) uint8 to ``path``; ``pts`` in units of 1/1000 s makes it VFR."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = dict(options or {"crf": "12"})
    if codec == "libx264":  # its rate control by macroblock tree gives other pixels in every run
        given = options.get("x264-params")
        options["x264-params"] = f"mbtree=0:{given}" if given else "mbtree=0"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, array in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")
            if pts is not None:
                frame.pts, frame.time_base = pts[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def remux(source: Path | str, target: Path | str, **options: str) -> str:
    """Copy the packets of a video to another container, written with these options."""
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return str(target)


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        yield kind, data[position : position + size]
        position += size


def _begin_later(source: Path, target: Path, seconds: float) -> Path:
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        given = old.streams.video[0]
        stream = new.add_stream_from_template(given)
        shift = round(seconds / given.time_base)
        for packet in old.demux(given):
            if packet.size:
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                packet.stream = stream
                new.mux(packet)
    return target


def join_recordings(
    folder: Path, recordings: list[np.ndarray], starts: list[float], kind: str, **options: Any
) -> str:
    """Write a file of recordings joined end to end, whose clocks begin at ``starts`` seconds."""
    data = b""
    for number, (frames, start) in enumerate(zip(recordings, starts, strict=True)):
        part = write_video(folder / f"{number}.{kind}", frames, **options)
        if start:
            part = _begin_later(part, folder / f"{number}_later.{kind}", start)
        # FFmpeg ends at the second header of an FLV file; without it the tags go on.
        data += part.read_bytes()[13 if kind == "flv" and number else 0 :]
    path = folder / f"joined.{kind}"
    path.write_bytes(data)
    return str(path)


#: Linear parts (a, b, c, d) of the eight display matrices: row y, column x of the stored frame is
#: displayed at column a x + c y and row b x + d y, up to an offset.
DISPLAY_MATRICES = {
    "as stored": (1, 0, 0, 1),
    "mirrored": (-1, 0, 0, 1),
    "upside down mirrored": (1, 0, 0, -1),
    "turned by 180": (-1, 0, 0, -1),
    "transposed": (0, 1, 1, 0),
    "transposed and turned by 180": (0, -1, -1, 0),
    "turned clockwise": (0, 1, -1, 0),
    "turned counter-clockwise": (0, -1, 1, 0),
}


def displayed(frame: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """A stored frame (H, W, 3) as the definition of the display matrix shows it, by pixel."""
    a, b, c, d = matrix
    y, x = np.indices(frame.shape[:2])
    rows, columns = b * x + d * y, a * x + c * y
    rows, columns = rows - rows.min(), columns - columns.min()
    shown = np.empty((rows.max() + 1, columns.max() + 1, 3), frame.dtype)
    shown[rows, columns] = frame
    return shown


def set_display_matrix(source: Path | str, target: Path | str, name: str) -> str:
    """Copy an mp4 with one of :data:`DISPLAY_MATRICES` in its track header."""
    data = bytearray(Path(source).read_bytes())
    at = data.index(b"tkhd") + 44  # of a header of version 0
    a, b, c, d = (value * 2**16 for value in DISPLAY_MATRICES[name])
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30)
    Path(target).write_bytes(data)
    return str(target)


def add_cover(source: Path | str, target: Path | str, first: bool = False) -> str:
    """Write an mp4 with a cover picture, which becomes the ``first`` stream or the last one.

    The index of the source must be behind its media data, as PyAV writes it.
    """
    jpeg = cv2.imencode(".jpg", np.full((64, 64, 3), 200, np.uint8))[1].tobytes()
    picture = _box(b"covr", _box(b"data", struct.pack(">II", 13, 0) + jpeg))
    handler = _box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    data = _box(b"udta", _box(b"meta", bytes(4) + handler + _box(b"ilst", picture)))
    made = b""
    for kind, box in _boxes(Path(source).read_bytes()):
        if kind == b"moov":
            parts = [part for name, part in _boxes(box[8:]) if name != b"udta"]
            parts.insert(1 if first else len(parts), data)
            box = _box(b"moov", b"".join(parts))
        made += box
    Path(target).write_bytes(made)
    return str(target)


def write_sound(path: Path | str, seconds: float = 2.0) -> str:
    """An mp4 of silence without video."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100, layout="mono")
        for number in range(int(seconds * 44100 / 1024)):
            silence = np.zeros((1, 1024), np.float32)
            frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 44100, number * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def trim(source: Path | str, target: Path | str, seconds: float) -> str:
    """Copy a video from ``seconds`` on to an mp4, as ``ffmpeg -ss SECONDS -c copy`` does.

    An edit list hides the frames from the key frame up to there, which others refer to.
    """
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        video = old.streams.video[0]
        stream = new.add_stream_from_template(video)
        start = round(seconds / video.time_base)
        old.seek(start, stream=video)
        for packet in old.demux(video):
            if packet.size:
                packet.pts, packet.dts, packet.stream = (
                    packet.pts - start,
                    packet.dts - start,
                    stream,
                )
                new.mux(packet)
    return str(target)


def decode_all(path: Path | str) -> list[np.ndarray]:
    """All frames (H, W, 3) by a plain PyAV loop, up to the first error: the oracle for readers."""
    frames = []
    with av.open(str(path)) as container:
        stream = container.streams.best("video")
        try:
            for frame in container.decode(stream):
                rgb = frame.to_ndarray(format="rgb24")
                frames.append(np.rot90(rgb, frame.rotation // 90))
        except av.FFmpegError:
            pass
    return frames
