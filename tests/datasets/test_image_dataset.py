"""Images as clips of one frame, with PIL as the independent decoder."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from sce_video.datasets import ImageDataset, SampleRequest, VideoDecodeError
from sce_video.datasets.transforms import LoadImage, PackClips
from sce_video.registry import DATASETS

WHOLE = [{"type": "LoadImage", "num_views": 1}, {"type": "PackClips"}]


def smooth(height=30, width=40, seed=0):
    """A photograph-like image: random colours on a coarse grid, interpolated."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.BILINEAR))


def whole(path):
    """(H, W, 3) as the data set decodes it."""
    (view,) = PackClips()({**LoadImage(1)({"path": str(path)}), **dict(label=0, index=0, seed=0)})[
        "inputs"
    ]
    return view[0].numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes with images of all formats and several sizes, one in a nested folder."""
    root = tmp_path_factory.mktemp("images")
    names = ["bird/a.png", "bird/b.JPG", "cat/deep/c.bmp", "cat/d.webp", "dog/e.jpeg", "dog/f.png"]
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(smooth(30 + seed, 40 - seed, seed))
        image.save(root / name, **({"lossless": True} if name.endswith("webp") else {}))
    (root / "cat/notes.txt").write_text("no image")
    return root


# -- decoding ------------------------------------------------------------------------------


def test_lossless_formats_equal_pil(tmp_path):
    for name in ("a.png", "a.bmp", "a.webp"):
        Image.fromarray(smooth()).save(tmp_path / name, lossless=True)
        assert (whole(tmp_path / name) == smooth()).all()


def test_jpeg_equals_pil_up_to_rounding(tmp_path):
    Image.fromarray(smooth(123, 77)).save(tmp_path / "a.jpg", quality=90)
    expected = np.asarray(Image.open(tmp_path / "a.jpg").convert("RGB")).astype(int)
    difference = np.abs(whole(tmp_path / "a.jpg") - expected)
    assert difference.max() <= 3 and difference.mean() < 0.5


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "LA"])
def test_other_colour_modes_become_rgb(tmp_path, mode):
    image = Image.fromarray(smooth()).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(smooth(seed=3)[..., 0]))
    image.save(tmp_path / "a.png")
    assert (whole(tmp_path / "a.png") == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("orientation", [1, 3, 4, 6])
def test_the_exif_orientation_is_applied(tmp_path, orientation):
    image = Image.fromarray(smooth(48, 64))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.jpg", quality=95, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg")).convert("RGB")
    ours, expected = whole(tmp_path / "a.jpg"), np.asarray(upright).astype(int)
    assert ours.shape == expected.shape == ((48, 64, 3) if orientation < 5 else (64, 48, 3))
    assert np.abs(ours - expected).mean() < 0.5


def test_views_are_clips_of_one_frame(folder):
    views = LoadImage(num_views=3)({"path": str(folder / "bird/a.png")})["views"]
    assert [view.shape for view in views] == [(1, 30, 40, 3)] * 3
    assert all((np.asarray(view)[0] == smooth(30, 40)).all() for view in views)
    with pytest.raises(ValueError, match="num_views"):
        LoadImage(0)


def test_bad_files_raise_the_error_of_bad_videos(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("no image " * 100)
    for name, word in [
        ("empty.png", "is empty"),
        ("text.jpg", "no image that can be decoded"),
        ("none.png", "cannot be opened: No such file"),
    ]:
        with pytest.raises(VideoDecodeError, match=word) as error:
            LoadImage()({"path": str(tmp_path / name)})
        assert error.value.permanent and error.value.path.endswith(name)


@pytest.mark.parametrize("suffix", ["jpeg", "png", "bmp", "webp"])
def test_truncated_files_are_never_decoded_in_part(tmp_path, suffix):
    data = io.BytesIO()
    Image.fromarray(smooth(64, 64)).save(data, suffix)
    path = tmp_path / f"cut.{suffix}"
    for share in (0.05, 0.5, 0.95):
        path.write_bytes(data.getvalue()[: int(len(data.getvalue()) * share)])
        with pytest.raises(VideoDecodeError):
            LoadImage()({"path": str(path)})


# -- the data set --------------------------------------------------------------------------


def test_a_folder_per_class(folder):
    dataset = DATASETS.build({"type": "ImageDataset", "data_root": str(folder), "pipeline": WHOLE})
    assert len(dataset) == 6 and dataset.metainfo == {"classes": ("bird", "cat", "dog")}
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.path(3).endswith("cat/deep/c.bmp")
    for index in range(6):
        sample = dataset[SampleRequest(index, 9)]
        assert (sample["label"], sample["index"], sample["seed"]) == (index // 2, index, 9)
        expected = np.asarray(Image.open(dataset.path(index)).convert("RGB")).astype(int)
        assert sample["inputs"][0].shape == (1, *expected.shape)
        assert np.abs(sample["inputs"][0][0].numpy() - expected).mean() < 0.5


def test_messages_speak_of_images(tmp_path):
    with pytest.raises(ValueError, match=r"no image in .*\.jpg \.jpeg \.png \.bmp \.webp"):
        ImageDataset(str(tmp_path))
    for text, message in (
        ("\n", "lists no image"),
        ("a.png 1\nb.png zero\n", "line 2: 'zero' is no label"),
        ("a.png\n", "none of the first 1 images"),
    ):
        (tmp_path / "list.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            ImageDataset(str(tmp_path), "list.txt")
