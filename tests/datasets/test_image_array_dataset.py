"""CIFAR and STL10 from their official files, against the images they were written from."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
from helpers import image_trees
from helpers.image_trees import draw, python2_pickle

from sce_video.datasets import ImageArrayDataset, image_datasets

WHOLE = [{"type": "LoadImage", "num_views": 1}, {"type": "PackClips"}]

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
    with pytest.raises(ValueError, match=r"published are 1?[05]0,000: unpack.*check_counts"):
        ImageArrayDataset(name, str(roots / name), split)


def test_classes_of_unequal_size(tree, monkeypatch):
    monkeypatch.setitem(image_datasets.CIFAR_PUBLISHED, "test", 20)
    root = tree("cifar10")
    assert len(ImageArrayDataset("cifar10", str(root), "test")) == 20
    labels = [0, 0, *range(2, 10), *range(10)]
    content = {"labels": labels, "data": np.zeros((20, 3072), dtype=np.uint8)}
    (root / "cifar-10-batches-py/test_batch").write_bytes(python2_pickle(content))
    with pytest.raises(ValueError, match="has 3 images of class 0, published are 2"):
        ImageArrayDataset("cifar10", str(root), "test")


def test_wrong_names(roots):
    for name, root, split, message in (
        ("svhn", roots, "train", "name must be one of cifar10, cifar100, stl10, got 'svhn'"),
        ("cifar10", roots / "cifar10", "val", "split of CIFAR10 must be one of train, test"),
        ("stl10", roots / "cifar10", "train", r"no folder .*stl10_binary.*unpack stl10_binary\.t"),
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
    with pytest.raises(ValueError, match="data_batch_4 is no pickle of plain data: .*truncated"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)
    for content, message in (
        (b"\x80\x02cos\nsystem\nU\x04trueR.", "no pickle of plain data: it names os.system"),
        (pickle.dumps([1]), "must hold a dict, not a list"),
        (two_images(1), "data_batch_4 has 1 labels for 2 images"),
        (two_images(1, 10), "data_batch_4: label 10 is no class, there are 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            ImageArrayDataset("cifar10", str(root), check_counts=False)
    path.unlink()
    with pytest.raises(ValueError, match="no file .*data_batch_4.*unpack cifar-10-python"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)
    meta.write_bytes(python2_pickle({"label_names": ["cat"]}))
    with pytest.raises(ValueError, match="must hold 10 class names in 'label_names'"):
        ImageArrayDataset("cifar10", str(root), check_counts=False)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("unlabeled_X.bin", truncate, "165,888"),
        ("unlabeled_X.bin", lambda p: truncate(p, 0.51), "bytes, no multiple of the 27,648"),
        ("unlabeled_X.bin", lambda p: p.write_bytes(b""), "has 0 bytes"),
        ("unlabeled_X.bin", lambda p: p.unlink(), "no file .*unlabeled_X.bin.*unpack stl10_binary"),
        ("class_names.txt", lambda p: p.write_text("cat\n"), "must name 10 classes"),
    ],
)
def test_bad_stl10_files(tree, name, spoil, message):
    root = tree("stl10")
    spoil(root / "stl10_binary" / name)
    if message == "165,888":  # cut between two images: only the count tells
        assert len(ImageArrayDataset("stl10", str(root), "unlabeled", check_counts=False)) == 6
        message = "has 6 images, published are 100,000"
    with pytest.raises(ValueError, match=message):
        ImageArrayDataset("stl10", str(root), "unlabeled", check_counts="published" in message)


def test_bad_stl10_labels(tree):
    root = tree("stl10")
    for labels, message in ((b"\x01", "1 labels for 10"), (bytes(10), "label -1 is no class")):
        (root / "stl10_binary/train_y.bin").write_bytes(labels)
        with pytest.raises(ValueError, match=message):
            ImageArrayDataset("stl10", str(root), "train", check_counts=False)
