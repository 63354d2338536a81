"""Second comparison: copies of fast motion that begin between two samples, and frames that stay."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from helpers.tiny_encoder import write_lossless

from sce_video.data_tools.copies import Thumbnails, read_thumbnail
from sce_video.data_tools.copies.comparison import align_all
from sce_video.data_tools.copies.thumbnails import MAX_SECONDS, SIDE

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


@pytest.mark.parametrize("begin", [7, 8, 11])
def test_a_trim_of_fast_motion_is_found_between_two_samples(begin):
    frames = shaken(0)
    (found,) = align_all((video(frames), [video(frames[begin : begin + 26])]))
    assert found.similarity > 0.99
    assert found.offset == pytest.approx(begin / _FPS, abs=1 / _FPS)


def test_a_part_of_any_size_and_place_is_found():
    frames = shaken(1)
    copy = frames[9:36, 12:85, 18:91]  # 0.125, 0.1875, and 0.760 of a side: between all steps
    (found,) = align_all((video(frames), [video(copy)]))
    assert found.similarity > 0.97
    assert found.part == pytest.approx((18 / 96, 12 / 96, 73 / 96, 73 / 96), abs=0.02)


def test_other_videos_of_the_same_motion_do_not_match():
    found = align_all((video(shaken(0)), [video(shaken(seed)[:30]) for seed in range(1, 7)]))
    assert max(alignment.similarity for alignment in found) < _THRESHOLD - 0.1


def test_other_stretches_of_one_moving_scene_do_not_match():
    """Same texture and motion, but no moment is shown by both."""
    frames = shaken(2, count=90)
    (found,) = align_all((video(frames[:40]), [video(frames[50:])]))
    assert found.similarity < _THRESHOLD


def test_frame_rates_may_differ():
    frames = shaken(3, count=90, fps=30)
    (found,) = align_all((video(frames, 30), [video(frames[10:76:2], 15)]))
    assert found.similarity > _THRESHOLD


@pytest.mark.parametrize("fps, every", [(12, 1), (32, 1), (48, 2)])
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
