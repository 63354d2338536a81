"""Edited copies among queries and distractors, in the manner of VSC2022, and its two metrics.

`benchmarks/near_duplicates.py FOLDER --copies 200 --queries 2000` writes and measures such a set.
References are toy actions, scenes with cuts, camera patterns, moving digits and given real files.
One in ten of the generated references lasts 75 seconds. A query shows a stretch of one reference,
edited in one of twelve ways, or it is a distractor: another video of the same kinds, edited in the
same ways.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from camera_patterns import CLASSES as PATTERN_CLASSES
from camera_patterns import FPS as PATTERN_FPS
from camera_patterns import render
from sklearn.datasets import load_digits

from sce_video.data_tools.generated import CLASSES, encode_h264, render_toy_action
from sce_video.datasets import open_video
from sce_video.utils.files import write_bytes, write_text

#: Settings were chosen on the first set of kinds. Results are measured on the second.
KINDS = {"validation": ("toys", "scenes"), "test": ("patterns", "digits", "real", "toys")}
EDITS = (
    "encoded", "shifted", "colour", "rate", "cropped", "mirrored",
    "speed", "partial", "inset", "overlay", "late", "mixed",
)  # fmt: skip
_FPS, _SIDE, _SECONDS, _LONG = 15, 96, 8, 75
_DISTRACTORS = 3  # one in three queries shows no reference
_LONG_EVERY = 10  # one in ten references is long


class Segment(NamedTuple):
    """A stretch of a query that shows a stretch of a reference, in seconds, with a score."""

    query: str
    reference: str
    query_start: float
    query_end: float
    reference_start: float
    reference_end: float
    score: float = 1.0


def micro_average_precision(
    scores: dict[tuple[str, str], float], true: set[tuple[str, str]]
) -> float:
    """Compute uAP of VSC2022's descriptor track, with all (query, reference) pairs in one ranking.

    Pairs with equal scores count as one step, as in facebookresearch/vsc2022.
    """
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    seen = right = 0
    total = 0.0
    for _, tied in groupby(ranked, key=lambda item: item[1]):
        pairs = [pair for pair, _ in tied]
        hits = len(true.intersection(pairs))
        seen, right = seen + len(pairs), right + hits
        total += right / seen * hits / len(true)
    return total


def matching_metric(true: Sequence[Segment], predicted: Iterable[Segment]) -> float:
    """Compute uAP of VSC2022's matching track, with segments of all pairs in one ranking.

    Precision and recall are geometric means over both videos of shares of seconds (VCSL). Within a
    pair, only true segments that a prediction overlaps in both videos count as covered
    (facebookresearch/vsc2022, vsc/metrics.py).
    """
    truths: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    for segment in true:
        truths[segment[:2]].append(segment)
    axes = ((2, 3), (4, 5))
    lengths = [sum(_length([(s[a], s[b]) for s in t]) for t in truths.values()) for a, b in axes]
    given: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    covered, claimed = np.zeros(2), np.zeros(2)
    result = recall = 0.0
    ranked = sorted(predicted, key=lambda segment: -segment.score)
    for _, tied in groupby(ranked, key=lambda segment: segment.score):
        for segment in tied:
            pair, own = segment[:2], given[segment[:2]]
            before = _covered(truths[pair], own)
            own.append(segment)
            gain = _covered(truths[pair], own) - before
            covered, claimed = covered + gain[0], claimed + gain[1]
        precision = float(np.sqrt(np.prod(covered / np.maximum(claimed, 1e-12))))
        reached = float(np.sqrt(np.prod(covered / lengths)))
        result, recall = result + precision * (reached - recall), reached
    return result


def _covered(true: list[Segment], given: list[Segment]) -> np.ndarray:
    """Return the seconds (2, 2) that are correctly covered and claimed, in query and reference."""
    found = [
        t
        for t in true
        if any(all(min(t[b], g[b]) > max(t[a], g[a]) for a, b in ((2, 3), (4, 5))) for g in given)
    ]
    seconds = []
    for a, b in ((2, 3), (4, 5)):
        own, right = [(g[a], g[b]) for g in given], [(t[a], t[b]) for t in found]
        # |A and B| = |A| + |B| - |A or B|
        both = _length(own) + _length(right) - _length(own + right)
        seconds.append((both, _length(own)))
    return np.array(seconds).T


def _length(intervals: list[tuple[float, float]]) -> float:
    """Return the length of the union of some intervals in seconds."""
    total, end = 0.0, -np.inf
    for low, high in sorted(intervals):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


def plan_copies(part: str, references: int, queries: int, real: Sequence[str] = ()) -> list[dict]:
    """Plan the content of every file: references ``r0000.mp4``, queries ``q0000.mp4``."""
    kinds = [kind for kind in KINDS[part] if kind != "real" or real]
    rng = np.random.default_rng([len(part), 7])
    files, left = [], list(real)
    for number in range(references):
        kind = kinds[number % len(kinds)]
        if kind == "real" and not left:
            kind = kinds[0]
        source = left.pop(0) if kind == "real" else ""
        long = kind != "real" and number % _LONG_EVERY == 3
        files.append({"name": f"r{number:04d}.mp4", "kind": kind, "real": source, "long": long})
    long_ones = [n for n, file in enumerate(files) if file["long"]]
    for number in range(queries):
        edit = EDITS[number % len(EDITS)]
        shown: int | None = int(rng.integers(references))
        if edit == "late" and long_ones:
            shown = int(rng.choice(long_ones))
        if number // len(EDITS) % _DISTRACTORS == _DISTRACTORS - 1:
            shown = None
        files.append({"name": f"q{number:04d}.mp4", "edit": edit, "shown": shown})
    return files


def generate_copies(
    root: Path, part: str, files: Sequence[dict], seed: int, workers: int
) -> list[Segment]:
    """Write the videos of a plan, keep existing files, and return the true segments."""
    root.mkdir(parents=True, exist_ok=True)
    truth = root.parent / "truth.json"
    if truth.exists():
        return [Segment(*row) for row in json.loads(truth.read_text())]
    with ProcessPoolExecutor(workers) as pool:
        make = partial(_make, root, part, list(files), seed)
        found = [s for s in pool.map(make, range(len(files)), chunksize=4) if s is not None]
    write_text(truth, json.dumps(found))
    return found


def _make(root: Path, part: str, files: list[dict], seed: int, number: int) -> Segment | None:
    file = files[number]
    if "kind" in file:
        frames, fps = _reference(file, seed, number)
        write_bytes(root / file["name"], encode_h264(_even(frames), fps, {"crf": "20", "g": "12"}))
        return None
    rng = np.random.default_rng([seed, 2, number])
    other = {"kind": KINDS[part][int(rng.integers(2))], "real": "", "long": False}
    filler, filler_fps = _reference(other, seed, 10**6 + number)
    if file["shown"] is None:
        frames, fps = filler, filler_fps
        start = end = moved = 0.0
        speed = 1.0
    else:
        frames, fps = _reference(files[file["shown"]], seed, file["shown"])
        frames, start, end = _stretch(frames, fps, file["edit"], rng)
    crf = str(int(rng.integers(24, 32)))
    if file["edit"] == "mixed":
        edits = [str(e) for e in rng.choice(["shifted", "colour", "cropped", "mirrored"], 2, False)]
        edits += [str(rng.choice(["speed", "overlay", "partial", "rate"]))]
    else:
        edits = [file["edit"]]
    moved, speed, length = 0.0, 1.0, len(frames) / fps
    for edit in edits:
        if edit == "partial":
            frames, moved = _inserted(frames, fps, filler, filler_fps, rng)
        elif edit == "speed":
            speed = float(rng.choice([rng.uniform(0.8, 0.93), rng.uniform(1.07, 1.25)]))
            frames = _resampled(frames, speed)
        elif edit == "rate":
            rate = int(rng.integers(9, 24))
            frames, fps = _resampled(frames, fps / rate), rate
        else:
            frames = _PIXELS[edit](frames, filler, rng)
    if edits == ["encoded"]:
        scale = rng.uniform(0.6, 1.4)
        frames = sized(frames, int(frames.shape[1] * scale), int(frames.shape[2] * scale))
        crf = str(int(rng.integers(30, 38)))
    write_bytes(root / file["name"], encode_h264(_even(frames), fps, {"crf": crf}))
    if file["shown"] is None:
        return None
    shown = files[file["shown"]]["name"]
    return Segment(file["name"], shown, moved, moved + length / speed, start, end)


def _reference(file: dict, seed: int, number: int) -> tuple[np.ndarray, int]:
    """Return frames and their rate."""
    if file["kind"] == "real":
        return _real(file["real"])
    stretches = _LONG // _SECONDS + 1 if file["long"] else 1
    found = [generated(file["kind"], seed, number, k) for k in range(stretches)]
    fps = PATTERN_FPS if file["kind"] == "patterns" else _FPS
    return np.concatenate(found)[: _LONG * fps], fps


def generated(kind: str, seed: int, number: int, stretch: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 1, number, stretch])
    count = _SECONDS * _FPS
    if kind == "toys":
        what, how = CLASSES[int(rng.integers(len(CLASSES)))].split("_")
        return render_toy_action(what, how, rng, size=_SIDE, num_frames=count, fps=_FPS)
    if kind == "digits":
        return _digits(rng, count)
    if kind == "scenes":
        return _scenes(rng, count)
    # Two shots, since one lasts three to five seconds.
    names = rng.choice(PATTERN_CLASSES, 2)
    return np.concatenate([render(str(name), rng) for name in names])


@cache
def _drawn() -> np.ndarray:
    return load_digits().images


def _digits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw three digits that bounce over a shaded ground (moving MNIST, Srivastava et al. 2015)."""
    frames = np.zeros((count, _SIDE, _SIDE), np.float32)
    frames += np.linspace(*rng.uniform(10, 90, 2), _SIDE, dtype=np.float32)[:, None]
    for _ in range(3):
        side = int(rng.integers(26, 40))
        image = cv2.resize(_drawn()[rng.integers(1797)], (side, side)) * rng.uniform(8, 15)
        room = _SIDE - side
        way = rng.uniform(0, 2 * room, 2) + np.arange(count)[:, None] * rng.uniform(-5, 5, 2)
        for t, (x, y) in enumerate((room - np.abs(room - way % (2 * room))).astype(int)):
            part = frames[t, y : y + side, x : x + side]
            np.maximum(part, image, out=part)
    frames += rng.normal(0, 2, frames.shape)
    return np.repeat(frames.clip(0, 255).astype(np.uint8)[..., None], 3, axis=3)


