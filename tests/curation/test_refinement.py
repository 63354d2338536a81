"""Second comparison: copies of fast motion that begin between two samples, and frames that stay."""

from __future__ import annotations

from collections import Counter

import cv2
import numpy as np
import pytest
import torch
from helpers.tiny_encoder import write_lossless

from sce_video.curation import near_duplicates as candidates
from sce_video.curation.comparison import ThumbnailFile, compare_pairs
from sce_video.curation.matching import (
    FLAT,
    MAX_SECONDS,
    MOST_STARTS,
    SIDE,
    Alignment,
    CopyMatcher,
    Thumbnails,
    _moved,
    averaging,
    read_thumbnail,
    refined,
)
from sce_video.curation.near_duplicates import candidate_pairs, pairs_by_frames, unique_pairs
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
        return averaging(top, high, 16)[0] @ frame.astype(float) @ averaging(left, wide, 16)[0].T

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


def test_pairs_are_kept_once_in_order():
    pairs = np.array([[3, 1], [1, 3], [0, 2], [5, 1], [0, 2]])
    assert unique_pairs(pairs).tolist() == [[0, 2], [1, 3], [1, 5]]
    assert unique_pairs(np.empty((0, 2), dtype=np.int64)).shape == (0, 2)


def test_candidates_by_features_leave_out_empty_slots():
    similar = torch.tensor([[0.9, -torch.inf], [0.9, 0.1], [0.1, -torch.inf]])
    where = torch.tensor([[1, 0], [0, 2], [1, 0]])
    assert candidate_pairs(similar, where).tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_video_counts_once_for_a_frame(monkeypatch, at_once):
    monkeypatch.setattr(candidates, "_VOTES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    askers = np.repeat(np.arange(7), rng.integers(1, 9, 7)).astype(np.int32)
    owners = np.repeat(np.arange(7), 5).astype(np.int32)
    similar = rng.uniform(0.4, 1, (len(askers), 6)).astype(np.float32)
    where = rng.integers(0, len(owners), (len(askers), 6)).astype(np.int32)
    votes: Counter = Counter()
    for asker, values, rows in zip(askers, similar, where, strict=True):
        votes.update(
            {(asker, owners[row]) for v, row in zip(values, rows, strict=True) if v >= 0.7}
        )
    pairs, numbers = candidates._votes(similar, where, askers, owners)
    found = {tuple(pair): number for pair, number in zip(pairs.tolist(), numbers, strict=True)}
    assert found == votes


def test_a_copy_is_a_candidate_of_its_original(tmp_path):
    stored = ThumbnailFile(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(8):
        texture = cv2.resize(rng.uniform(0, 255, (24, 24)), (96, 96))
        shown = [texture[t // 2 : t // 2 + 64, t : t + 64] for t in range(32)]
        copy = [frame[4:56, 8:60] for frame in shown[6:28]]
        for place, frames in ((number, shown), (number + 10, copy)):
            small = [cv2.resize(f, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for f in frames]
            times = np.arange(len(small)) / 16
            thumbnails = np.stack(small).astype(np.uint8)
            stored.add(place, Thumbnails(thumbnails, times, len(small) / 16, 64, 64))
    found = pairs_by_frames(stored, sorted(stored.places), most=3)
    assert {(n, n + 10) for n in range(8)} <= {(a, b) for a, b in found.tolist()}
    stored.close()
