"""Moments of a fixed camera are no near-duplicates of each other, their re-encodings are."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest

from sce_video.commands.curate import main
from sce_video.curation import moments
from sce_video.curation.comparison import ThumbnailFile, compare_pairs, read_thumbnails
from sce_video.curation.matching import FINE, SIDE, Alignment, Thumbnails
from sce_video.curation.moments import same_moment
from sce_video.curation.near_duplicates import pairs_by_frames
from sce_video.data_tools.generated import encode_h264
from sce_video.utils.files import write_bytes

_WIDE, _HIGH, _FPS = 192, 144, 15
_WHOLE = (0.0, 0.0, 1.0, 1.0)


def background(camera: int) -> np.ndarray:
    """What a camera sees all the time: (144, 192, 3), smooth colours and boxes."""
    rng = np.random.default_rng([camera, 0])
    image = cv2.resize(rng.uniform(30, 220, (9, 12, 3)), (_WIDE, _HIGH)).astype(np.uint8)
    for _ in range(14):
        left, top = rng.integers(0, (_WIDE, _HIGH)).tolist()
        wide, high = rng.integers(8, 60, 2).tolist()
        colour = rng.integers(0, 255, 3).tolist()
        cv2.rectangle(image, (left, top), (left + wide, top + high), colour, -1)
    return image


def moment(
    camera: int, seed: int, people: int, clock: int | None, seconds: float = 3.0, noise: float = 2.0
) -> np.ndarray:
    """Frames (T, 144, 192, 3) of a camera: people of some ten pixels, a clock, a sensor's noise.

    ``clock`` is the time of day at the beginning, in seconds; None shows no clock.
    """
    rng = np.random.default_rng([camera, seed, 1])
    begins, ways = rng.uniform(0, (_WIDE, _HIGH), (people, 2)), rng.uniform(-25, 25, (people, 2))
    sizes, colours = rng.integers(6, 14, people), rng.integers(0, 255, (people, 3)).tolist()
    still, frames = background(camera), []
    for t in np.arange(int(seconds * _FPS)) / _FPS:
        frame = still.copy()
        for begin, way, size, colour in zip(begins, ways, sizes.tolist(), colours, strict=True):
            sway = 4 * np.sin(3 * t + size)
            x, y = ((begin + way * t + sway) % (_WIDE, _HIGH)).astype(int).tolist()
            cv2.rectangle(frame, (x - size // 2, y - size), (x + size // 2, y + size), colour, -1)
        if clock is not None:
            now = clock + int(t)
            text = f"{now // 3600:02d}:{now // 60 % 60:02d}:{now % 60:02d}"
            cv2.rectangle(frame, (2, 2), (74, 16), (0, 0, 0), -1)
            font = cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(frame, text, (4, 14), font, 0.42, (255, 255, 255), 1, cv2.LINE_AA)
        frames.append((frame + rng.normal(0, noise, frame.shape)).clip(0, 255).astype(np.uint8))
    return np.stack(frames)


def sized(frames: np.ndarray, wide: int, high: int) -> np.ndarray:
    return np.stack([cv2.resize(f, (wide, high), interpolation=cv2.INTER_AREA) for f in frames])


def edited(frames: np.ndarray) -> dict[str, tuple[np.ndarray, str]]:
    """Frames and quality of the copies of a video, by name."""
    return {
        "encoded": (frames, "35"),
        "small": (sized(frames, 128, 96), "30"),
        "trimmed": (frames[6:40], "26"),
        "cropped": (sized(frames[:, 8:136, 10:180], 160, 120), "26"),
    }


def encoded(root: Path, shown: dict[str, tuple[np.ndarray, str]]) -> list[str]:
    """Write videos by name; their paths."""
    for name, (frames, quality) in shown.items():
        write_bytes(root / name, encode_h264(frames, _FPS, {"crf": quality, "g": "30"}))
    return [str(root / name) for name in shown]


def similar_pairs(folder: Path, files: list[str]) -> set[tuple[str, str]]:
    """Names of every two near-duplicates; all pairs are compared."""
    with closing(ThumbnailFile(folder)) as stored:
        assert read_thumbnails(stored, files, 0) == []
        pairs = np.array(list(combinations(range(len(files)), 2)))
        found = list(compare_pairs(stored, pairs, 0.97, 0))
    names = [Path(file).stem for file in files]
    return {tuple(sorted((names[a], names[b]))) for a, b, _ in found}


@pytest.mark.parametrize(("people", "noise"), [(0, 0.0), (0, 2.0), (1, 2.0), (2, 0.0)])
def test_moments_of_a_camera_are_no_near_duplicates(tmp_path, people, noise):
    # The same seconds, other minutes and hours, other tens of seconds; and at random.
    clocks = [36003, 36063, 43203, 36033, 51733, 80022]
    shown = {
        f"{number}.mp4": (moment(3, number, people, clock, noise=noise), "23")
        for number, clock in enumerate(clocks)
    }
    if people:
        shown |= {
            f"{number}.mp4": (moment(3, number, people, None, noise=noise), "23")
            for number in range(6, 9)
        }
    assert similar_pairs(tmp_path, encoded(tmp_path, shown)) == set()


@pytest.mark.parametrize("clock", [None, 36003])
def test_every_copy_of_a_moment_is_found(tmp_path, clock):
    frames = moment(4, 0, 2, clock)
    shown = {"original.mp4": (frames, "21")}
    shown |= {f"{name}.mp4": video for name, video in edited(frames).items()}
    found = similar_pairs(tmp_path, encoded(tmp_path, shown))
    assert {tuple(sorted(("original", name))) for name in edited(frames)} <= found


def test_the_command_removes_the_copies_alone(tmp_path, capsys):
    shown = {}
    for seed in range(8):
        frames = moment(5, seed, 1 + seed % 2, 3600 * seed + 61 * seed)
        shown[f"{seed}.mp4"] = (frames, "21")
        name = list(edited(frames))[seed % 4]
        shown[f"{seed} {name}.mp4"] = edited(frames)[name]
    files = encoded(tmp_path / "v", shown)
    values = np.random.default_rng(0).normal(size=(len(files), 6)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=values, paths=files)
    words = [str(tmp_path / "f.npz"), "--out", str(tmp_path / "out"), "--workers", "0"]
    assert main([*words, "--no-page", "--clusters", "2"]) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    groups = [
        {Path(group["kept"]).stem, *(Path(video["path"]).stem for video in group["removed"])}
        for group in report["groups"]
    ]
    assert len(groups) == 8
    assert all(len({name[0] for name in group}) == 1 for group in groups)


def thumbnails(frames: np.ndarray) -> Thumbnails:
    grey = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames])
    times = np.arange(len(frames)) / _FPS
    return Thumbnails(sized(grey, SIDE, SIDE), times, len(frames) / _FPS, _HIGH, _WIDE)


def test_a_copy_among_many_moments_of_a_camera_is_a_candidate(tmp_path):
    with closing(ThumbnailFile(tmp_path)) as stored:
        for seed in range(40):
            frames = moment(6, seed, 1, None, seconds=2.0)
            stored.add(seed, thumbnails(frames))
            if seed % 4 == 0:
                stored.add(100 + seed, thumbnails(frames[:, 6:138, 8:184]))
        pairs = {(a, b) for a, b in pairs_by_frames(stored, sorted(stored.places), 10).tolist()}
    assert sum((seed, 100 + seed) in pairs for seed in range(0, 40, 4)) >= 7


def test_agreement_equals_the_share_that_the_residual_leaves():
    one, other = thumbnails(moment(7, 0, 2, 36003)), thumbnails(moment(7, 0, 2, 36063))
    still = Alignment(0.99, 0.0, _WHOLE)
    numbers = np.linspace(0, len(one.frames) - 1, 32).round().astype(int)

    def small(frames: np.ndarray) -> np.ndarray:
        return frames.reshape(-1, FINE, 2, FINE, 2).mean(axis=(2, 4))

    def shifted(steps: int) -> np.ndarray:
        # 1/32 s lies within half a frame of 1/15 s: the same frame, or the neighbour.
        times = (one.times[numbers] + 0.5 / _FPS) + steps / 32
        shown = [max(i for i, t in enumerate(other.times) if t <= max(time, 0)) for time in times]
        return small(other.frames[shown])

    ours, theirs = small(one.frames[numbers]), shifted(0)
    place = (np.arange(FINE) + 0.5) / FINE - 0.5
    down, across = np.gradient(theirs, axis=(1, 2))
    sharp = np.zeros_like(theirs)
    for y in range(FINE):
        for x in range(FINE):
            for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                near = theirs[:, min(max(y + dy, 0), FINE - 1), min(max(x + dx, 0), FINE - 1)]
                sharp[:, y, x] += near - theirs[:, y, x]
    columns = [theirs, np.ones_like(theirs), across, down, across * place, down * place[:, None]]
    columns += [sharp, shifted(1) - shifted(-1)]
    matrix = np.stack([column.ravel() for column in columns], axis=1)
    fitted = (matrix @ np.linalg.lstsq(matrix, ours.ravel(), rcond=None)[0]).reshape(ours.shape)
    mean = (ours.mean(axis=0) + fitted.mean(axis=0)) / 2
    energy = ((ours - mean) ** 2).sum() + ((fitted - mean) ** 2).sum()
    expected = 1 - ((ours - fitted) ** 2).sum() / energy
    assert 0.5 < expected < 1
    found = moments._agreement(other, one, 0.0, _WHOLE)
    assert found.value == pytest.approx(expected, abs=1e-4)
    assert same_moment(one, one, still).changes == pytest.approx(1, abs=1e-3)
    frozen = thumbnails(np.repeat(moment(7, 0, 2, None)[:1], 30, axis=0))
    assert same_moment(frozen, frozen, still).changes == pytest.approx(0, abs=1e-4)
