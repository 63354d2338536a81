"""Resizing against Pillow, and JPEG files decoded at reduced scale against Pillow's crops."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.photographs import photograph_like
from PIL import Image

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.readers.images import EncodedImage
from sce_video.datasets.transforms import LoadImage, PackClips
from sce_video.datasets.transforms.lazy_view import RESIZES, render_views


def by_pil(image, size, how=Image.BILINEAR):
    return np.asarray(Image.fromarray(image).resize(size[::-1], how)).astype(int)


def resized(image, size, name):
    target = np.empty((*size, 3), dtype=np.uint8)
    RESIZES[name](image, target)
    return target.astype(int)


SIZES = [(100, 90), (137, 201), (64, 64), (40, 128), (200, 130), (300, 340)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["pil", "pil_bicubic"])
def test_pil_within_rounding(size, name):
    image = photograph_like(150, 160)[7:140, 3:150]  # a part of a larger image
    how, bound = {"pil": (Image.BILINEAR, 1), "pil_bicubic": (Image.BICUBIC, 2)}[name]
    assert np.abs(resized(image, size, name) - by_pil(image, size, how)).max() <= bound


def test_linear_is_what_videos_have():
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    image[:, 1::2] = 200
    assert resized(image, (4, 2), "linear").max() == 100  # the mean of two, by hand


# -- reduced decoding ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory):
    """A JPEG file of 250 x 301, and what Pillow decodes of it."""
    path = tmp_path_factory.mktemp("jpeg") / "a.jpg"
    Image.fromarray(photograph_like(250, 301)).save(path, quality=92)
    return path, np.asarray(Image.open(path).convert("RGB"))


def load(path, num_views=1, resize="pil"):
    return LoadImage(num_views, resize=resize, reduced=True)({"path": str(path)})["views"]


@pytest.mark.parametrize(
    ("box", "size", "factor"),
    [
        ((10, 20, 100, 120), (60, 61), 1),
        ((10, 20, 120, 121), (60, 60), 2),
        ((0, 0, 250, 301), (62, 62), 4),
        ((10, 20, 64, 64), (64, 64), 1),
        ((10, 20, 64, 64), (90, 90), 1),
        ((9, 21, 241, 280), (30, 30), 8),
    ],
)
def test_the_factor_leaves_the_pixels_of_the_view(jpeg, box, size, factor):
    (view,) = load(jpeg[0])
    view = view.crop_and_resize(box, size)
    assert isinstance(view.frames, EncodedImage) and view.frames.reduce(view.reduction) == factor
    assert view.frames[0].shape == (-(-250 // factor), -(-301 // factor), 3)


def test_without_reduction_the_pixels_are_those_of_pil(jpeg):
    path, image = jpeg
    (view,) = load(path)
    found = view.crop_and_resize((10, 20, 150, 160), (100, 100)).render()[0].astype(int)
    assert np.abs(found - by_pil(image[10:160, 20:180], (100, 100))).max() <= 4  # decoders round


def test_one_small_view_keeps_the_full_size(jpeg):
    """All views of a sample are cut from one decoded image."""
    large, small = load(jpeg[0], num_views=2)
    large, small = (
        large.crop_and_resize((0, 0, 250, 301), (60, 60)),
        small.crop_and_resize((5, 5, 70, 70), (60, 60)),
    )
    outs = [np.empty(view.shape, dtype=np.uint8) for view in (large, small)]
    render_views([large, small], outs)
    assert large.frames[0].shape == (250, 301, 3)
    (alone,) = load(jpeg[0])
    assert np.array_equal(outs[1], alone.crop_and_resize((5, 5, 70, 70), (60, 60)).render())


def test_other_formats_are_decoded_whole(tmp_path):
    image = photograph_like(64, 80)
    Image.fromarray(image).save(tmp_path / "a.JPEG", "PNG")  # ImageNet has such a file
    (view,) = load(tmp_path / "a.JPEG")
    assert np.array_equal(np.asarray(view)[0], image)
    half = view.crop_and_resize((0, 0, 64, 80), (32, 40)).render()[0].astype(int)
    assert np.abs(half - by_pil(image, (32, 40))).max() <= 1


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_rotated_images_are_upright(tmp_path, orientation):
    from PIL import ImageOps

    image = Image.fromarray(photograph_like(64, 96))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.jpg", quality=95, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg")).convert("RGB")
    (view,) = load(tmp_path / "a.jpg")
    assert view.shape[1:3] == upright.size[::-1]
    assert np.abs(np.asarray(view)[0].astype(int) - np.asarray(upright)).mean() < 0.5


def test_a_damaged_file_is_a_bad_file_when_it_is_decoded(jpeg, tmp_path):
    path = tmp_path / "cut.jpg"
    path.write_bytes(jpeg[0].read_bytes()[:-2000])
    (view,) = load(path)  # the header is fine
    results = {"views": [view.crop_and_resize((0, 0, 200, 200), (60, 60))]}
    with pytest.raises(VideoDecodeError, match=r"cut\.jpg: is no image that can be decoded"):
        PackClips()({**results, "label": 0, "index": 0, "seed": 0})


def test_a_deadline_holds_for_late_decoding(jpeg):
    transform = LoadImage(1, reduced=True)
    (view,) = transform({"path": str(jpeg[0]), "deadline": None})["views"]
    view.frames._deadline = 0.0
    with pytest.raises(VideoDecodeError, match="timed out"):
        view.render()
