"""Lazy views give the pixels of eager crops and resizing."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from helpers.readers import rgb_difference

from sce_video.datasets.readers.base import ArrayFrames
from sce_video.datasets.transforms.lazy_view import LazyView, render_views
from sce_video.datasets.transforms.spatial import crop_and_resize

FRAMES = np.random.default_rng(0).integers(0, 256, (9, 40, 57, 3), dtype=np.uint8)
ORDER = np.array([8, 0, 3, 3, 1])
PARTNERS = np.array([7, 1, 4, 2, 1])


class Counting(ArrayFrames):
    """Frames that count how often each is indexed."""

    def __init__(self, frames):
        super().__init__(frames)
        self.counts = [0] * len(frames)

    def __getitem__(self, index):
        self.counts[index] += 1
        return super().__getitem__(index)


def eager(view, steps):
    """Slice, then resize frame by frame, one step after the other."""
    for (top, left, height, width), size in steps:
        view = view[:, top : top + height, left : left + width]
        view = np.stack([cv2.resize(f, size[::-1], interpolation=cv2.INTER_LINEAR) for f in view])
    return view


STEPS = {
    "nothing": [],
    "crop": [((3, 5, 20, 30), (20, 30))],
    "crop_of_crop": [((3, 5, 20, 30), (20, 30)), ((1, 2, 10, 11), (10, 11))],
    "resized_crop": [((3, 5, 20, 30), (16, 17))],
    "crop_then_resize_of_a_part": [((3, 5, 20, 30), (20, 30)), ((4, 1, 9, 8), (32, 32))],
    "smaller_then_crop": [((0, 0, 40, 57), (16, 22)), ((0, 3, 16, 16), (16, 16))],
    "resize_crop_resize": [((0, 0, 40, 57), (64, 91)), ((7, 11, 48, 48), (12, 13))],
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("difference", [False, True])
def test_a_lazy_view_equals_eager_steps(name, difference):
    base = rgb_difference(FRAMES, ORDER, PARTNERS) if difference else FRAMES[ORDER]
    expected = eager(base, STEPS[name])
    view = LazyView(ArrayFrames(FRAMES), ORDER, PARTNERS if difference else None)
    for box, size in STEPS[name]:
        view = crop_and_resize(view, box, size)
    assert view.shape == expected.shape and len(view) == 5
    assert np.asarray(view).dtype == np.uint8 and (np.asarray(view) == expected).all()
    out = np.zeros((7, *expected.shape[1:]), dtype=np.uint8)  # a part of a larger array
    render_views([view], [out[1:6]])
    assert (out[1:6] == expected).all() and not out[0].any() and not out[6].any()


def test_frames_are_converted_once_and_only_when_rendered():
    frames = Counting(FRAMES)
    views = [LazyView(frames, order) for order in (ORDER, ORDER[::-1], np.array([3]))]
    views = [crop_and_resize(view, (0, 0, 20, 20), (8, 8)) for view in views]
    assert views[0].shape == (5, 8, 8, 3) and not any(frames.counts)
    outs = [np.empty(view.shape, np.uint8) for view in views]
    render_views(views, outs)
    assert frames.counts == [1, 1, 0, 1, 0, 0, 0, 0, 1]
    assert (outs[1] == outs[0][::-1]).all()
