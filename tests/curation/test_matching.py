"""Alignment of copies: the planted displacement and part are found, other videos do not match."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from sce_video.curation import matching
from sce_video.curation.matching import ANCHORS, RATE, SIDE, Alignment, CopyMatcher, query_vectors


def panned(seed: int, count: int = 48, side: int = 128) -> np.ndarray:
    """Frames (count, side, side) of a camera that moves over a random texture."""
    rng = np.random.default_rng(seed)
    texture = cv2.resize(rng.uniform(0, 255, (24, 24)), (3 * side, 3 * side))
    way = np.linspace(0, 1, count) * rng.uniform(0.5, 1) * side
    top, left = rng.integers(0, side, 2)
    steps = np.stack([top + way * rng.uniform(-0.2, 1), left + way], axis=1).clip(0, 2 * side)
    return np.stack([texture[y : y + side, x : x + side] for y, x in steps.astype(int)])


def small(frames: np.ndarray) -> np.ndarray:
    squeezed = [cv2.resize(f, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for f in frames]
    return np.stack(squeezed).astype(np.uint8)


def align(matcher: CopyMatcher, frames: np.ndarray) -> Alignment:
    return matcher.alignments([frames], 1)[0][0]


@pytest.mark.parametrize(
    ("left", "top", "wide"), [(0.0, 0.0, 1.0), (0.15, 0.05, 0.8), (0.3, 0.1, 0.6)]
)
def test_a_cropped_trim_is_found_where_it_was_cut(left, top, wide):
    frames, side = panned(0), 128
    x, y, w = round(left * side), round(top * side), round(wide * side)
    copy = frames[14:40, y : y + w, x : x + w]
    found = align(CopyMatcher(small(frames)), small(copy))
    assert found.similarity > 0.95
    assert found.offset == pytest.approx(14 / RATE, abs=1.01 / RATE)
    assert found.part == pytest.approx((left, top, wide, wide), abs=0.051)


def test_what_overlaps_is_found_and_other_videos_are_not():
    frames = panned(0)
    matcher = CopyMatcher(small(frames))
    assert align(matcher, small(frames[:36])).similarity > 0.95
    longer = align(CopyMatcher(small(frames[12:])), small(frames))
    assert longer.similarity > 0.95 and longer.offset == pytest.approx(-12 / RATE)
    others = [align(matcher, small(panned(seed))).similarity for seed in range(1, 9)]
    assert max(others) < 0.8


def test_flat_frames_match_nothing():
    flat = np.full((20, SIDE, SIDE), 90, np.uint8)
    assert align(CopyMatcher(flat), flat).similarity < 0.1
    assert align(CopyMatcher(flat), small(panned(0))).similarity < 0.1
    assert align(CopyMatcher(small(panned(0))[:1]), small(panned(0))[:1]).similarity > 0.95


@pytest.mark.parametrize(("count", "other"), [(30, 17), (12, 40), (3, 5)])
def test_alignments_equal_those_of_a_loop_over_displacements(monkeypatch, count, other):
    outer, videos = small(panned(3))[:count], [small(panned(3))[4 : 4 + other], small(panned(5))]
    matcher = CopyMatcher(outer)
    vectors = matcher._vectors.reshape(count, -1, 64)
    monkeypatch.setattr(matching, "_COMPARED", 1)  # one video at a time
    alone = matcher.alignments(videos, 4)
    monkeypatch.undo()
    assert matcher.alignments(videos, 4) == [
        [Alignment(pytest.approx(a.similarity, abs=1e-6), a.offset, a.part) for a in some]
        for some in alone
    ]
    for frames, found in zip(videos, alone, strict=True):
        shorter = min(count, len(frames))
        step = max(1, shorter // ANCHORS)
        anchors = range(min(step // 2, len(frames) - 1), len(frames), step)
        queries = query_vectors(frames)
        best = {}
        for shift in range(-len(frames), count):
            pairs = [(a, a + shift) for a in anchors if 0 <= a + shift < count]
            if pairs:
                mean = np.mean([vectors[t] @ queries[a] for a, t in pairs], axis=0)
                best[shift] = mean.max(), len(pairs)
        most = max(n for _, n in best.values())
        least = min(most, max(1, np.ceil(0.65 * shorter / step)))
        top = max(value for value, n in best.values() if n >= least)
        assert found[0].similarity == pytest.approx(top, abs=1e-5)
        assert best[round(found[0].offset * RATE)][0] == pytest.approx(top, abs=1e-5)
