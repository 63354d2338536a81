"""Edited copies: each kind is found with its option, other videos are not; votes and borders."""

from __future__ import annotations

import csv
from dataclasses import replace

import cv2
import numpy as np
import pytest
from helpers.tiny_encoder import write_lossless

from sce_video.commands.curate import main
from sce_video.curation import copy_alignment, copy_votes
from sce_video.curation import edited_copies as copies
from sce_video.curation.comparison import ThumbnailFile
from sce_video.curation.copy_alignment import EditedCopy
from sce_video.curation.copy_votes import SPEEDS, voted
from sce_video.curation.matching import SIDE, Thumbnails, cut_grid, grid_parts, norms, squares
from sce_video.options.find import EDITS

_FPS, _SIZE = 12, 96


def filmed(seed: int, seconds: float = 6.0) -> np.ndarray:
    """Frames (T, 96, 96) of a camera that moves over a random texture, with a disc before it."""
    rng = np.random.default_rng(seed)
    texture = cv2.resize(rng.uniform(0, 255, (30, 30)), (300, 300), interpolation=cv2.INTER_CUBIC)
    angle, turn = rng.uniform(0, 6.3, 2)
    frames = []
    for t in np.arange(int(seconds * _FPS)) / _FPS:
        left, top = 100 + 12 * t * np.array([np.cos(turn), np.sin(turn)])
        frame = texture[int(top) : int(top) + _SIZE, int(left) : int(left) + _SIZE].clip(0, 255)
        x, y = 48 + 30 * np.cos(angle + t), 48 + 30 * np.sin(angle + 1.3 * t)
        frames.append(cv2.circle(frame.astype(np.uint8), (int(x), int(y)), 12, 230, -1))
    return np.stack(frames)


def sized(frames: np.ndarray, side: int) -> np.ndarray:
    return np.stack([cv2.resize(f, (side, side), interpolation=cv2.INTER_AREA) for f in frames])


def video(frames: np.ndarray, most: float = 60.0) -> Thumbnails:
    times = np.arange(len(frames)) / _FPS
    return Thumbnails(sized(frames, SIDE), times, len(frames) / _FPS, _SIZE, _SIZE, most)


def inset(frames: np.ndarray) -> np.ndarray:
    outer = filmed(90, len(frames) / _FPS)
    outer[:, 30:78, 10:58] = sized(frames, 48)
    return outer


def texted(frames: np.ndarray) -> np.ndarray:
    font = cv2.FONT_HERSHEY_SIMPLEX
    return np.stack([cv2.putText(f.copy(), "WORDS", (2, 80), font, 0.9, 255, 2) for f in frames])


def covered(frames: np.ndarray) -> np.ndarray:
    """A fifth of the frame is hidden by still stripes."""
    frames = frames.copy()
    frames[:, 8:20], frames[:, 80:86] = 255, 0
    return frames


def odd_inset(frames: np.ndarray) -> np.ndarray:
    """At 44 % of the sides, between the parts that are searched."""
    outer = filmed(93, len(frames) / _FPS)
    outer[:, 33:75, 44:86] = sized(frames, 42)
    return outer


EDITED = {
    "mirrored": ("mirrored", lambda f: f[10:, :, ::-1]),
    "cropped": ("parts", lambda f: sized(f[:60, 40:84, 20:64], _SIZE)),
    "inset": ("parts", inset),
    "faster": ("speed", lambda f: f[np.arange(0, len(f) - 1, 1.2).astype(int)]),
    "short": ("short", lambda f: np.concatenate([filmed(91, 4), f[20:50], filmed(92, 4)])),
    "late": ("late", lambda f: np.concatenate([*(filmed(50 + n) for n in range(11)), f])),
    "text": ("", texted),
    "covered": ("", covered),
    "odd inset": ("parts", odd_inset),
    "shifted": ("", lambda f: np.pad(f, ((0, 0), (14, 0), (0, 10)))[:, :_SIZE, 10:]),
}


def found(tmp_path, shown: list[np.ndarray], edits: tuple[str, ...]) -> list[EditedCopy]:
    stored = ThumbnailFile(tmp_path)
    for number, frames in enumerate(shown):
        stored.add(3 * number, video(frames, copies.LATE_SECONDS if "late" in edits else 60.0))
    result = copies.edited_copies(stored, edits, 20, 0)
    stored.close()
    return result


