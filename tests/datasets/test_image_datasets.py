"""Images from files and from the arrays of CIFAR and STL10, with PIL as the independent decoder."""

from __future__ import annotations

import io
import pickle
import shutil

import numpy as np
import pytest
from helpers import image_trees
from helpers.image_trees import draw, python2_pickle
from PIL import Image, ImageOps

from sce_video.datasets import (
    ImageArrayDataset,
    SampleRequest,
    VideoDecodeError,
    image_datasets,
)
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


# -- decoding ------------------------------------------------------------------------------


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
    (reduced,) = LoadImage(1, reduced=True)({"path": str(tmp_path / "a.jpg")})["views"]
    for ours in (whole(tmp_path / "a.jpg"), np.asarray(reduced)[0]):
        assert ours.shape == ((48, 64, 3) if orientation < 5 else (64, 48, 3))
        assert np.abs(ours - np.asarray(upright).astype(int)).mean() < 0.5


def test_bad_files_raise_the_error_of_bad_videos(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("no image " * 100)
    for name, word in [
        ("empty.png", "is empty"),
        ("text.jpg", "not an image that can be decoded"),
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


def test_a_folder_per_class(tmp_path):
    names = ["bird/a.png", "cat/deep/c.bmp", "cat/d.webp", "dog/e.JPG"]
    for seed, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth(30 + seed, 40 - seed, seed)).save(tmp_path / name, lossless=True)
    (tmp_path / "cat/notes.txt").write_text("no image")
    dataset = DATASETS.build(dict(type="ImageDataset", data_root=str(tmp_path), pipeline=WHOLE))
    assert dataset.metainfo == {"classes": ("bird", "cat", "dog")}
    assert dataset.labels.tolist() == [0, 1, 1, 2]
    assert dataset.path(2).endswith("cat/deep/c.bmp")
    for index, seed in ((0, 0), (1, 2), (2, 1)):  # lossless formats are decoded exactly
        sample = dataset[SampleRequest(index, 9)]
        assert (sample["label"], sample["index"], sample["seed"]) == (min(index, 1), index, 9)
        assert (sample["inputs"][0][0].numpy() == smooth(30 + seed, 40 - seed, seed)).all()


NAMES = ("cifar10", "cifar100", "stl10")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    for name in NAMES:
        getattr(image_trees, f"make_{name}")(folder / name)
    return folder


@pytest.fixture
def tree(tmp_path, roots):
    """``tree(name)``: a copy of one set, which the test may change."""
    return lambda name: shutil.copytree(roots / name, tmp_path / name)


def build(roots, name, split, pipeline=WHOLE):
    root = roots / name
    return ImageArrayDataset(name, str(root), split, pipeline, check_counts=False)


def image(dataset, index):
    return dataset[index]["inputs"][0][0].numpy()


# -- contents ------------------------------------------------------------------------------


def test_cifar10_has_the_images_that_were_written(roots):
    train, test = (build(roots, "cifar10", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (100, 20)
    assert train.labels.tolist() == list(range(10)) * 10
    assert train.metainfo["classes"][:2] == ("airplane", "automobile")
    for index in (0, 19, 20, 47, 99):
        expected = draw(index % 10, 100 * (index // 20) + index % 20, 32, 32)
        assert np.array_equal(image(train, index), expected)
    assert np.array_equal(image(test, 3), draw(3, 503, 32, 32))
    assert train.path(47).endswith("cifar10/cifar-10-batches-py/data_batch_3#7")
    assert len({train.path(index) for index in range(100)}) == 100


def test_cifar100_has_fine_labels(roots):
    train = build(roots, "cifar100", "train")
    assert train.labels.tolist() == list(range(99, -1, -1))
    assert train.metainfo["classes"][99] == "fine_99"


def test_stl10_parts(roots):
    labelled = list(range(10))
    for split, labels in (
        ("unlabeled", [-1] * 12),
        ("train", labelled),
        ("test", labelled),
        ("train+unlabeled", [*labelled, *[-1] * 12]),
    ):
        dataset = build(roots, "stl10", split)
        assert dataset.labels.tolist() == labels
        first = {"unlabeled": 200, "test": 100}.get(split, 0)
        assert np.array_equal(image(dataset, 2), draw(2, first + 2, 96, 96))
    assert np.array_equal(image(dataset, 13), draw(3, 203, 96, 96))


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_checked_unless_told_not_to(roots, name):
    split = "unlabeled" if name == "stl10" else "train"
    with pytest.raises(ValueError, match=r"instead of 1?[05]0,000\. Unpack.*check_counts"):
        ImageArrayDataset(name, str(roots / name), split)


def test_classes_of_unequal_size(tree, monkeypatch):
    monkeypatch.setitem(image_datasets.CIFAR10.counts, "test", 20)
    root = tree("cifar10")
    assert len(ImageArrayDataset("cifar10", str(root), "test")) == 20
    labels = [0, 0, *range(2, 10), *range(10)]
    content = {"labels": labels, "data": np.zeros((20, 3072), dtype=np.uint8)}
    (root / "cifar-10-batches-py/test_batch").write_bytes(python2_pickle(content))
    with pytest.raises(ValueError, match="contains 3 images of class 0 instead of 2"):
        ImageArrayDataset("cifar10", str(root), "test")


def test_wrong_names(roots):
    for name, root, split, message in (
        ("svhn", roots, "train", "name must be one of cifar10, cifar100, stl10, got 'svhn'"),
        ("cifar10", roots / "cifar10", "val", "split of CIFAR10 must be one of train, test"),
        ("stl10", roots / "cifar10", "train", r"no folder .*stl10_binary.*Unpack stl10_binary\.t"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageArrayDataset(name, str(root), split)
    inner = roots / "cifar10/cifar-10-batches-py"  # the folder itself is accepted too
    assert len(ImageArrayDataset("cifar10", str(inner), check_counts=False)) == 100


def truncate(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def two_images(*labels):
    return python2_pickle({"labels": [*labels], "data": np.zeros((2, 3072), dtype=np.uint8)})


def test_bad_cifar_files(tree):
    root = tree("cifar10")
    path, meta = (root / "cifar-10-batches-py" / name for name in ("data_batch_4", "batches.meta"))
    truncate(path)
    with pytest.raises(ValueError, match="data_batch_4 is not a pickle of plain data: .*truncated"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)
    for content, message in (
        (b"\x80\x02cos\nsystem\nU\x04trueR.", "not a pickle of plain data: it names os.system"),
        (pickle.dumps([1]), "must contain a dict, not a list"),
        (two_images(1), "data_batch_4 contains 1 labels for 2 images"),
        (two_images(1, 10), "data_batch_4: label 10 is out of range. There are 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            ImageArrayDataset("cifar10", str(root), check_counts=False)
    path.unlink()
    with pytest.raises(ValueError, match="no file .*data_batch_4.*Unpack cifar-10-python"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)
    meta.write_bytes(python2_pickle({"label_names": ["cat"]}))
    with pytest.raises(ValueError, match="must contain 10 class names in 'label_names'"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)


def test_bad_stl10_files(tree):
    root = tree("stl10") / "stl10_binary"
    images = root / "unlabeled_X.bin"
    truncate(images)  # between two images: only the count tells

    def build_it(split="unlabeled", check=False):
        return ImageArrayDataset("stl10", str(root), split, check_counts=check)

    assert len(build_it()) == 6
    with pytest.raises(ValueError, match="contains 6 images instead of 100,000"):
        build_it(check=True)
    for path, content, message in (
        (images, images.read_bytes()[:-5], "bytes, which is not a multiple of an image's 27,648"),
        (images, b"", "has 0 bytes"),
        (root / "class_names.txt", b"cat\n", "must name 10 classes"),
        (root / "train_y.bin", b"\x01", "1 labels for 10"),
        (root / "train_y.bin", bytes(10), "label -1 is out of range"),
    ):
        whole = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            build_it("train" if "train" in path.name else "unlabeled")
        path.write_bytes(whole)
    images.unlink()
    with pytest.raises(ValueError, match="no file .*unlabeled_X.bin.*Unpack stl10_binary"):
        build_it()
