"""Second comparison: copies of fast motion that begin between two samples, and frames that stay."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from helpers.tiny_encoder import write_lossless

from sce_video.curation.comparison import ThumbnailFile, compare_pairs
from sce_video.curation.matching import (
    FLAT,
    MAX_SECONDS,
    MOST_STARTS,
    SIDE,
    Alignment,
    CopyMatcher,
    Thumbnails,
    _averaging,
    _moved,
    read_thumbnail,
    refined,
)
from sce_video.datasets.clip_sampling import shown_at

_FPS, _THRESHOLD = 15, 0.93


def shaken(seed: int, count: int = 45, fps: int = _FPS, side: int = 96) -> np.ndarray:
    """Frames (count, side, side) of a camera that shakes three times a second over a texture."""
    rng = np.random.default_rng(seed)
    texture = cv2.resize(rng.uniform(0, 255, (30, 30)), (3 * side, 3 * side))
    angle = 2 * np.pi * (rng.uniform() + 3.1 * np.arange(count) / fps)
    left = side + 16 * np.cos(angle) + 0.3 * np.arange(count)
    top = side + 16 * np.sin(1.3 * angle)
    places = zip(top.astype(int), left.astype(int), strict=True)
    return np.stack([texture[y : y + side, x : x + side] for y, x in places])


def video(frames: np.ndarray, fps: float = _FPS) -> Thumbnails:
    small = [cv2.resize(f, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for f in frames]
    times = np.arange(len(frames)) / fps
    return Thumbnails(np.stack(small).astype(np.uint8), times, len(frames) / fps, 96, 96)


def starts(outer: Thumbnails, inner: Thumbnails) -> list[Alignment]:
    """Alignments of the first comparison, at least one."""
    found = CopyMatcher(outer.sampled()).alignments([inner.sampled()], MOST_STARTS)[0]
    return [start for start in found if start.similarity >= 0.5] or found[:1]


def aligned(outer: Thumbnails, inner: Thumbnails) -> Alignment:
    return refined(outer, inner, starts(outer, inner))


def refined_one_by_one(
    outer: Thumbnails, inner: Thumbnails, begun: Alignment
) -> tuple[float, float, tuple]:
    """:func:`refined` without a threshold: one part and one displacement at a time."""

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        a, b = a - a.mean(), b - b.mean()
        least = FLAT * 16
        return (a * b).sum() / max(np.linalg.norm(a), least) / max(np.linalg.norm(b), least)

    def cut(frame: np.ndarray, part: tuple) -> np.ndarray:
        left, top, wide, high = (np.array([value]) for value in part)
        return _averaging(top, high, 16)[0] @ frame.astype(float) @ _averaging(left, wide, 16)[0].T

    def similarity(offset: float, part: tuple) -> float:
        left, top, wide, high = part
        middles = (inner.times + np.append(inner.times[1:], inner.end)) / 2
        common = np.flatnonzero((middles + offset >= 0) & (middles + offset < outer.end))
        if len(common) == 0 or min(left, top) < 0 or left + wide > 1 or top + high > 1:
            return -1.0
        steps = np.linspace(0, len(common) - 1, min(len(common), 16)).round().astype(int)
        return np.mean(
            [
                correlation(
                    cut(outer.frames[shown_at(outer.times, middles[[n]] + offset)[0]], part),
                    cut(inner.frames[n], (0, 0, 1, 1)),
                )
                for n in common[steps]
            ]
        )

    def displaced(offset: float, part: tuple) -> tuple[float, float]:
        shifts = [k / 64 for k in range(-6, 7)]
        value, _, best = max((similarity(offset + d, part), -abs(d), offset + d) for d in shifts)
        return value, best

    best, offset = displaced(begun.offset, begun.part)
    part = begun.part
    for number, step in enumerate((0.03, 0.015, 0.0075, 0.004)):
        for _ in range(6):
            value, moved = max((similarity(offset, p), p) for p in _moved(part, step))
            if value <= best:
                break
            best, part = value, moved
        if number % 2 == 0:
            best, offset = displaced(offset, part)
    return best, offset, part


def test_refinement_equals_that_of_one_part_and_displacement_at_a_time():
    every = 2  # frames of the outer video for one of the inner
    frames = shaken(4, count=24 * every, fps=_FPS * every)
    outer = video(frames, _FPS * every)
    inner = video(frames[5 * every : 17 * every : every, 10:84, 6:80])
    begun = starts(outer, inner)[:1]
    similarity, offset, part = refined_one_by_one(outer, inner, begun[0])
    found = refined(outer, inner, begun)
    assert found.similarity == pytest.approx(similarity, abs=1e-5)
    assert found.offset == pytest.approx(offset) and found.part == pytest.approx(part)


def test_pairs_above_the_threshold_are_those_of_full_refinement(tmp_path):
    frames = [shaken(seed) for seed in range(3)]
    shown = [*frames, frames[0][8:34], frames[1][:, 8:80, 12:84], frames[2][10:40, 5:90, 5:90]]
    videos = [video(some) for some in shown]
    pairs = [(a, b) for b in range(6) for a in range(b)]
    best = {
        (a, b): max(aligned(videos[a], videos[b]), aligned(videos[b], videos[a]), key=similar)
        for a, b in pairs
    }
    expected = {pair for pair in pairs if best[pair].similarity >= _THRESHOLD}
    assert expected == {(0, 3), (1, 4), (2, 5)}
    stored, steps = ThumbnailFile(tmp_path), set()
    for number, some in enumerate(videos):
        stored.add(number, some)

    def on_step(what: str, total: int, failed: bool) -> None:
        steps.add((what, total))

    found = list(compare_pairs(stored, np.array(pairs), _THRESHOLD, 1, on_step))
    assert {(min(pair), max(pair)) for *pair, _ in found} == expected
    for inner, outer, alignment in found:
        assert inner > outer  # the copies are parts of the others
        assert alignment.similarity == pytest.approx(best[outer, inner].similarity, abs=1e-5)
    assert ("comparing", 6) in steps and {what for what, _ in steps} == {"comparing", "refining"}
    stored.close()
    assert not list(tmp_path.iterdir())


def similar(alignment: Alignment) -> float:
    return alignment.similarity


def test_a_trim_of_fast_motion_is_found_between_two_samples():
    frames, begin = shaken(0), 7
    found = aligned(video(frames), video(frames[begin : begin + 26]))
    assert found.similarity > 0.99
    assert found.offset == pytest.approx(begin / _FPS, abs=1 / _FPS)


@pytest.mark.parametrize(("fps", "every"), [(12, 1), (48, 2)])
def test_all_frames_are_kept_up_to_the_highest_rate(tmp_path, fps, every):
    levels = np.arange(24, dtype=np.uint8) * 8 + 30
    frames = np.broadcast_to(levels[:, None, None, None], (24, 32, 32, 3))
    write_lossless(tmp_path / "video.mp4", np.ascontiguousarray(frames), fps)
    found = read_thumbnail(str(tmp_path / "video.mp4"))
    assert found.times == pytest.approx(np.arange(24)[::every] / fps, abs=1e-3)
    assert np.abs(found.frames.mean(axis=(1, 2)) - levels[::every]).max() < 3
    assert found.end == pytest.approx(24 / fps, abs=1e-3) and found.end < MAX_SECONDS
    moments = (np.arange(int(24 / fps * 16)) + 0.5) / 16
    shown = [found.frames[max(i for i, t in enumerate(found.times) if t <= m)] for m in moments]
    assert np.array_equal(found.sampled(), shown)
