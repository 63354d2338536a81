"""Sizes, offsets and pixels against Pillow."""

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames
from PIL import Image

from sce_video.datasets.readers.base import ArrayFrames
from sce_video.datasets.transforms import PackVideo, ResizeAsProcessor, cut_views
from sce_video.datasets.transforms.lazy_view import LazyView

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
