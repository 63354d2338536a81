"""Resizing and random crops of image files against Pillow, at full and at reduced scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from sce_video.datasets import ImageDataset, SampleRequest, VideoDecodeError
from sce_video.datasets.readers.images import EncodedImage
from sce_video.datasets.transforms import LoadImage, PackClips, RandomResizedCropClips
from sce_video.datasets.transforms.lazy_view import RESIZES, render_views


def by_pil(image, size, how=Image.BILINEAR):
    return np.asarray(Image.fromarray(image).resize(size[::-1], how)).astype(int)


def resized(image, size, name):
    target = np.empty((*size, 3), dtype=np.uint8)
    RESIZES[name](image, target)
    return target.astype(int)


@pytest.mark.parametrize("size", [(100, 90), (137, 201), (40, 128), (300, 340)])
@pytest.mark.parametrize("name", ["pil", "pil_bicubic"])
def test_pil_within_rounding(size, name):
    image = photograph_like(150, 160)[7:140, 3:150]  # a part of a larger image
    how, bound = {"pil": (Image.BILINEAR, 1), "pil_bicubic": (Image.BICUBIC, 2)}[name]
    assert np.abs(resized(image, size, name) - by_pil(image, size, how)).max() <= bound


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
        ((10, 20, 64, 64), (90, 90), 1),
        ((9, 21, 241, 280), (30, 30), 8),
    ],
)
def test_the_factor_leaves_the_pixels_of_the_view(jpeg, box, size, factor):
    (view,) = load(jpeg[0])
    view = view.crop_and_resize(box, size)
    assert isinstance(view.frames, EncodedImage) and view.frames.reduce(view.reduction) == factor
    assert view.frames[0].shape == (-(-250 // factor), -(-301 // factor), 3)


def test_one_small_view_keeps_the_full_size(jpeg):
    """All views of a sample are cut from one decoded image."""
    large, small = load(jpeg[0], num_views=2)
    large = large.crop_and_resize((0, 0, 250, 301), (60, 60))
    small = small.crop_and_resize((5, 5, 70, 70), (60, 60))
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


def test_a_damaged_file_is_a_bad_file_when_it_is_decoded(jpeg, tmp_path):
    path = tmp_path / "cut.jpg"
    path.write_bytes(jpeg[0].read_bytes()[:-2000])
    (view,) = load(path)  # the header is fine
    results = {"views": [view.crop_and_resize((0, 0, 200, 200), (60, 60))]}
    with pytest.raises(VideoDecodeError, match=r"cut\.jpg: is not an image that can be decoded"):
        PackClips()({**results, "label": 0, "index": 0, "seed": 0})


def ours(path, size, seed, **options):
    """(2, size, size, 3), the views of the only image of a folder, drawn from this seed."""
    pipeline = [LoadImage(2, **options), RandomResizedCropClips(size, AREA, ASPECT), PackClips()]
    sample = ImageDataset(str(path.parent), pipeline=pipeline)[SampleRequest(0, seed)]
    return np.concatenate([view.numpy() for view in sample["inputs"]]).astype(int)


# -- random resized crops against torchvision's algorithm on Pillow ------------------------

AREA, ASPECT, TRIES = (0.2, 1.0), (3 / 4, 4 / 3), 10


def torchvision_box(height, width, draws):
    """``RandomResizedCrop.get_params`` of torchvision, with these draws; top, left, h, w."""
    for u_area, u_aspect, u_top, u_left in draws:
        target = height * width * (AREA[0] + u_area * (AREA[1] - AREA[0]))
        low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
        aspect = math.exp(low + u_aspect * (high - low))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(u_top * (height - h + 1)), int(u_left * (width - w + 1)), h, w
    pytest.fail("no draw fits: choose another seed")


def crops_by_pil(path, size, seed, num_views=2):
    """The views that torchvision's RandomResizedCrop cuts of the image Pillow decodes."""
    image = Image.open(path).convert("RGB")
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(num_views):
        top, left, h, w = torchvision_box(image.height, image.width, rng.random((TRIES, 4)))
        part = image.crop((left, top, left + w, top + h))
        views.append(np.asarray(part.resize((size, size), Image.Resampling.BILINEAR)))
    return np.stack(views).astype(int)


@pytest.mark.parametrize(
    ("size", "frame", "name", "options", "largest", "mean"),
    [
        (32, (40, 53), "a.png", {}, 1, 1),  # within 1 of 255: boxes equal, resizing up to rounding
        (96, (120, 110), "a.png", {}, 1, 1),
        (112, (190, 250), "a.jpg", {}, 3, 0.25),  # the decoders differ by rounding
        (112, (190, 250), "a.jpg", {"reduced": True}, 3, 0.25),  # smaller than 2 x 112: full size
        (48, (600, 800), "a.jpg", {"reduced": True}, 255, 4),  # decoded at 1/4
    ],
)
def test_crops_are_those_of_pil(tmp_path, size, frame, name, options, largest, mean):
    path = tmp_path / name
    Image.fromarray(photograph_like(*frame)).save(path, quality=90)
    found, expected = ours(path, size, 2, **options), crops_by_pil(path, size, 2)
    difference = np.abs(found - expected)
    assert difference.shape == (2, size, size, 3)
    assert difference.max() <= largest and difference.mean() <= mean
    shifted = np.abs(expected[:, :, 1:] - expected[:, :, :-1]).mean()  # by a pixel
    assert difference.mean() < 0.5 * shifted
    assert np.array_equal(found, ours(path, size, 2)) == (largest < 255)


def photograph_like(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(H, W, 3) uint8: noise whose amplitude falls as 1/frequency, as that of photographs does."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    spectra = [np.fft.rfft2(rng.standard_normal((height, width))) / frequency for _ in range(3)]
    planes = [np.fft.irfft2(spectrum, s=(height, width)) for spectrum in spectra]
    image = np.stack([120 + 45 * plane / plane.std() for plane in planes], axis=-1)
    return np.clip(image, 0, 255).astype(np.uint8)
