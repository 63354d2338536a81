"""Crops, RGB difference and packing on uint8 clips."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch

from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.transforms import crop_and_resize, random_box, rgb_difference
from sce_video.registry import TRANSFORMS


def build(name, **options):
    return TRANSFORMS.build({"type": name, **options})


def coordinates(height, width, frames=2):
    """Frames whose red channel is the row and whose green channel is the column."""
    view = np.zeros((frames, height, width, 3), dtype=np.uint8)
    view[..., 0] = np.arange(height)[:, None]
    view[..., 1] = np.arange(width)
    return view


def results(*views, seed=0):
    return {"views": list(views), "rng": np.random.default_rng(seed)}


def corner(view):
    assert (view[0] == view[-1]).all()
    return int(view[0, 0, 0, 0]), int(view[0, 0, 0, 1])


class FakeReader:
    """A video of random frames that remembers what was asked of it."""

    def __init__(self, frames, fps=10.0):
        self.frames = frames
        self.timestamps = np.arange(len(frames)) / fps
        self.duration = len(frames) / fps
        self.calls = []

    def read(self, indices):
        self.calls.append(indices.tolist())
        return self.frames[indices]


@pytest.fixture
def reader():
    frames = np.random.default_rng(0).integers(0, 256, (40, 6, 7, 3), dtype=np.uint8)
    return FakeReader(frames)


# -- sampling and decoding -----------------------------------------------------------------


def sample_clips(reader, seed=0, **options):
    transform = build("RandomClips", clip_duration=1.0, num_frames=4, **options)
    return transform({"reader": reader, "rng": np.random.default_rng(seed)})["clips"]


def test_random_clips_options_do_not_reshuffle_each_other(reader):
    for seed in range(20):
        plain = sample_clips(reader, seed, num_views=3)
        both = sample_clips(reader, seed, num_views=3, reverse_prob=0.5, diff_prob=0.5)
        assert [c.start for c in plain] == [c.start for c in both]
        reverse = sample_clips(reader, seed, num_views=3, reverse_prob=0.5)
        assert [c.reversed for c in reverse] == [c.reversed for c in both]


def test_random_clips_probabilities(reader):
    clips = [
        clip
        for seed in range(1000)
        for clip in sample_clips(reader, seed, reverse_prob=0.2, diff_prob=0.7, duration_jitter=0.2)
    ]
    assert np.mean([c.reversed for c in clips]) == pytest.approx(0.2, abs=0.03)
    assert np.mean([c.partners is not None for c in clips]) == pytest.approx(0.7, abs=0.04)
    lengths = np.array([c.clip_duration for c in clips])
    assert 0.8 <= lengths.min() < 0.81 and 1.19 < lengths.max() < 1.2
    starts = np.array([c.start for c in clips])
    # start / room is uniform, and the two views of a sample are independent
    room = starts / (4.0 - lengths)
    assert np.abs(np.histogram(room, 5, (0, 1))[0] / 2000 - 0.2).max() < 0.03
    assert abs(np.corrcoef(room[::2], room[1::2])[0, 1]) < 0.08


def test_all_clips_are_read_in_one_ordered_call(reader):
    clips = sample_clips(reader, num_views=3, diff_prob=0.5, reverse_prob=0.5)
    state = build("DecodeClips")({"reader": reader, "clips": clips})
    assert len(reader.calls) == 1 and "reader" not in state
    needed = {int(i) for c in clips for i in c.frames}
    needed |= {int(i) for c in clips if c.partners is not None for i in c.partners}
    assert reader.calls[0] == sorted(needed)
    for clip, view in zip(clips, state["views"], strict=True):
        assert view.shape == (4, 6, 7, 3) and view.dtype == np.uint8
        if clip.partners is None:
            assert (view == reader.frames[clip.frames]).all()


def slow_difference_clip(frames, num_frames, backwards):
    """The whole clip at full rate in float64, then T of its pictures: the rule written out."""
    clip = frames[::-1] if backwards else frames
    grey = clip.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    change = (grey[:-1] - grey[1:] + 255) / 2
    change = np.concatenate([change, change[-1:]])
    picks = [math.floor(i * (len(clip) - 1) / (num_frames - 1) + 1e-9) for i in range(num_frames)]
    return np.repeat(change[picks][..., None], 3, axis=-1)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("num_frames", [2, 5, 12])
def test_difference_equals_the_slow_full_clip(reader, num_frames, backwards):
    transform = build("RandomClips", clip_duration=1.2, num_frames=num_frames, num_views=1,
                      diff_prob=1.0, reverse_prob=float(backwards))  # fmt: skip
    state = transform({"reader": reader, "rng": np.random.default_rng(3)})
    start = state["clips"][0].start
    inside = (reader.timestamps >= start) & (reader.timestamps < start + 1.2)
    view = build("DecodeClips")(state)["views"][0]
    expected = slow_difference_clip(reader.frames[inside], num_frames, backwards)
    assert np.abs(view - expected).max() <= 0.5 + 1e-3


def test_difference_of_equal_frames_is_128():
    frames = np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3), dtype=np.uint8)
    assert (rgb_difference(frames, np.zeros(2, int), np.zeros(2, int)) == 128).all()


def test_difference_reaches_both_ends():
    frames = np.stack([np.zeros((2, 2, 3)), np.full((2, 2, 3), 255)]).astype(np.uint8)
    both = rgb_difference(frames, np.array([0, 1]), np.array([1, 0]))
    assert (both[0] == 0).all() and (both[1] == 255).all()


def test_difference_of_a_video_of_one_frame(reader):
    reader.frames, reader.timestamps, reader.duration = reader.frames[:1], np.zeros(1), 0.1
    clips = sample_clips(reader, num_views=1, diff_prob=1.0)
    assert isinstance(clips[0], ClipIndices)
    assert (build("DecodeClips")({"reader": reader, "clips": clips})["views"][0] == 128).all()


def test_uniform_clips(reader):
    clips = build("UniformClips", clip_duration=1.0, num_frames=2, num_clips=4)({"reader": reader})
    assert [c.start for c in clips["clips"]] == [0.0, 1.0, 2.0, 3.0]
    assert [c.frames.tolist() for c in clips["clips"]] == [[0, 9], [10, 19], [20, 29], [30, 39]]


# -- crops ---------------------------------------------------------------------------------


def test_center_crop_offsets():
    for height, width, size, expected in [
        (10, 15, 4, (3, 6)),
        (9, 8, 8, (1, 0)),
        (8, 8, 8, (0, 0)),
    ]:
        state = build("CenterCropClips", size=size)(results(coordinates(height, width)))
        assert corner(state["views"][0]) == expected
        assert state["views"][0].shape == (2, size, size, 3)


def test_three_crops_lie_along_the_long_side():
    wide, tall = coordinates(11, 20), coordinates(20, 11)
    views = build("ThreeCrops", size=10)(results(wide, tall))["views"]
    assert [corner(v) for v in views] == [(1, 0), (1, 5), (1, 10), (0, 1), (5, 1), (10, 1)]
    assert all(v.shape == (2, 10, 10, 3) for v in views)
    square = build("ThreeCrops", size=9)(results(coordinates(12, 12)))["views"]
    assert [corner(v) for v in square] == [(2, 0), (2, 2), (2, 3)]


def test_random_crop_reaches_every_place_equally():
    transform = build("RandomCropClips", size=6)
    corners = [
        corner(transform(results(coordinates(8, 9), seed=s))["views"][0]) for s in range(2400)
    ]
    values, counts = np.unique(corners, axis=0, return_counts=True)
    assert len(values) == 3 * 4 and values.max(0).tolist() == [2, 3]
    assert np.abs(counts / 2400 - 1 / 12).max() < 0.025


@pytest.mark.parametrize("name", ["CenterCropClips", "ThreeCrops", "RandomCropClips"])
def test_too_large_crops_are_refused(name):
    with pytest.raises(ValueError, match=r"12 does not fit.*10 x 20"):
        build(name, size=12)(results(coordinates(10, 20)))


def test_resize_short_side():
    transform = build("ResizeShortSide", size=12)
    views = transform(results(coordinates(24, 40), coordinates(37, 18)))["views"]
    assert [v.shape[1:3] for v in views] == [(12, 20), (24, 12)]
    sides = set()
    for seed in range(200):
        view = build("ResizeShortSide", size=(5, 8))(results(coordinates(10, 20), seed=seed))[
            "views"
        ][0]
        sides.add(view.shape[1:3])
    assert sides == {(5, 10), (6, 12), (7, 14), (8, 16)}


def test_resizing_is_bilinear_without_antialiasing():
    view = np.random.default_rng(0).integers(0, 256, (3, 17, 23, 3), dtype=np.uint8)
    box, size = (2, 3, 11, 13), (7, 19)
    window = torch.from_numpy(view[:, 2:13, 3:16]).permute(0, 3, 1, 2).double()
    expected = torch.nn.functional.interpolate(window, size, mode="bilinear", align_corners=False)
    ours = torch.from_numpy(crop_and_resize(view, box, size)).permute(0, 3, 1, 2).double()
    assert (ours - expected).abs().max() <= 1.0
    assert (ours - expected).abs().mean() < 0.35


def test_the_whole_view_gets_one_box():
    view = np.repeat(coordinates(64, 96, frames=1), 5, axis=0)
    state = build("RandomResizedCropClips", size=32)(results(view, view, seed=1))
    first, second = state["views"]
    assert (
        first.shape == (5, 32, 32, 3) and (first == first[0]).all() and (second == second[0]).all()
    )
    assert (first != second).any()


def reference_box(height, width, area, aspect, draws):
    """The published rule, written for one draw after the other."""
    for a, r, y, x in draws:
        target = (area[0] + (area[1] - area[0]) * a) * height * width
        ratio = np.exp(np.log(aspect[0]) + (np.log(aspect[1]) - np.log(aspect[0])) * r)
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if w <= width and h <= height:
            return math.floor(y * (height - h + 1)), math.floor(x * (width - w + 1)), h, w
    return None


def test_random_box_equals_the_rule():
    rng = np.random.default_rng(0)
    for _ in range(500):
        height, width = rng.integers(20, 300, 2).tolist()
        draws = rng.random((10, 4))
        expected = reference_box(height, width, (0.2, 0.766), (0.75, 4 / 3), draws)
        if expected is not None:
            assert random_box((height, width), (0.2, 0.766), (0.75, 4 / 3), draws) == expected


def test_random_box_statistics():
    rng = np.random.default_rng(0)
    # up to half of a square frame every draw fits, so that nothing is skewed by rejection
    boxes = [
        random_box((400, 400), (0.1, 0.5), (0.75, 4 / 3), rng.random((10, 4))) for _ in range(4000)
    ]
    top, left, height, width = np.array(boxes).T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 400).all() and (left + width <= 400).all()
    share = height * width / 400**2
    assert 0.098 < share.min() and share.max() < 0.502
    assert share.mean() == pytest.approx(0.3, abs=0.006)
    log_ratio = np.log(width / height)
    assert abs(log_ratio).max() < np.log(4 / 3) + 0.02
    assert abs(log_ratio.mean()) < 0.02
    # uniform in the logarithm: as many within half of the range as outside of it
    assert np.mean(abs(log_ratio) < np.log(4 / 3) / 2) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("size", "expected"),
    [((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))],
)
def test_fallback_is_the_largest_central_box(size, expected):
    never = np.full((10, 4), 0.999)  # an area of 76.6 % never fits so thin a frame
    assert random_box(size, (0.2, 0.766), (0.75, 4 / 3), never) == expected


def test_same_seed_same_crop_whatever_came_before():
    view = coordinates(64, 96)
    transform = build("RandomResizedCropClips", size=16)
    first = transform(results(view, seed=5))["views"][0]
    cv2.setRNGSeed(1)
    np.random.seed(99)
    assert (transform(results(view, seed=5))["views"][0] == first).all()


# -- packing and arguments -----------------------------------------------------------------


def test_pack():
    state = {**results(coordinates(4, 5), coordinates(4, 5)), "label": np.int64(3), "index": 7,
             "seed": 2**62, "path": "x"}  # fmt: skip
    sample = build("PackClips")(state)
    assert set(sample) == {"inputs", "label", "index", "seed"}
    assert [tuple(t.shape) for t in sample["inputs"]] == [(2, 4, 5, 3)] * 2
    assert all(t.dtype == torch.uint8 for t in sample["inputs"])
    assert (sample["label"], sample["index"], sample["seed"]) == (3, 7, 2**62)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("RandomClips", {"clip_duration": 0, "num_frames": 8}, "clip_duration"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 0}, "num_frames"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 8, "diff_prob": 1.2}, "diff_prob"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 8, "duration_jitter": 1}, "jitter"),
        ("UniformClips", {"clip_duration": 1, "num_frames": 8, "num_clips": 0}, "num_clips"),
        ("RandomResizedCropClips", {"size": 8, "area": (0.5, 0.2)}, "area"),
        ("ResizeShortSide", {"size": (9, 5)}, "size"),
        ("CenterCropClips", {"size": 0}, "size"),
        ("OpenVideo", {"backend": "magic"}, "magic"),
        ("OpenVideo", {"num_threads": 0}, "num_threads"),
    ],
)
def test_wrong_arguments(name, options, word):
    with pytest.raises(ValueError, match=word):
        build(name, **options)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="num_frmes"):
        build("UniformClips", clip_duration=1.0, num_frmes=8)
