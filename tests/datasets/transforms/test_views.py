"""Views: crops, resizing, boxes, and packing into a sample."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.readers import FramesReader
from helpers.tiny_encoder import moving_frames
from PIL import Image

from sce_video.datasets import collate_boxes
from sce_video.datasets.readers.base import ArrayFrames
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    FlipWithBoxes,
    LazyView,
    PackVideo,
    PillowResizeCenterCrop,
    RandomCropClips,
    RandomSegmentClip,
    ResizeAsProcessor,
    ResizeShortSide,
    UniformClips,
    cut_views,
)
from sce_video.datasets.transforms.decoding import pack_views
from sce_video.datasets.transforms.spatial import crop_offsets, random_box
from sce_video.inference.multi_view import _cut_on_device, view_chunks
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
    """torchvision's ``center_crop`` rounds half to even."""
    views = [coordinates(9, 14), coordinates(20, 11)]
    center = build("CenterCropClips", size=8)(results(*views))["views"]
    assert [corner(view) for view in center] == [(0, 3), (6, 2)]
    boxes = build("RandomResizedCropClips", size=8)(results(*views))["views"]
    assert all(view.shape == (2, 8, 8, 3) for view in [*center, *boxes])
    assert all((view[0] == view[1]).all() for view in boxes)


def test_random_crop_with_a_border_is_a_window():
    """CIFAR's crop: 32 of 40 x 40 pixels, 81 positions, outside of the frame black."""
    view = np.random.default_rng(0).integers(1, 256, (1, 32, 32, 3), dtype=np.uint8)
    bordered = np.zeros((1, 40, 40, 3), dtype=np.uint8)
    bordered[:, 4:36, 4:36] = view
    windows = {
        bordered[:, top : top + 32, left : left + 32].tobytes(): (top, left)
        for top in range(9)
        for left in range(9)
    }
    given = [view] * 200 + [LazyView(ArrayFrames(view), np.arange(1))] * 20
    crops = build("RandomCropClips", size=32, padding=4)(results(*given))["views"]
    seen = {windows[np.asarray(crop).tobytes()] for crop in crops}
    assert len(seen) > 60 and {0, 8} <= {top for top, _ in seen}


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


def test_a_box_that_never_fits_is_the_largest_central_one():
    never = np.full((10, 4), 0.999)  # an area of 76.6 % never fits so thin a frame
    for size, central in (((10, 100), (0, 43, 10, 13)), ((100, 10), (43, 0, 13, 10))):
        assert random_box(size, (0.2, 0.766), (0.75, 4 / 3), never) == central


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


@pytest.mark.parametrize("order", [[2, 0, 3], [1, 1, 0]])
def test_decoded_frames_give_the_pixels_of_arrays(order):
    frames, step = moving_frames(4, 58, 77), ResizeAsProcessor(36, 31)
    for steps in ((), (((2, 3, 40, 50), (40, 50)),)):
        lazy = LazyView(ArrayFrames(frames), np.array(order), steps=steps)
        eager = np.stack([frames[i][2:42, 3:53] if steps else frames[i] for i in order])
        one, other = (step({"views": [view]})["views"][0] for view in (lazy, eager))
        assert np.array_equal(one, other)


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


WRONG = [
    ("RandomClips", {"clip_duration": 0, "num_frames": 8}, "clip_duration"),
    ("RandomClips", {"clip_duration": 1, "num_frames": 8, "diff_prob": 1.2}, "diff_prob"),
    ("RandomClips", {"clip_duration": 1, "num_frames": 8, "duration_jitter": 1}, "jitter"),
    ("RandomResizedCropClips", {"size": 8, "area": (0.5, 0.2)}, "area"),
    ("ResizeShortSide", {"size": (9, 5)}, "size"),
    ("CenterCropClips", {"size": 0}, "size"),
    ("OpenVideo", {"backend": "magic"}, "magic"),
    ("OpenVideo", {"num_threads": 0}, "num_threads"),
    ("PackVideo", {"crop_size": 8, "num_crops": 5}, "got 5"),
    ("PackVideo", {"crop_size": 8, "whole": True}, "one crop"),
    ("FlipWithBoxes", {"prob": 1.5}, "prob"),
]


def test_wrong_arguments():
    for name, options, word in WRONG:
        with pytest.raises(ValueError, match=word):
            build(name, **options)
    with pytest.raises(ValueError, match="256 pixels does not fit into frames of 200 x 300"):
        crop_offsets((200, 300), 256, 3)