@pytest.mark.parametrize("kind", EDITED)
def test_an_edited_copy_is_found_with_its_option(tmp_path, kind):
    option, edited = EDITED[kind]
    shown = [*(filmed(seed) for seed in range(5)), edited(filmed(2))]
    edits = (option,) if option else ()
    if kind == "late":  # a tenth of the longer video
        edits = ("late", "short")
    result = found(tmp_path, shown, edits)
    assert [(min(c.inner, c.outer), max(c.inner, c.outer)) for c in result] == [(6, 15)]
    copy = result[0]
    assert copy.mirrored == (kind == "mirrored") and copy.alignment.similarity > 0.8
    if copy.inner == 15:
        own, other, speed = copy.inner_stretch, copy.outer_stretch, copy.speed
    else:
        own, other, speed = copy.outer_stretch, copy.inner_stretch, 1 / copy.speed
    assert speed == pytest.approx(1.2 if kind == "faster" else 1, abs=0.03)
    begins = {"mirrored": (0, 10 / 12), "short": (4, 20 / 12), "late": (66, 0)}
    assert (own[0], other[0]) == pytest.approx(begins.get(kind, (0, 0)), abs=0.3)
    if kind == "inset":
        assert copy.outer == 15
        assert copy.alignment.part == pytest.approx((10 / 96, 30 / 96, 0.5, 0.5), abs=0.05)


def test_without_the_option_they_are_not_found_and_flat_videos_match_nothing(tmp_path):
    kinds = ("mirrored", "cropped", "faster", "short", "late")
    shown = [filmed(2), *(EDITED[kind][1](filmed(2)) for kind in kinds)]
    assert {c.inner for c in found(tmp_path, shown, ()) if c.outer == 0} <= {3 * 3}
    flat = np.full((40, _SIZE, _SIZE), 90, np.uint8)
    assert found(tmp_path, [flat, flat], EDITS) == []
    still = np.repeat(filmed(0)[:1], 50, axis=0)
    assert found(tmp_path, [still, still], EDITS) == []


def test_votes_pass_through_the_answers_that_agree():
    t_in = np.arange(20) / 4
    rng = np.random.default_rng(0)
    t_out, parts = rng.uniform(0, 30, 20), rng.uniform(0, 1, (20, 3))
    agree = np.arange(3, 15)
    t_out[agree], parts[agree] = 7 + 1.25 * t_in[agree], [0.2, 0.1, 0.5]
    similar = rng.uniform(0.7, 0.9, 20)
    _, speed, row = next(voted(t_in, t_out, parts, similar, SPEEDS))
    assert speed == pytest.approx(1.25) and row in agree
    still = np.full(20, 0.8)  # one frame resembles all: every speed explains the answers
    _, speed, _ = next(voted(t_in[:2], t_in[:2], parts[3:5], still[:2], SPEEDS))
    assert speed == pytest.approx(1)


def test_hypotheses_do_not_depend_on_how_many_videos_are_asked_at_once(monkeypatch):
    shown = [filmed(0), np.full((40, _SIZE, _SIZE), 90, np.uint8), filmed(1), texted(filmed(0))]
    shown += [filmed(1)[8:, :, ::-1], inset(filmed(0))]
    videos = [(video(frames), []) for frames in shown]
    once = copy_votes.hypotheses(videos, EDITS, 5)
    monkeypatch.setattr(copy_votes, "_ASKED_AT_ONCE", 30)
    assert copy_votes.hypotheses(videos, EDITS, 5) == once
    assert {(0, 3), (2, 4)} <= {(guess.inner, guess.outer) for guess in once}


def test_parts_equal_those_of_a_loop():
    frames = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE)).astype(np.uint8)
    vectors = cut_grid(frames, squares((1.0, 0.5)), 0.1)
    vectors = vectors / norms(vectors)[..., None]
    places = grid_parts(squares((1.0, 0.5)), 0.1)
    assert vectors.shape == (3, 37, 64) and len(places) == 37
    number = places.index((0.5, 0.0, 0.5, 0.5))
    cut = frames[1, :16, 16:].astype(float).reshape(8, 2, 8, 2).mean(axis=(1, 3)).ravel()
    cut -= cut.mean()
    assert vectors[1, number] == pytest.approx(cut / np.linalg.norm(cut), abs=1e-5)


def test_other_parts_equal_those_of_the_grid():
    frames = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE)).astype(np.uint8)
    grid = grid_parts(squares((0.5,)), 0.1)
    vectors = cut_grid(frames, squares((0.5,)), 0.1, grid[7:9])
    assert vectors[:, -2:] == pytest.approx(vectors[:, 7:9], abs=1e-3)