def _scenes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw one to three shots of a slow camera over clouds (1/f noise) with moving objects."""
    frames, at = np.empty((count, _SIDE, 128, 3), np.uint8), 0
    for length in np.diff([0, *sorted(rng.integers(20, count - 20, rng.integers(0, 3))), count]):
        ground = sum(
            cv2.resize(rng.normal(0, 2.0**k, (256 >> k, 320 >> k)), (320, 256)) for k in range(1, 7)
        )
        ground = 128 + ground / ground.std() * rng.uniform(25, 45)
        tint = rng.uniform(0.7, 1.3, (2, 3))
        left, top = rng.uniform(40, 150), rng.uniform(40, 120)
        drift, centre = rng.uniform(-0.6, 0.6, 2), rng.uniform(30, 90, (4, 2))
        speed, size = rng.uniform(-1.5, 1.5, (4, 2)), rng.integers(5, 14, (4, 2))
        for t in range(length):
            x, y = np.clip([left + t * drift[0], top + t * drift[1]], 0, [191, 159]).astype(int)
            frame = ground[y : y + _SIDE, x : x + 128, None] * tint[0]
            for place, go, axes in zip(centre, speed, size, strict=True):
                where = (place + t * go) % [128, _SIDE]
                shade = (200 * tint[1]).tolist()
                cv2.ellipse(frame, where.astype(int).tolist(), axes.tolist(), 0, 0, 360, shade, -1)
            frames[at] = frame.clip(0, 255)
            at += 1
    return frames


@cache
def _real(path: str) -> tuple[np.ndarray, int]:
    """Read at most 20 s of a file, 144 pixels high, with 10 to 30 frames per second."""
    with open_video(path) as reader:
        times = np.asarray(reader.timestamps)
        fps = int(np.clip(round(len(times) / max(reader.duration, 0.1)), 10, 30))
        count = max(2, int(min(reader.duration, 20) * fps))
        at = np.searchsorted(times, (np.arange(count) + 0.5) / fps, "right") - 1
        frames = []
        for part in np.array_split(at.clip(0), count // 16 + 1):
            frames += [sized(f[None], 144, 144 * f.shape[1] // f.shape[0])[0] for f in
                       reader.read(np.unique(part))]  # fmt: skip
        return np.stack(frames)[np.unique(at.clip(0), return_inverse=True)[1]], fps


def _stretch(
    frames: np.ndarray, fps: int, edit: str, rng: np.random.Generator
) -> tuple[np.ndarray, float, float]:
    """Select a part of at least 3 s, or of 5 to 8 s in a long video."""
    count = len(frames)
    kept = int(count * rng.uniform(0.6, 1.0))
    first = 0
    if count > 30 * fps:
        kept = int(fps * rng.uniform(5, 8))
        first = 61 * fps if edit == "late" else 0
    if edit == "partial":
        kept = min(count, int(fps * rng.uniform(2.5, 4)))
    kept = min(count, max(kept, 3 * fps))
    last = count - kept if edit == "late" else min(count - kept, 52 * fps)
    begin = int(rng.integers(first, last + 1))
    return frames[begin : begin + kept], begin / fps, (begin + kept) / fps


def _resampled(frames: np.ndarray, step: float) -> np.ndarray:
    at = np.arange(0, len(frames) - 0.5, step).round().astype(int)
    return frames[at.clip(0, len(frames) - 1)]


def _inserted(
    frames: np.ndarray, fps: int, filler: np.ndarray, filler_fps: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Insert the frames, a fifth to a third of all, between others, and return when they begin."""
    rest = int(len(frames) * rng.uniform(2, 4))
    filler = sized(_resampled(filler, filler_fps / fps), *frames.shape[1:3])
    filler = np.concatenate([filler] * (rest // len(filler) + 1))[:rest]
    before = int(rng.integers(0, rest + 1))
    return np.concatenate([filler[:before], frames, filler[before:]]), before / fps


def sized(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    size = max(8, width), max(8, height)
    return np.stack([cv2.resize(f, size, interpolation=cv2.INTER_AREA) for f in frames])


def _even(frames: np.ndarray) -> np.ndarray:
    return frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]


def _cropped(frames: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Crop 40 to 90 % of both sides, and enlarge to the original size."""
    height, width = frames.shape[1:3]
    side = rng.uniform(0.4, 0.9)
    high, wide = int(height * side), int(width * side)
    top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
    return sized(frames[:, top : top + high, left : left + wide], height, width)


def _shifted(frames: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move the frames by up to 15 % along both axes, with black borders."""
    height, width = frames.shape[1:3]
    move = np.float32([[1, 0, rng.uniform(-0.15, 0.15) * width],
                       [0, 1, rng.uniform(-0.15, 0.15) * height]])  # fmt: skip
    return np.stack([cv2.warpAffine(f, move, (width, height)) for f in frames])


def _coloured(frames: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Change brightness, contrast, gamma and saturation. Half become grey, a third blurred."""
    x = (frames / np.float32(255)) ** np.float32(rng.uniform(0.6, 1.6))
    grey = x.mean(axis=3, keepdims=True)
    x = grey + (x - grey) * (0 if rng.random() < 0.5 else rng.uniform(0.5, 1.5))
    x = (x - 0.5) * rng.uniform(0.6, 1.3) + 0.5 + rng.uniform(-0.15, 0.15)
    x = (x.clip(0, 1) * 255).astype(np.uint8)
    return np.stack([cv2.GaussianBlur(f, (0, 0), 1.5) for f in x]) if rng.random() < 0.33 else x


def _inset(frames: np.ndarray, filler: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Place the frames at 40 to 75 % of their size over another video."""
    height, width = frames.shape[1:3]
    side = rng.uniform(0.4, 0.75)
    high, wide = int(height * side), int(width * side)
    top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
    outer = sized(filler, height, width)
    outer = np.concatenate([outer] * (len(frames) // len(outer) + 1))[: len(frames)].copy()
    outer[:, top : top + high, left : left + wide] = sized(frames, high, wide)
    return outer


def _overlay(frames: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw two still lines of text, and a disc in half of the videos."""
    frames = frames.copy()
    height, width = frames.shape[1:3]
    words = ["".join(map(chr, rng.integers(65, 91, rng.integers(5, 10)))) for _ in range(2)]
    places = [(int(rng.integers(width // 4)), int(rng.integers(14, height))) for _ in words]
    size, colour = height / rng.uniform(90, 160), rng.integers(0, 256, (3, 3)).tolist()
    disc = rng.random() < 0.5, rng.uniform(0.1, 0.9, 2) * [width, height], rng.uniform(0.08, 0.16)
    for frame in frames:
        for n, (text, at) in enumerate(zip(words, places, strict=True)):
            cv2.putText(frame, text, at, cv2.FONT_HERSHEY_SIMPLEX, size, colour[n], 2)
        if disc[0]:
            cv2.circle(frame, disc[1].astype(int).tolist(), int(disc[2] * height), colour[2], -1)
    return frames


_PIXELS = {
    "encoded": lambda frames, *_: frames,
    "late": lambda frames, *_: frames,
    "mirrored": lambda frames, *_: frames[:, :, ::-1],
    "cropped": _cropped,
    "shifted": _shifted,
    "colour": _coloured,
    "inset": _inset,
    "overlay": _overlay,
}