def test_targets_are_used_if_all_shapes_match():
    views = [coordinates(4, 5), coordinates(2, 3)]
    for shapes, used in (
        ([(2, 4, 5, 3), (2, 2, 3, 3)], True),
        ([(2, 4, 5, 3), (2, 2, 4, 3)], False),
        ([(2, 4, 5, 3)], False),
        ([(1, 4, 5, 3), (1, 2, 3, 3)], False),
    ):
        targets = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes]
        packed = pack_views(views, targets)
        assert [tensor.tolist() for tensor in packed] == [view.tolist() for view in views]
        assert (packed[0].data_ptr() == targets[0].data_ptr()) == used
        assert used or all((target == 0).all() for target in targets)


# -- The 30-view test against tables written by hand: which frames, which crops, in which order


def numbers(count, fps):
    """Frame i of a video of constant rate is filled with i in red; rows and columns in the rest."""
    frames = np.zeros((count, 8, 11, 3), dtype=np.uint8)
    frames[..., 0] = np.arange(count)[:, None, None]
    frames[..., 1] = np.arange(8)[:, None]
    frames[..., 2] = np.arange(11)
    return FramesReader(frames, fps)


def packed(reader, sampler, crop_size=8, num_crops=3):
    results = {"reader": reader, "rng": np.random.default_rng(0), "label": 3, "index": 5, "seed": 7}
    return PackVideo(crop_size, num_crops)(DecodeSharedFrames()(sampler(results)))


# 10 clips of 2.56 s, 8 frames. Clip k starts at k * (duration - 2.56) / 9 seconds; its frames are
# those that begin in [start, start + 2.56), n of them; kept are first + i * (n - 1) // 7.
_64 = [0, 9, 18, 27, 36, 45, 54, 63]  # n = 64
_77 = [0, 10, 21, 32, 43, 54, 65, 76]  # n = 77
_76 = [0, 10, 21, 32, 42, 53, 64, 75]  # n = 76
TABLE = {
    # frames, rate: first frame and offsets of each of the ten clips
    (250, 25.0): [(first, _64) for first in (0, 21, 42, 62, 83, 104, 124, 145, 166, 186)],
    # 3 s at 30: starts are 1.4667 k frames, ends 76.8 + 1.4667 k; the last end falls on frame 90
    (90, 30.0): [(first, _77) for first in (0, 2, 3, 5, 6, 8, 9, 11, 12)] + [(14, _76)],
    # 1.2 s: shorter than a clip, all ten are the whole video, n = 30
    (30, 25.0): [(0, [0, 4, 8, 12, 16, 20, 24, 29])] * 10,
    # 5 frames for 8: frames repeat
    (5, 25.0): [(0, [0, 0, 1, 1, 2, 2, 3, 4])] * 10,
    (1, 25.0): [(0, [0] * 8)] * 10,
}


@pytest.mark.parametrize("video", TABLE, ids=lambda v: f"{v[0]}frames{v[1]:g}fps")
def test_frames_of_ten_clips(video):
    reader = numbers(*video)
    sample = packed(reader, UniformClips(clip_duration=2.56, num_frames=8, num_clips=10))
    shown = sample["frames"][sample["positions"], 0, 0, 0].tolist()
    assert shown == [[first + offset for offset in offsets] for first, offsets in TABLE[video]]
    (decoded,) = reader.calls  # one pass over the file
    assert decoded == sorted(set(decoded)), "each frame once, in order"


# height, width, crop: offsets (top, left) of the three crops
CROPS = {
    (256, 340, 256): [(0, 0), (0, 42), (0, 84)],
    (256, 455, 256): [(0, 0), (0, 100), (0, 199)],  # 199 / 2 rounds up
    (256, 256, 256): [(0, 0), (0, 0), (0, 0)],
    (341, 256, 256): [(0, 0), (43, 0), (85, 0)],
    (130, 170, 128): [(1, 0), (1, 21), (1, 42)],
}


@pytest.mark.parametrize("shape", CROPS, ids=str)
def test_offsets_of_three_crops(shape):
    height, width, size = shape
    assert crop_offsets((height, width), size, 3) == CROPS[shape]
    central = tuple(round((side - size) / 2.0) for side in (height, width))  # torchvision's
    assert crop_offsets((height, width), size, 1) == [central]


