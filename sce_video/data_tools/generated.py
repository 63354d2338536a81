"""Toy-action videos and digits: generated data for the quickstart and for experiments.

A toy-action video is an h264 file. Its class consists of **what** moves (a disc with stripes,
checks or rings) and **how** the disc moves (it bounces, circles, shakes or pulses). Neither of them
determines the class alone. A mirrored, reversed or recoloured video keeps its class, because
position, size, direction, speed, phase, orientation, shades and background are random. Light and
background drift, so that two clips of a video have little in common except its class. The colours
are muted, because a network matches two views by bright random colours alone.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import read_json, write_bytes, write_text

WHATS = ("stripes", "checks", "rings")
HOWS = ("bounce", "circle", "shake", "pulse")
CLASSES = tuple(f"{what}_{how}" for what in WHATS for how in HOWS)
PARTS = ("train", "val", "test")
MANIFEST = "manifest.json"
# Increase this number whenever the frames change, so that older files are not mistaken for new
# ones.
_VERSION = 2
_MIDDLE = 128  # mean grey level of backgrounds and discs
_NOISE = 2.0  # standard deviation of the noise, in grey levels
_TINT = 0.02  # largest relative deviation of a colour channel from grey


#: Motion of a disc in T frames: x and y of its centre from the upper left corner, and its radius,
#: each (T,) in units of the frame's side.
Motion = tuple[np.ndarray, np.ndarray, np.ndarray]


def generate_toy_actions(
    root: str | Path,
    num_videos: Mapping[str, int],
    seed: int = 0,
    *,
    size: int = 64,
    num_frames: int = 60,
    fps: int = 15,
    workers: int = 2,
    overwrite: bool = False,
) -> Path:
    """Write ``root/PART/CLASS/NUMBER.mp4`` and a manifest; existing videos are kept.

    The frames of a video depend only on the seed, its part and its number, and not on the sizes of
    the parts. To resume an interrupted run or to add parts, call this function again.

    Args:
        root: Folder to write to; made if needed.
        num_videos: Number of videos by part, such as ``{"train": 480, "val": 120, "test": 240}``.
            Classes alternate, so their counts differ by at most one.
        seed: Random seed, 0 or more.
        size: Height and width in pixels, even and at least 16.
        num_frames: Frames per video.
        fps: Frames per second.
        workers: Threads that render and encode.
        overwrite: Whether to replace videos that were made with different parameters.

    Returns:
        ``root`` as a path.

    Raises:
        ValueError: If a parameter is out of range, or if the folder contains other files or videos
            that were made with different parameters.
    """
    root = Path(root)
    if set(num_videos) - set(PARTS) or not num_videos:
        raise ValueError(f"num_videos must name parts of {PARTS}, got {dict(num_videos)}")
    if size < 16 or size % 2:
        raise ValueError(f"size must be even and at least 16 (h264), got {size}")
    counts = {f"num_videos[{part!r}]": count for part, count in num_videos.items()}
    counts |= {"num_frames": num_frames, "fps": fps, "workers": workers, "seed": seed}
    for name, value in counts.items():
        least = 0 if name == "seed" else 1
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    parts = {part: num_videos[part] for part in PARTS if part in num_videos}
    parameters: dict[str, Any] = {"version": _VERSION, "num_videos": parts, "seed": seed}
    parameters |= {"size": size, "num_frames": num_frames, "fps": fps, "classes": list(CLASSES)}
    _claim(root, parameters, overwrite)
    todo = [
        (part, number)
        for part, count in parts.items()
        for number in range(count)
        if not _video_path(root, part, number).exists()
    ]

    def write(task: tuple[str, int]) -> None:
        part, number = task
        rng = np.random.default_rng([seed, PARTS.index(part), number])
        what, how = CLASSES[number % len(CLASSES)].split("_")
        frames = render_toy_action(what, how, rng, size=size, num_frames=num_frames, fps=fps)
        # All frames are key frames, so only requested frames must be decoded.
        encoded = encode_h264(frames, fps, {"crf": "18", "tune": "fastdecode", "g": "1"})
        write_bytes(_video_path(root, part, number), encoded)

    # Every video has its own random generator, so threads may make videos in any order.
    with ThreadPoolExecutor(workers) as pool:  # numpy and the encoder release the GIL
        for _ in pool.map(write, todo):
            pass
    return root


def write_pattern_lists(root: str | Path) -> list[Path]:
    """Write lists ``root/PART_patterns.txt`` of videos that are labelled only by their pattern.

    The lists are meant for image networks, because a frame shows what moves, but not how. Labels
    are positions in ``WHATS``, and paths are relative to ``root``. Return the paths of the lists.
    """
    root = Path(root)
    lists = []
    for part in PARTS:
        videos = sorted(root.glob(f"{part}/*_*/[0-9]*.mp4"))
        if not videos:
            continue
        lines = [
            f"{path.relative_to(root)} {WHATS.index(path.parent.name.split('_')[0])}\n"
            for path in videos
        ]
        lists.append(root / f"{part}_patterns.txt")
        write_text(lists[-1], "".join(lines))
    return lists


def render_toy_action(
    what: str,
    how: str,
    rng: np.random.Generator,
    *,
    size: int = 64,
    num_frames: int = 60,
    fps: int = 15,
) -> np.ndarray:
    """Return the frames of one video, uint8 (T, size, size, 3), RGB.

    Raises:
        ValueError: If ``what`` or ``how`` is unknown.
    """
    if what not in WHATS or how not in HOWS:
        raise ValueError(f"unknown toy action {what!r}, {how!r}. Choose from {WHATS} and {HOWS}")
    seconds = np.arange(num_frames, dtype=np.float32) / fps
    x, y, radius = (moved[:, None, None] for moved in _draw_motion(how, rng, seconds))
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    # Distances from the disc's centre, measured in disc radii.
    dx = (centres[None, None, :] - x) / radius  # (T, 1, W)
    dy = (centres[None, :, None] - y) / radius  # (T, H, 1)
    distance = np.sqrt(dx**2 + dy**2)  # (T, H, W)
    mask = np.clip((1 - distance) * (radius * size) + 0.5, 0, 1)  # the edge is one pixel wide
    strength = rng.uniform(55, 75)
    low, high = _MIDDLE - strength, _MIDDLE + strength  # darkest and lightest grey of the disc
    pattern = _draw_pattern(what, rng, dx, dy, distance)
    disc = (low + high) / 2 + (high - low) / 2 * pattern
    grey = _draw_background(rng, size, num_frames)
    grey += mask * (disc - grey)
    # Contrast and brightness oscillate, so that the light does not identify a video.
    phases, speeds = rng.uniform(0, 2 * math.pi, size=2), rng.uniform(1.5, 3.0, size=2)
    swings = 0.3 * np.sin(phases[:, None] + speeds[:, None] * (np.arange(num_frames) / fps))
    contrast, brightness = 1 + swings[0], 60 * swings[1]
    grey = _MIDDLE + (grey - _MIDDLE) * contrast[:, None, None] + brightness[:, None, None]
    grey = grey.astype(np.float32)
    grey += _NOISE * rng.standard_normal(grey.shape, dtype=np.float32)

    tint = 1 + rng.uniform(-_TINT, _TINT, size=(2, 3))
    frames = np.empty((*grey.shape, 3), dtype=np.uint8)
    for channel, (behind, before) in enumerate(tint.T.tolist()):
        frames[..., channel] = np.clip(grey * (behind + mask * (before - behind)), 0, 255)
    return frames


def _draw_motion(how: str, rng: np.random.Generator, seconds: np.ndarray) -> Motion:
    """Draw the motion of a disc, float32. Its size has the same distribution for all motions."""
    still = np.ones_like(seconds)
    radius = rng.uniform(0.27, 0.39)
    x, y = rng.uniform(0.3, 0.7, size=2).tolist()
    angle, phase = rng.uniform(0, 2 * math.pi, size=2).tolist()
    right, down = math.cos(angle), math.sin(angle)
    if how == "bounce":
        way = rng.uniform(0.6, 1.1) * seconds
        return _reflected(x + right * way), _reflected(y + down * way), radius * still
    if how == "circle":
        turns = int(rng.choice([-1, 1])) * rng.uniform(0.6, 1.2) * seconds
        reach = rng.uniform(0.18, 0.28)
        x, y = rng.uniform(0.42, 0.58, size=2).tolist()
        around = phase + 2 * math.pi * turns
        return x + reach * np.cos(around), y + reach * np.sin(around), radius * still
    # The disc drifts slowly, so that its position does not identify a video.
    drift = rng.uniform(0, 2 * math.pi) + rng.uniform(0.6, 1.2) * seconds
    centre_x, centre_y = x + 0.1 * np.cos(drift), y + 0.1 * np.sin(drift)
    if how == "shake":
        swing = np.sin(phase + 2 * math.pi * rng.uniform(1.5, 2.5) * seconds)
        swing *= rng.uniform(0.07, 0.13)
        return centre_x + right * swing, centre_y + down * swing, radius * still
    swell = np.sin(phase + 2 * math.pi * rng.uniform(0.8, 1.6) * seconds)
    return centre_x, centre_y, radius * (1 + rng.uniform(0.3, 0.45) * swell)


def _reflected(position: np.ndarray) -> np.ndarray:
    """Reflect a straight path at two walls, at 0.15 and 0.85."""
    return 0.85 - np.abs((position - 0.15) % 1.4 - 0.7)


def _draw_pattern(
    what: str, rng: np.random.Generator, dx: np.ndarray, dy: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """Draw a pattern (T, H, W) from -1 to 1 with random orientation, phase and width."""
    angle = rng.uniform(0, 2 * math.pi)
    first, second = rng.uniform(0, 2 * math.pi, size=2).tolist()
    waves = 2 * math.pi * rng.uniform(1.1, 1.7)  # radians per disc radius
    right, down = waves * math.cos(angle), waves * math.sin(angle)
    if what == "rings":
        wave = np.sin(waves * distance + first)
    else:
        wave = np.sin(right * dx + (down * dy + first))
        if what == "checks":
            wave *= 2 * np.sin(right * dy + (second - down * dx))
    return np.clip(2.5 * wave, -1, 1)


def _draw_background(rng: np.random.Generator, size: int, num_frames: int) -> np.ndarray:
    """Draw drifting grey clouds, (T, H, W) float32. A clip shows only a part of them."""
    coarse, known = rng.normal(0, 1, size=(12, 12)), np.arange(12)
    at = np.linspace(0, 11, 4 * size)  # enlarges bilinearly, first the rows, then the columns
    wide = np.stack([np.interp(at, known, row) for row in coarse])
    clouds = np.stack([np.interp(at, known, column) for column in wide.T], axis=1)
    clouds = (_MIDDLE + clouds * rng.uniform(8, 14)).astype(np.float32)
    around = rng.uniform(0, 2 * math.pi) + rng.choice([-1, 1]) * np.linspace(0, 9, num_frames)
    tops = ((1 + np.sin(around)) * 1.5 * size).astype(int)
    lefts = ((1 + np.cos(around)) * 1.5 * size).astype(int)
    return np.stack([clouds[i : i + size, j : j + size] for i, j in zip(tops, lefts, strict=True)])


def _video_path(root: Path, part: str, number: int) -> Path:
    return root / part / CLASSES[number % len(CLASSES)] / f"{number:05d}.mp4"


def encode_h264(frames: np.ndarray, fps: int, options: Mapping[str, str]) -> bytes:
    """Encode RGB frames as the content of an mp4 file.

    The bytes are reproducible, because one thread encodes with a preset that does not look ahead.

    Args:
        frames: Frames (T, H, W, 3) uint8 of even height and width.
        fps: Frames per second.
        options: Options of x264: ``crf``, ``g`` (distance of key frames), ``tune``.
    """
    encoded = io.BytesIO()
    options = {"preset": "ultrafast", "threads": "1", **options}
    with av.open(encoded, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return encoded.getvalue()


def _claim(root: Path, parameters: dict[str, Any], overwrite: bool) -> None:
    """Check and write the folder's manifest. ``overwrite`` removes videos of other parameters."""
    manifest = root / MANIFEST
    if manifest.exists():
        found = read_json(manifest)
        old, new = found.get("num_videos", {}), parameters["num_videos"]
        changed = [
            f"number of {part} videos" for part in new if old.get(part, new[part]) != new[part]
        ]
        others = (name for name in parameters if name != "num_videos")
        changed += [name for name in others if found.get(name) != parameters[name]]
        if not changed:  # parts that were generated before are kept
            parameters = {**parameters, "num_videos": {**old, **new}}
        elif overwrite:
            for part in PARTS:
                for video in sorted(root.glob(f"{part}/*_*/[0-9]*.mp4")):
                    video.unlink()
        else:
            raise ValueError(
                f"{root} contains toy actions with a different {', '.join(changed)}. Choose "
                "another folder, or set overwrite=True to replace them"
            )
    elif root.exists() and any(root.iterdir()):
        raise ValueError(
            f"{root} is not empty and does not contain toy actions. Choose another folder"
        )
    write_text(manifest, json.dumps(parameters, indent=1) + "\n")


