"""Crops and resizing."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames
from PIL import Image

from sce_video.datasets.readers.base import ArrayFrames
from sce_video.datasets.transforms import (
    LazyView,
    PackVideo,
    PillowResizeCenterCrop,
    ResizeAsProcessor,
    cut_views,
    random_box,
)
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


def test_squares_are_cut_at_the_offsets_for_all_frames():
    """torchvision's ``center_crop`` rounds half to even; three lie along the long side."""
    views = [coordinates(9, 14), coordinates(20, 11)]
    center = build("CenterCropClips", size=8)(results(*views))["views"]
    assert [corner(view) for view in center] == [(0, 3), (6, 2)]
    three = build("ThreeCrops", size=8)(results(*views))["views"]
    assert [corner(v) for v in three] == [(1, 0), (1, 3), (1, 6), (0, 2), (6, 2), (12, 2)]
    boxes = build("RandomResizedCropClips", size=8)(results(*views))["views"]
    assert all(view.shape == (2, 8, 8, 3) for view in [*center, *three, *boxes])
    assert all((view[0] == view[1]).all() for view in boxes)


def cut_from_a_black_border(view, top, left, size, padding):
    """Pixel by pixel: what lies outside of the frame is black."""
    frames, height, width, _ = view.shape
    expected = np.zeros((frames, size, size, 3), dtype=np.uint8)
    for row in range(size):
        for column in range(size):
            y, x = top + row - padding, left + column - padding
            if 0 <= y < height and 0 <= x < width:
                expected[:, row, column] = view[:, y, x]
    return expected


@pytest.mark.parametrize("lazy", [False, True])
def test_random_crop_with_a_border_is_one_of_the_loop(lazy):
    """CIFAR's crop: 32 of 40 x 40 pixels, 81 positions."""
    view = np.random.default_rng(0).integers(1, 256, (1, 32, 32, 3), dtype=np.uint8)
    windows = {
        cut_from_a_black_border(view, top, left, 32, 4).tobytes(): (top, left)
        for top in range(9)
        for left in range(9)
    }
    given = LazyView(ArrayFrames(view), np.arange(1)) if lazy else view
    transform, seen = build("RandomCropClips", size=32, padding=4), set()
    for seed in range(300):
        (crop,) = transform(results(given, seed=seed))["views"]
        assert crop.shape == (1, 32, 32, 3) and crop.dtype == np.uint8
        seen.add(windows[crop.tobytes()])
    assert len(seen) > 70 and {(0, 0), (8, 8)} & seen


@pytest.mark.parametrize("name", ["CenterCropClips", "ThreeCrops", "RandomCropClips"])
def test_too_large_crops_are_refused(name):
    with pytest.raises(ValueError, match=r"12 does not fit.*10 x 20"):
        build(name, size=12)(results(coordinates(10, 20)))


def test_inverse_uniform_short_side():
    """1 / size is uniform between 1 / 320 and 1 / 256, as in SlowFast's random_short_side_scale."""
    transform = build("ResizeShortSide", size=(256, 320), inverse_uniform=True)
    view = LazyView(ArrayFrames(coordinates(300, 400, 1)), np.arange(1))
    for draw, side in [(0.0, 320), (0.25, 301), (0.5, 284), (0.75, 269), (1 - 1e-9, 256)]:
        rng = SimpleNamespace(random=lambda draw=draw: draw)
        (resized,) = transform({"views": [view], "rng": rng})["views"]
        assert resized.shape[1:3] == (side, 400 * side // 300)


def test_resize_short_side():
    transform = build("ResizeShortSide", size=12)
    views = transform(results(coordinates(24, 40), coordinates(37, 18)))["views"]
    assert [v.shape[1:3] for v in views] == [(12, 20), (24, 12)]
    drawn = build("ResizeShortSide", size=(5, 8))(results(*[coordinates(10, 20)] * 60))["views"]
    assert {view.shape[1:3] for view in drawn} == {(5, 10), (6, 12), (7, 14), (8, 16)}


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
    for _ in range(200):
        height, width = rng.integers(20, 300, 2).tolist()
        draws = rng.random((10, 4))
        expected = reference_box(height, width, (0.2, 0.766), (0.75, 4 / 3), draws)
        if expected is not None:
            assert random_box((height, width), (0.2, 0.766), (0.75, 4 / 3), draws) == expected
    never = np.full((10, 4), 0.999)  # an area of 76.6 % never fits so thin a frame
    for size, central in (((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))):
        assert random_box(size, (0.2, 0.766), (0.75, 4 / 3), never) == central


# -- Resize and centre crop as torchvision's of PIL images


# -- Sizes, offsets and pixels against Pillow

FILTERS = {"bilinear": (Image.Resampling.BILINEAR, 1), "bicubic": (Image.Resampling.BICUBIC, 2)}


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("height", "width"), [(58, 77), (47, 33)])
def test_resize_and_crop_are_those_of_pillow(interpolation, height, width):
    frames = moving_frames(2, height, width)
    size = (int(36 * width / min(height, width)), int(36 * height / min(height, width)))
    kind, tolerance = FILTERS[interpolation]
    for step, offset, bound in (
        (ResizeAsProcessor, math.floor, tolerance),
        (PillowResizeCenterCrop, round, 0),  # half to even, as torchvision
    ):
        (view,) = step(36, 31, interpolation)({"views": [frames]})["views"]
        left, top = (offset((side - 31) / 2) for side in size)
        for ours, frame in zip(view, frames, strict=True):
            image = Image.fromarray(frame).resize(size, kind)
            expected = np.asarray(image.crop((left, top, left + 31, top + 31)))
            assert np.abs(ours.astype(int) - expected.astype(int)).max() <= bound


@pytest.mark.parametrize("steps", [(), (((2, 3, 40, 50), (40, 50)),)])
@pytest.mark.parametrize("order", [[2, 0, 3], [1, 1, 0]])
def test_decoded_frames_give_the_pixels_of_arrays(order, steps):
    frames = moving_frames(4, 58, 77)
    lazy = LazyView(ArrayFrames(frames), np.array(order), steps=steps)
    eager = np.stack([frames[i][2:42, 3:53] if steps else frames[i] for i in order])
    step = ResizeAsProcessor(36, 31)
    assert np.array_equal(step({"views": [lazy]})["views"][0], step({"views": [eager]})["views"][0])


def test_squares_and_what_is_refused():
    (view,) = ResizeAsProcessor((32, 32))({"views": [moving_frames(2, 40, 60)]})["views"]
    assert view.shape == (2, 32, 32, 3)
    for step in (ResizeAsProcessor, PillowResizeCenterCrop):
        for size, crop in ((16, 32), (20, 0), ((32, 16), 8)):
            with pytest.raises(ValueError, match="1 <= crop <= size"):
                step(size, crop)
        with pytest.raises(ValueError, match="one of bilinear, bicubic, got 'area'"):
            step(32, 32, "area")


def test_whole_frames_are_packed_as_views():
    frames = moving_frames(3, 40, 60)
    results = dict(views=[frames], positions=np.array([[0, 2], [1, 1]]), label=0, index=0, seed=0)
    packed = PackVideo(32, 1, whole=True)(results)
    views = cut_views(packed).numpy()
    assert np.array_equal(views, frames[[[0, 2], [1, 1]]])
    with pytest.raises(ValueError, match="one crop"):
        PackVideo(32, 3, whole=True)
