"""Camera over patterns: generated, labelled videos whose classes are scenes, not motions.

    python benchmarks/camera_patterns.py data/camera_patterns --train 300 --val 80 --test 80

A camera pans, sways and zooms over ground with a pattern (ten classes, from bricks to waves), and
dark and bright blots cross the picture. Scale, tilt, proportions, colours and softness of the
pattern, path of the camera, light and noise are random. The frames depend only on the seed, the
split and the number of the video.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from sce_video.data_tools.generated import encode_h264
from sce_video.utils.command import command
from sce_video.utils.files import write_bytes

PARTS = ("train", "val", "test")
HEIGHT, WIDTH, FPS = 96, 128, 25
# With a key frame every 12 frames, files are fast to read.
ENCODING = {"crf": "20", "g": "12"}
_NOISE = 4.0  # standard deviation, grey levels

Grid = np.ndarray


def _cell(x: Grid) -> Grid:
    """Return the place within a cell of length 1, from -0.5 to 0.5."""
    return x - np.round(x)


#: Positive where the pattern has its first colour. x and y are in cells, a is a proportion.
PATTERNS: dict[str, Callable[[Grid, Grid, float], Grid]] = {
    "stripes": lambda x, y, a: np.abs(_cell(x)) - 0.15 - 0.2 * a,
    "checks": lambda x, y, a: np.sin(math.pi * x) * np.sin(math.pi * y) * 0.3 - 0.1 * (a - 0.5),
    "bricks": lambda x, y, a: (
        np.minimum(0.5 - np.abs(_cell(x / 2 + 0.5 * (np.round(y) % 2))), 0.5 - np.abs(_cell(y)))
        - 0.06
        - 0.08 * a
    ),
    "dots": lambda x, y, a: 0.22 + 0.15 * a - np.hypot(_cell(x), _cell(y)),
    "rings": lambda x, y, a: 0.1 - np.abs(np.hypot(_cell(x), _cell(y)) - 0.27 - 0.1 * a),
    "zigzag": lambda x, y, a: np.abs(_cell(x + (0.6 + 0.6 * a) * np.abs(_cell(y)) * 2)) - 0.25,
    "plaid": lambda x, y, a: np.abs(_cell(x)) * 0.5 + np.abs(_cell(y)) * 0.5 - 0.2 - 0.1 * a,
    "crosses": lambda x, y, a: np.maximum(
        np.minimum(0.1 + 0.06 * a - np.abs(_cell(x)), 0.36 - np.abs(_cell(y))),
        np.minimum(0.1 + 0.06 * a - np.abs(_cell(y)), 0.36 - np.abs(_cell(x))),
    ),
    "waves": lambda x, y, a: np.abs(_cell(x + 0.25 * np.sin((1.5 + 2 * a) * y))) - 0.25,
    "net": lambda x, y, a: 0.06 + 0.05 * a - np.minimum(np.abs(_cell(x)), np.abs(_cell(y))),
}
CLASSES = tuple(PATTERNS)


def generate(root: Path, num_videos: Mapping[str, int], seed: int = 0) -> None:
    """Write ``root/PART/CLASS/NUMBER.mp4``. Classes alternate, and existing files are kept."""
    for part, count in num_videos.items():
        for number in range(count):
            name = CLASSES[number % len(CLASSES)]
            path = root / part / name / f"{number:05d}.mp4"
            if not path.exists():
                rng = np.random.default_rng([seed, PARTS.index(part), number])
                write_bytes(path, encode_h264(render(name, rng), FPS, ENCODING))


def render(name: str, rng: np.random.Generator) -> np.ndarray:
    """Return the frames of a video of 3 to 5 seconds, uint8 (T, 96, 128, 3), RGB."""
    seconds = np.arange(int(rng.integers(3 * FPS, 5 * FPS + 1))) / FPS
    cell, soft, proportion = rng.uniform(28, 40), rng.uniform(0.03, 0.1), rng.uniform(0.3, 0.7)
    angle = rng.uniform(-0.25, 0.25) + _swing(seconds, 0.2, rng)
    zoom = np.exp(_swing(seconds, 0.15, rng))
    speed = rng.uniform(8, 24) / cell  # cells per second
    way = rng.uniform(0, 2 * math.pi)
    colours = _colours(rng)
    light = 1 + _swing(seconds, 0.2, rng)
    blots = [_Blot(seconds, rng) for _ in range(int(rng.integers(2, 5)))]
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    rows, columns = (rows - HEIGHT / 2) / cell, (columns - WIDTH / 2) / cell
    frames = np.empty((len(seconds), HEIGHT, WIDTH, 3), dtype=np.uint8)
    for number, second in enumerate(seconds.tolist()):
        c, s = math.cos(angle[number]) * zoom[number], math.sin(angle[number]) * zoom[number]
        x = c * columns - s * rows + speed * second * math.cos(way)
        y = s * columns + c * rows + speed * second * math.sin(way)
        inside = 1 / (1 + np.exp(-PATTERNS[name](x, y, proportion) / soft * 3))[..., None]
        frame = inside * colours[0] + (1 - inside) * colours[1]
        for blot in blots:
            blot.draw(frame, number)
        frame = frame * light[number] + _NOISE * rng.standard_normal(frame.shape)
        frames[number] = np.clip(frame, 0, 255)
    return frames


class _Blot:
    """A filled circle that crosses the frame repeatedly."""

    def __init__(self, seconds: np.ndarray, rng: np.random.Generator) -> None:
        self.radius, self.shade = rng.uniform(8, 18), rng.uniform(20, 235)
        start, speed = rng.uniform(0, 1, 2), rng.uniform(-0.5, 0.5, 2)
        way = (start + speed * seconds[:, None]) % 1
        self.centres = way * [WIDTH + 40, HEIGHT + 40] - 20

    def draw(self, frame: np.ndarray, number: int) -> None:
        x, y = (self.centres[number] * 16).round().astype(int).tolist()
        shade = (self.shade,) * 3
        cv2.circle(frame, (x, y), round(self.radius * 16), shade, -1, cv2.LINE_AA, 4)


def _swing(seconds: np.ndarray, most: float, rng: np.random.Generator) -> np.ndarray:
    """Return a slow sine of random phase, rate (0.5 to 2 radians/s) and size up to ``most``."""
    return rng.uniform(0, most) * np.sin(rng.uniform(0, 6.3) + rng.uniform(0.5, 2) * seconds)


def _colours(rng: np.random.Generator) -> np.ndarray:
    """Return two colours (2, 3) that differ in brightness by 40 to 100 grey levels."""
    middle, half = rng.uniform(90, 165), rng.uniform(20, 50)
    return np.array([[middle + half], [middle - half]]) + rng.uniform(-25, 25, (2, 3))


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--train", type=int, default=300, help="number of videos")
    parser.add_argument("--val", type=int, default=80)
    parser.add_argument("--test", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    generate(args.root, {part: getattr(args, part) for part in PARTS}, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