@pytest.mark.parametrize("max_views", [1, 7, 100])
def test_views_in_clip_major_order_whatever_the_chunks(max_views):
    sample = packed(numbers(90, 30.0), UniformClips(2.56, 8, 10))
    chunks = list(view_chunks(sample, "cpu", max_views))
    assert max(map(len, chunks)) == min(max_views, 30)
    parts = [(start, min(start + max_views, 30)) for start in range(0, 30, max_views)]
    for chunk, other in zip(chunks, _cut_on_device(sample, "cpu", parts), strict=True):
        assert torch.equal(chunk, other), "the way of a GPU gives the same"
    views = torch.cat(chunks)
    assert views.shape == (30, 8, 8, 8, 3) and views.dtype == torch.uint8
    for k in range(10):
        first, offsets = TABLE[90, 30.0][k]
        for c, left in enumerate((0, 2, 3)):  # 8 of 11 columns: 0, ceil(1.5), 3
            view = views[3 * k + c]
            assert view[:, 0, 0, 0].tolist() == [first + offset for offset in offsets]
            assert view[0, 0, :, 2].tolist() == list(range(left, left + 8))
            assert view[0, :, 0, 1].tolist() == list(range(8))


def test_segments():
    """One frame per equal segment: centres for testing, anywhere inside for training."""
    for frames, expected in ((40, [*range(2, 40, 5)]), (3, [0, 0, 0, 1, 1, 2, 2, 2])):
        sample = packed(numbers(frames, 25.0), CenterSegmentClip(num_frames=8), num_crops=1)
        assert sample["frames"][sample["positions"][0], 0, 0, 0].tolist() == expected
    reader, rng = numbers(40, 25.0), np.random.default_rng(0)
    drawn = [RandomSegmentClip(8)({"reader": reader, "rng": rng})["clips"] for _ in range(100)]
    frames = np.stack([clip.frames for (clip,) in drawn])
    assert (frames.min(0) == np.arange(0, 40, 5)).all()
    assert (frames.max(0) == np.arange(4, 40, 5)).all()


HEIGHT, WIDTH = 120, 200
BOXES = np.array([[20, 30, 80, 90], [100, 10, 160, 110], [150, 60, 199, 119]], dtype=np.float32)


def sample(seed=0):
    """A black clip with a grey rectangle per box, of a different value each."""
    view = np.zeros((2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for number, (x1, y1, x2, y2) in enumerate(BOXES.astype(int)):
        view[:, y1:y2, x1:x2] = np.maximum(view[:, y1:y2, x1:x2], 80 * (number + 1))
    scale = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], dtype=np.float32)
    return {
        "views": [view],
        "boxes": BOXES / scale,
        "actions": np.eye(3, 80, dtype=np.float32),
        "rng": np.random.default_rng(seed),
        **{"label": -1, "index": 4, "seed": seed},
    }


def value_inside(clip, box):
    """The value in the middle of a box."""
    x1, y1, x2, y2 = (float(v) for v in box)
    return int(clip[0, int((y1 + y2) / 2), int((x1 + x2) / 2), 0])


def test_resizing_without_a_crop():
    packed = build("PackBoxes")(ResizeShortSide(60)(sample()))
    clip = packed["inputs"][0].numpy()
    assert clip.shape == (2, 60, 100, 3)
    np.testing.assert_allclose(packed["boxes"].numpy(), BOXES / 2, atol=1e-4)
    assert [value_inside(clip, box) for box in packed["boxes"]] == [80, 160, 240]


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_follow_random_crops_and_flips(flip):
    dropped, seen = 0, set()
    for seed in range(30):
        results = RandomCropClips(72)(ResizeShortSide((80, 150))(sample(seed)))
        packed = build("PackBoxes")(FlipWithBoxes(flip)(results))
        clip = packed["inputs"][0].numpy()
        assert clip.shape == (2, 72, 72, 3)
        assert len(packed["boxes"]) == len(packed["actions"])
        dropped += 3 - len(packed["boxes"])
        for box, actions in zip(packed["boxes"].numpy(), packed["actions"], strict=True):
            number = int(actions.argmax())
            assert 0 <= box[0] < box[2] <= 72 and 0 <= box[1] < box[3] <= 72
            if min(box[2] - box[0], box[3] - box[1]) < 6:
                continue
            assert abs(value_inside(clip, box) - 80 * (number + 1)) < 12, (seed, number)
            seen.add(number)
    assert dropped > 0 and seen == {0, 1, 2}


def test_collated_boxes_stay_a_list_per_sample():
    crops = [RandomCropClips(64)(ResizeShortSide(80)(sample(seed))) for seed in (1, 2)]
    first, second = map(build("PackBoxes"), crops)
    skipped = {"inputs": None, "failures": [("a", "broken")]}
    batch = collate_boxes([first, skipped, second])
    assert batch["inputs"][0].shape == (2, 2, 64, 64, 3)
    assert [len(b) for b in batch["boxes"]] == [len(first["boxes"]), len(second["boxes"])]
    assert torch.equal(batch["actions"][1], second["actions"])
    assert batch["failures"] == [("a", "broken")] and batch["index"].tolist() == [4, 4]