def test_changes_equal_those_of_a_loop(monkeypatch):
    monkeypatch.setattr(copies, "_CHANGED_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    frames = rng.integers(100, 140, (40, SIDE, SIDE)).astype(np.uint8)
    times = np.cumsum(rng.uniform(0.05, 0.3, 40))
    moved = copies.changes(Thumbnails(frames, times, 12.0, SIDE, SIDE)).frames
    for n, time in enumerate(times):
        near = [f for f, t in zip(frames, times, strict=True) if abs(t - time) <= 1]
        expected = 128 + 3 * (frames[n] - np.mean(np.float64(near), axis=0))
        assert np.abs(moved[n] - expected.clip(0, 255)).max() < 1.01
    plain = video(filmed(0))
    words = replace(plain, frames=np.where(np.arange(SIDE) < 8, 255, plain.frames))
    same = copies.changes(words).frames == copies.changes(plain).frames
    assert same[:, :, 8:].all() and (copies.changes(words).frames[:, :, :8] == 128).all()


@pytest.mark.parametrize("box", [(30, 78, 10, 58), (0, 60, 40, 96), (45, 90, 3, 45)])
def test_the_rectangle_of_a_picture_in_a_picture_is_found(box):
    top, end, left, right = box
    frames = filmed(90)
    size = right - left, end - top
    frames[:, top:end, left:right] = [cv2.resize(f, size) for f in filmed(2)]
    expected = np.array([left, top, right - left, end - top]) / _SIZE
    found = copies.rectangles(video(frames))
    assert len(found) <= 4
    assert min(np.abs(np.array(part) - expected).max() for part in found) < 0.04
    flat = video(np.full((20, _SIZE, _SIZE), 90, np.uint8))
    assert copies.rectangles(flat) == []


def test_slopes_of_the_edges_equal_differences():
    blurred = [cv2.GaussianBlur(f, (0, 0), 9) for f in filmed(3)[:4]]
    frames, edges = video(np.stack(blurred)).frames, np.array([0.2, 0.15, 0.85, 0.9])

    def cut(at: np.ndarray) -> np.ndarray:
        return copy_alignment._pixels(frames, copy_alignment._between(at))

    slopes = copy_alignment._edge_slopes(cut(edges), copy_alignment._units(cut(edges)), edges)
    for n, step in enumerate(np.eye(4) * 0.02):
        ends = [copy_alignment._units(cut(edges + sign * step)) for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / 0.04
        cosine = (difference * slopes[n]).sum() / np.linalg.norm(difference)
        assert cosine / np.linalg.norm(slopes[n]) > 0.95
        assert np.linalg.norm(slopes[n]) == pytest.approx(np.linalg.norm(difference), rel=0.2)


def test_borders_are_cut_off_and_dark_videos_stay():
    frames = filmed(0)
    boxed = np.pad(sized(frames, 48), ((0, 0), (24, 24), (0, 0)))  # a letterbox of half the height
    cut = copies.without_borders(video(sized(boxed, _SIZE))).frames
    assert np.abs(cut.astype(float) - video(frames).frames).mean() < 12
    plain = video(frames)
    assert copies.without_borders(plain) is plain
    dark = video(np.zeros((20, _SIZE, _SIZE), np.uint8))
    assert copies.without_borders(dark) is dark


def test_the_command_removes_a_mirrored_copy_and_says_what_is_shared(tmp_path, capsys):
    shown = {f"{seed}.mp4": filmed(seed) for seed in range(4)} | {"m.mp4": filmed(1)[12:, :, ::-1]}
    for name, frames in shown.items():
        write_lossless(tmp_path / "v" / name, np.repeat(frames[..., None], 3, axis=3), _FPS)
    values = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    paths = np.array([str(tmp_path / "v" / name) for name in shown])
    np.savez(tmp_path / "f.npz", features=values, paths=paths)
    words = [str(tmp_path / "f.npz"), "--out", str(tmp_path / "out"), "--workers", "0", "--no-page"]
    assert main(words) == 0 and "5 kept" in capsys.readouterr().out
    assert main([*words, "--copies", "mirrored", "late", "--overwrite"]) == 0
    with open(tmp_path / "out" / "removed.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["path"].endswith("m.mp4") and row["kept"].endswith("1.mp4")
    assert row["mirrored"] == "1" and row["reason"].startswith("copy by frames")
    assert [float(row[k]) for k in ("begin", "start")] == pytest.approx([0, 1], abs=0.1)
    assert main([*words, "--copies", "all", "--duplicates", "none"]) == 2
    assert "copies compares frames" in capsys.readouterr().err