#: Largest pixel value. A pixel counts the inked cells in a block of 4 x 4 cells of the scan.
_MAX_SHADE = 16
#: Number of fifths of every class that each part contains, in the order of the dataset.
_DIGIT_PARTS = {"train": 3, "val": 1, "test": 1}


def write_digits(root: str | Path) -> dict[str, int]:
    """Write ``root/PART/LABEL/NUMBER.png``, in which NUMBER is the position in the dataset.

    The first three fifths of every class are ``train``, the next fifth is ``val`` and the last
    ``test``. Parts are contiguous, because neighbouring digits may be by the same writer. Calling
    the function again writes the same bytes.

    Returns:
        Number of images of each part.

    Raises:
        MissingPackageError: If scikit-learn cannot be imported.
        ValueError: If ``root`` contains other PNG files.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingPackageError(
            f"the digits come from scikit-learn, which cannot be imported ({error}). Run pip "
            "install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error
    root, found = Path(root), datasets.load_digits()
    shades, labels = np.asarray(found.images), np.asarray(found.target)
    images = np.round(shades * (255 / _MAX_SHADE)).astype(np.uint8)
    files: dict[Path, np.ndarray] = {}
    counts = dict.fromkeys(_DIGIT_PARTS, 0)
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        fifths = list(_DIGIT_PARTS.values())
        ends = np.cumsum(fifths) * len(positions) // sum(fifths)
        for part, stretch in zip(_DIGIT_PARTS, np.split(positions, ends[:-1]), strict=True):
            counts[part] += len(stretch)
            files |= {root / part / str(label) / f"{i:04d}.png": images[i] for i in stretch}
    others = sorted(set(root.glob("*/*/*.png")) - set(files))
    if others:
        raise ValueError(
            f"{others[0]} is not a file of the digits. Choose another folder, or remove the file"
        )
    for path, image in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, cv2.imencode(".png", image)[1].tobytes())
    return counts
