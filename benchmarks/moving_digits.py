"""Moving digits: generated, labelled videos whose classes are shapes, not motions.

    python benchmarks/moving_digits.py data/moving_digits --train 300 --val 80 --test 80

A handwritten digit (of scikit-learn, another one in each video of a part) bounces through the frame
and changes its size, over a faint, blurred background. The class is the digit; place, speed, size,
colours of digit and background, and light are random. Writers are those of the parts of
``sce_video/data_tools/generated.py``: train and test share no digit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from sce_video.data_tools.generated import DIGIT_PARTS, encode_h264, load_digits, split_digits
from sce_video.utils.command import command
from sce_video.utils.files import write_bytes

SIZE, FPS = 112, 25
# A key frame every 12 frames: quick to read.
ENCODING = {"crf": "20", "g": "12"}
_NOISE = 3.0  # standard deviation, grey levels


def generate(root: Path, num_videos: Mapping[str, int], seed: int = 0) -> None:
    """Write ``root/PART/DIGIT/NUMBER.mp4``; classes alternate, files that exist are kept.

    Args:
        root: Folder to write to.
        num_videos: Number of videos by part.
        seed: Random seed, 0 or more.

    Raises:
        ValueError: more videos of a part than there are digits.
    """
    images, labels = load_digits()
    for part, positions in split_digits(labels).items():
        of_class = [positions[labels[positions] == label].tolist() for label in range(10)]
        for number in range(num_videos[part]):
            label, turn = number % 10, number // 10
            if turn >= len(of_class[label]):
                raise ValueError(f"{part} has {len(positions)} digits, not {num_videos[part]}")
            path = root / part / str(label) / f"{number:05d}.mp4"
            if not path.exists():
                rng = np.random.default_rng([seed, list(DIGIT_PARTS).index(part), number])
                write_bytes(
                    path, encode_h264(render(images[of_class[label][turn]], rng), FPS, ENCODING)
                )


def render(digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The frames of a video of 3 to 5 seconds, uint8 (T, 112, 112, 3), RGB.

    Args:
        digit: (8, 8) uint8.
        rng: Of everything that is random.
    """
    num_frames = int(rng.integers(3 * FPS, 5 * FPS + 1))
    seconds = np.arange(num_frames) / FPS
    background, ink = _colours(rng)
    light = 1 + 0.15 * np.sin(rng.uniform(0, 6.3) + rng.uniform(1, 3) * seconds)
    side = rng.uniform(36, 52) * (1 + 0.15 * np.sin(rng.uniform(0, 6.3) + 2 * seconds))
    start, speed = rng.uniform(0, 2, 2), rng.uniform(0.25, 0.7, 2) * rng.choice([-1, 1], 2)
    path = 1 - np.abs((start + speed * seconds[:, None]) % 2 - 1)  # bounces between 0 and 1
    frames = np.empty((num_frames, SIZE, SIZE, 3), dtype=np.uint8)
    for number in range(num_frames):
        long = round(side[number])
        shade = cv2.resize(digit, (long, long), interpolation=cv2.INTER_CUBIC)
        y, x = (path[number] * (SIZE - long)).round().astype(int)
        alpha = np.zeros((SIZE, SIZE, 1))
        alpha[y : y + long, x : x + long, 0] = np.clip(shade / 255.0, 0, 1)
        frame = (alpha * ink + (1 - alpha) * background) * light[number]
        frames[number] = np.clip(frame + _NOISE * rng.standard_normal(frame.shape), 0, 255)
    return frames


def _colours(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A smooth background (112, 112, 3) and a colour (3,) that stands out from it, 0 to 255.

    Backgrounds differ little: strong ones tell the videos apart without their digits.
    """
    base = rng.uniform(90, 150) + rng.uniform(-12, 12, 3)
    coarse = rng.uniform(-12, 12, (4, 4, 3)).astype(np.float32)
    background = np.clip(base + cv2.resize(coarse, (SIZE, SIZE)), 0, 255)
    away = rng.uniform(80, 110) * (1 if base.mean() < 120 else -1)
    return background, np.clip(base + away + rng.uniform(-15, 15, 3), 0, 255)


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--train", type=int, default=300, help="number of videos")
    parser.add_argument("--val", type=int, default=80)
    parser.add_argument("--test", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    generate(args.root, {part: getattr(args, part) for part in DIGIT_PARTS}, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
