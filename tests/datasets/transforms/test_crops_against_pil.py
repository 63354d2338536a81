"""Random resized crops of image files against torchvision's algorithm on Pillow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.photographs import photograph_like
from PIL import Image

from sce_video.datasets import ImageDataset, SampleRequest
from sce_video.datasets.transforms import LoadImage, PackClips, RandomResizedCropClips

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


def by_pil(path, size, seed, num_views=2):
    """The views that torchvision's RandomResizedCrop cuts of the image Pillow decodes."""
    image = Image.open(path).convert("RGB")
    rng = np.random.default_rng(seed)
    views = []
    for _ in range(num_views):
        top, left, h, w = torchvision_box(image.height, image.width, rng.random((TRIES, 4)))
        part = image.crop((left, top, left + w, top + h))
        views.append(np.asarray(part.resize((size, size), Image.Resampling.BILINEAR)))
    return np.stack(views).astype(int)


def ours(folder, size, seed, **options):
    """(2, size, size, 3), the views of the sample with this seed."""
    pipeline = [LoadImage(2, **options), RandomResizedCropClips(size, AREA, ASPECT), PackClips()]
    sample = ImageDataset(str(folder), pipeline=pipeline)[SampleRequest(0, seed)]
    return np.concatenate([view.numpy() for view in sample["inputs"]]).astype(int)


def write(tmp_path, height, width, suffix):
    """A folder with one image, and the path of the image."""
    path = tmp_path / "class" / f"a.{suffix}"
    path.parent.mkdir()
    Image.fromarray(photograph_like(height, width)).save(path, quality=90)
    return path


SIZES = {32: (40, 53), 64: (64, 64), 96: (120, 110), 224: (375, 500)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lossless_crops_are_those_of_pil(tmp_path, size, seed):
    """Within 1 of 255: boxes equal, resizing up to rounding."""
    path = write(tmp_path, *SIZES[size], "png")
    difference = np.abs(ours(tmp_path, size, seed) - by_pil(path, size, seed))
    assert difference.shape == (2, size, size, 3) and difference.max() <= 1


@pytest.mark.parametrize("reduced", [False, True])
def test_jpeg_crops_are_those_of_pil(tmp_path, reduced):
    """The decoders differ by rounding; crops smaller than 2 x 224 are decoded at full size."""
    path = write(tmp_path, 375, 500, "jpg")
    difference = np.abs(ours(tmp_path, 224, 3, reduced=reduced) - by_pil(path, 224, 3))
    assert difference.max() <= 3 and difference.mean() <= 0.25


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_reduced_crops_are_near_those_of_pil(tmp_path, seed):
    """Decoded at 1/4: at most 4 of 255 apart on average, less than half of a pixel's shift."""
    path = write(tmp_path, 1200, 1600, "jpg")
    found, expected = ours(tmp_path, 96, seed, reduced=True), by_pil(path, 96, seed)
    assert not np.array_equal(found, ours(tmp_path, 96, seed))  # it was decoded at reduced scale
    difference = np.abs(found - expected).mean()
    shifted = np.abs(expected[:, :, 1:] - expected[:, :, :-1]).mean()
    assert difference <= 4 and difference < 0.5 * shifted
