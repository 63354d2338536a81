"""Moving textures: generated, labelled videos that look and move unlike the toy actions.

    python benchmarks/moving_textures.py data/moving_textures --train 300 --val 80 --test 80

The whole frame is a noise texture. A class is **how** it moves (drift, turn, zoom or ripple) and
**what** it is made of (clouds: 1/f noise; fibres: noise that is stretched along one direction).
Direction, speed, centre, orientation, scale, colours and light are random, and the light changes
within a video.
The frames depend on the seed, the part and the number of the video alone.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np

from sce_video.utils.atomic_file import write_bytes
from sce_video.utils.command import command

HOWS = ("drift", "turn", "zoom", "ripple")
WHATS = ("clouds", "fibres")
CLASSES = tuple(f"{what}_{how}" for what in WHATS for how in HOWS)
PARTS = ("train", "val", "test")
HEIGHT, WIDTH, FPS = 120, 160, 25
_PERIOD = 256  # pixels after which a texture repeats
_NOISE = 3.0  # standard deviation, grey levels


def generate(root: Path, num_videos: Mapping[str, int], seed: int = 0, workers: int = 1) -> None:
    """Write ``root/PART/CLASS/NUMBER.mp4``; files that exist are kept.

    Args:
        root: Folder to write to.
        num_videos: Number of videos by part; classes alternate.
        seed: Random seed, 0 or more.
        workers: Threads.
    """

    def write(task: tuple[str, int]) -> None:
        part, number = task
        name = CLASSES[number % len(CLASSES)]
        path = root / part / name / f"{number:05d}.mp4"
        if not path.exists():
            rng = np.random.default_rng([seed, PARTS.index(part), number])
            write_bytes(path, encode(render(*name.split("_"), rng)))

    tasks = [(part, number) for part, count in num_videos.items() for number in range(count)]
    with ThreadPoolExecutor(workers) as pool:  # numpy and the encoder release the GIL
        for _ in pool.map(write, tasks):
            pass


def render(what: str, how: str, rng: np.random.Generator) -> np.ndarray:
    """The frames of a video of 4 to 6 seconds, uint8 (T, 120, 160, 3), RGB."""
    num_frames = int(rng.integers(4 * FPS, 6 * FPS + 1))
    seconds = (np.arange(num_frames) / FPS).astype(np.float32)
    angle, scale = rng.uniform(0, math.pi), math.exp(rng.uniform(-0.35, 0.35))
    texture = _texture(what, angle, rng)
    light = rng.uniform(0, 2 * math.pi, (2, 1)) + rng.uniform(0.8, 2.0, (2, 1)) * seconds
    contrast, brightness = 60 * (1 + 0.2 * np.sin(light[0])), 128 + 20 * np.sin(light[1])
    tint = 1 + rng.uniform(-0.25, 0.25, (2, 3))  # of the light, of the texture
    frames = np.empty((num_frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for number, (y, x) in enumerate(_positions(how, seconds, rng)):
        grey = contrast[number] * _sample(texture, y * scale, x * scale)
        grey += _NOISE * rng.standard_normal(grey.shape, dtype=np.float32)
        coloured = brightness[number] * tint[0] + grey[..., None] * tint[1]
        frames[number] = np.clip(coloured, 0, 255)
    return frames


def _texture(what: str, angle: float, rng: np.random.Generator) -> np.ndarray:
    """Periodic noise from -1 to 1, float32 (256, 256)."""
    fy = np.fft.fftfreq(_PERIOD)[:, None]
    fx = np.fft.fftfreq(_PERIOD)[None, :]
    along, across = (
        fx * math.cos(angle) + fy * math.sin(angle),
        fy * math.cos(angle) - fx * math.sin(angle),
    )
    stretch = 5.0 if what == "fibres" else 1.0
    frequency = np.hypot(along * stretch, across / math.sqrt(stretch))
    low, high = 1 / 80, 1 / 24  # cycles per pixel: coarse, to be seen in small frames
    amplitude = np.where(frequency > 0, 1 / np.maximum(frequency, low), 0)
    amplitude *= np.exp(-((frequency / high) ** 2)) * (frequency > low)
    noise = np.fft.fft2(rng.standard_normal((_PERIOD, _PERIOD)))
    texture = np.fft.ifft2(noise * amplitude).real
    return np.tanh(1.5 * texture / texture.std()).astype(np.float32)


def _positions(how: str, seconds: np.ndarray, rng: np.random.Generator):
    """Where in the texture the pixels of every frame are: y (H, W) and x (H, W), pixels."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    y -= rng.uniform(0.35, 0.65) * HEIGHT
    x -= rng.uniform(0.35, 0.65) * WIDTH
    phase, way = rng.uniform(0, 2 * math.pi, 2).tolist()
    sign = int(rng.choice([-1, 1]))
    # Besides the motion of the class everything drifts slowly, so that no pixel stays.
    slow = 6 * seconds[:, None] * [math.sin(way), math.cos(way)]
    speed, wave = rng.uniform(0.8, 1.25), rng.uniform(55, 85)
    for number, second in enumerate(seconds.tolist()):
        dy, dx = slow[number]
        if how == "drift":
            path = sign * 28 * speed * second
            yield y + dy + path * math.sin(phase), x + dx + path * math.cos(phase)
        elif how == "turn":
            a = phase + sign * 0.7 * speed * second
            yield y * math.cos(a) + x * math.sin(a) + dy, x * math.cos(a) - y * math.sin(a) + dx
        elif how == "zoom":
            zoom = math.exp(0.45 * math.sin(phase + sign * 2.2 * speed * second))
            yield zoom * y + dy, zoom * x + dx
        else:
            ahead = 2 * math.pi / wave * (x * math.cos(phase) + y * math.sin(phase))
            swing = 12 * np.sin(ahead + sign * 6 * speed * second)
            yield y + dy - swing * math.cos(phase), x + dx + swing * math.sin(phase)


def _sample(texture: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Bilinear values of a periodic texture."""
    top, left = np.floor(y).astype(np.int32), np.floor(x).astype(np.int32)
    down, right = y - top, x - left
    rows, columns = (top % _PERIOD, (top + 1) % _PERIOD), (left % _PERIOD, (left + 1) % _PERIOD)
    upper = texture[rows[0], columns[0]] * (1 - right) + texture[rows[0], columns[1]] * right
    lower = texture[rows[1], columns[0]] * (1 - right) + texture[rows[1], columns[1]] * right
    return (upper * (1 - down) + lower * down).astype(np.float32)


def encode(frames: np.ndarray) -> bytes:
    """h264 in mp4, a key frame every 6 frames: quick to read.

    One thread and the preset that looks at no later frames: the same bytes every time.
    """
    encoded = io.BytesIO()
    options = {"crf": "20", "preset": "ultrafast", "g": "6", "threads": "1"}
    with av.open(encoded, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return encoded.getvalue()


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--train", type=int, default=300, help="number of videos")
    parser.add_argument("--val", type=int, default=80)
    parser.add_argument("--test", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args(argv)
    counts = {part: getattr(args, part) for part in PARTS}
    generate(args.root, counts, args.seed, args.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
