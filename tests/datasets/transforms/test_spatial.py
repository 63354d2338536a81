"""Crops and resizing."""

from __future__ import annotations

import math
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
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


def test_center_crop_offsets():
    """torchvision's ``center_crop``: int(round((length - size) / 2.0)), half to even."""
    for height, width, size, expected in [
        (10, 15, 4, (3, 6)),
        (9, 8, 8, (0, 0)),
        (8, 11, 8, (0, 2)),
        (8, 8, 8, (0, 0)),
        (256, 341, 224, (16, 58)),
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
    """CIFAR's crop: 32 of 40 x 40 pixels, 81 positions, all about equally frequent."""
    rng = np.random.default_rng(0)
    view = rng.integers(1, 256, (2, 32, 32, 3), dtype=np.uint8)
    windows = {
        cut_from_a_black_border(view, top, left, 32, 4).tobytes(): (top, left)
        for top in range(9)
        for left in range(9)
    }
    given = LazyView(ArrayFrames(view), np.arange(2)) if lazy else view
    transform = build("RandomCropClips", size=32, padding=4)
    counts = dict.fromkeys(windows.values(), 0)
    for seed in range(200 if lazy else 3000):
        (crop,) = transform(results(given, seed=seed))["views"]
        assert crop.shape == (2, 32, 32, 3) and crop.dtype == np.uint8
        counts[windows[crop.tobytes()]] += 1
    if not lazy:
        shares = np.array(list(counts.values())) / 3000
        assert shares.min() > 0.4 / 81 and shares.max() < 1.8 / 81


@pytest.mark.parametrize("name", ["CenterCropClips", "ThreeCrops", "RandomCropClips"])
def test_too_large_crops_are_refused(name):
    with pytest.raises(ValueError, match=r"12 does not fit.*10 x 20"):
        build(name, size=12)(results(coordinates(10, 20)))


def test_inverse_uniform_short_side():
    """1 / size is uniform between 1 / 320 and 1 / 256, as in SlowFast's random_short_side_scale."""
    transform = build("ResizeShortSide", size=(256, 320), inverse_uniform=True)
    for draw, side in [(0.0, 320), (0.25, 301), (0.5, 284), (0.75, 269), (1 - 1e-9, 256)]:
        assert transform._draw(SimpleNamespace(random=lambda draw=draw: draw)) == side
    rng = np.random.default_rng(0)
    sides = np.array([transform._draw(rng) for _ in range(20_000)])
    assert sides.min() == 256 and sides.max() == 320
    # E[size] = ln(b / a) / (1 / a - 1 / b) = 285.6; drawn uniformly it is 288
    assert sides.mean() == pytest.approx(np.log(320 / 256) / (1 / 256 - 1 / 320), abs=0.5)
    assert build("ResizeShortSide", size=7, inverse_uniform=True)._draw(rng) == 7
    view = transform(results(coordinates(512, 640), seed=1))["views"][0]
    assert 256 <= min(view.shape[1:3]) <= 320


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


# -- Resize and centre crop as torchvision's of PIL images


def smooth(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(0, 255, (1, 3, height // 4, width // 4)))
    image = F.interpolate(coarse, size=(height, width), mode="bilinear")
    return image[0].permute(1, 2, 0).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(97, 64), (48, 63), (20, 28)])
def test_pixels_are_those_of_an_antialiased_resize(size, interpolation):
    """torch's own antialiased interpolation, cropped at torchvision's offset, within 1 of 255."""
    image = smooth(*size)
    step = PillowResizeCenterCrop(size=32, crop=28, interpolation=interpolation)
    (view,) = step({"views": [image[None]]})["views"]
    assert view.shape == (1, 28, 28, 3) and view.dtype == np.uint8
    short = min(size)
    height, width = (int(32 * side / short) for side in size)
    whole = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    resized = F.interpolate(whole, size=(height, width), mode=interpolation, antialias=True)
    top, left = round((height - 28) / 2), round((width - 28) / 2)
    expected = resized[0, :, top : top + 28, left : left + 28].permute(1, 2, 0).clamp(0, 255)
    difference = np.abs(view[0].astype(float) - expected.numpy())
    assert difference.max() <= 1.5 and difference.mean() < 0.5


@pytest.mark.parametrize(
    ("size", "top", "left"),
    [((9, 12), 0, 2), ((11, 8), 2, 0), ((13, 8), 2, 0)],  # 1.5 to 2, 2.5 to 2: half to even
)
def test_offsets_are_rounded_half_to_even(size, top, left):
    image = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(1, *size, 3)
    crop = min(size) if size != (9, 12) else 8
    (view,) = PillowResizeCenterCrop(min(size), crop)({"views": [image]})["views"]
    expected = image[:, top : top + crop, left : left + crop]
    np.testing.assert_array_equal(view, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(size=20, crop=21), "1 <= crop <= size, got crop 21 and size 20"),
        (dict(size=20, crop=0), "1 <= crop"),
        (dict(size=20, crop=20, interpolation="area"), "bilinear, bicubic, got 'area'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        PillowResizeCenterCrop(**settings)


# -- Sizes, offsets and pixels against Pillow

FILTERS = {"bilinear": (Image.Resampling.BILINEAR, 1), "bicubic": (Image.Resampling.BICUBIC, 2)}


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("height", "width"), [(58, 77), (77, 58), (33, 47)])
def test_resize_and_crop_are_those_of_pillow(interpolation, height, width):
    frames = moving_frames(2, height, width)
    step = ResizeAsProcessor(36, 31, interpolation)
    (view,) = step({"views": [frames]})["views"]
    size = (int(36 * width / min(height, width)), int(36 * height / min(height, width)))
    left, top = ((side - 31) // 2 for side in size)
    kind, tolerance = FILTERS[interpolation]
    for ours, frame in zip(view, frames, strict=True):
        image = Image.fromarray(frame).resize(size, kind)
        expected = np.asarray(image.crop((left, top, left + 31, top + 31)))
        assert np.abs(ours.astype(int) - expected.astype(int)).max() <= tolerance


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
    for size, crop in ((16, 32), (0, None), ((32, 16), None)):
        with pytest.raises(ValueError, match="1 <= crop <= size"):
            ResizeAsProcessor(size, crop)
    with pytest.raises(ValueError, match="interpolation must be one of"):
        ResizeAsProcessor(32, 32, "nearest")


def test_whole_frames_are_packed_as_views():
    frames = moving_frames(3, 40, 60)
    results = dict(views=[frames], positions=np.array([[0, 2], [1, 1]]), label=0, index=0, seed=0)
    packed = PackVideo(32, 1, whole=True)(results)
    views = cut_views(packed).numpy()
    assert np.array_equal(views, frames[[[0, 2], [1, 1]]])
    with pytest.raises(ValueError, match="one crop"):
        PackVideo(32, 3, whole=True)
