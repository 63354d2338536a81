"""CIFAR and STL10 from their official files, against the images they were written from."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from helpers import image_trees
from helpers.image_trees import draw, python2_pickle

from sce_video.datasets import ImageArrayDataset, SampleRequest

WHOLE = [{"type": "LoadImage", "num_views": 1}, {"type": "PackClips"}]
VIEWS = [
    {"type": "LoadImage"},
    {"type": "RandomResizedCropClips", "size": 24, "area": (0.2, 1.0)},
    {"type": "PackClips"},
]
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
    import shutil

    def copy(name):
        return shutil.copytree(roots / name, tmp_path / name)

    return copy


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
    assert np.array_equal(image(train, 4), draw(95, 4, 32, 32))


@pytest.mark.parametrize(
    ("split", "count", "labels"),
    [
        ("unlabeled", 12, [-1] * 12),
        ("train", 10, list(range(10))),
        ("test", 10, list(range(10))),
        ("train+unlabeled", 22, [*range(10), *[-1] * 12]),
    ],
)
def test_stl10_parts(roots, split, count, labels):
    dataset = build(roots, "stl10", split)
    assert len(dataset) == count and dataset.labels.tolist() == labels
    first = {"unlabeled": 200, "test": 100}.get(split, 0)
    assert np.array_equal(image(dataset, 2), draw(2, first + 2, 96, 96))
    if split == "train+unlabeled":
        assert np.array_equal(image(dataset, 13), draw(3, 203, 96, 96))


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_python_3_are_read_too(tree, protocol):
    root = tree("cifar10")
    path = root / "cifar-10-batches-py/test_batch"
    data = np.stack([draw(7, 0, 32, 32).transpose(2, 0, 1).ravel()])
    path.write_bytes(pickle.dumps({"data": data, "labels": [7]}, protocol=protocol))
    dataset = ImageArrayDataset("cifar10", str(root), "test", WHOLE, check_counts=False)
    assert np.array_equal(image(dataset, 0), draw(7, 0, 32, 32)) and dataset.labels.tolist() == [7]


# -- samples -------------------------------------------------------------------------------


def test_a_sample_is_a_function_of_its_seed(roots):
    first, second = (build(roots, "cifar10", "train", VIEWS) for _ in range(2))
    second[7]
    one, two = first[SampleRequest(2, 77)], second[SampleRequest(2, 77)]
    assert [view.shape for view in one["inputs"]] == [(1, 24, 24, 3)] * 2
    assert all(torch.equal(x, y) for x, y in zip(one["inputs"], two["inputs"], strict=True))
    assert not torch.equal(first[SampleRequest(2, 78)]["inputs"][0], one["inputs"][0])
    assert first.num_views == 2 and one["failures"] == []


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_checked_unless_told_not_to(roots, name):
    split = "unlabeled" if name == "stl10" else "train"
    with pytest.raises(
        ValueError, match=r"images, published are 1?[05]0,000: unpack.*check_counts"
    ):
        ImageArrayDataset(name, str(roots / name), split)


def test_classes_of_unequal_size(tree, monkeypatch):
    from sce_video.datasets import image_datasets as cifar

    monkeypatch.setitem(cifar.CIFAR_PUBLISHED, "test", 20)
    root = tree("cifar10")
    assert len(ImageArrayDataset("cifar10", str(root), "test")) == 20
    path = root / "cifar-10-batches-py/test_batch"
    labels = [0, 0, *range(2, 10), *range(10)]
    data = np.zeros((20, 3072), dtype=np.uint8)
    path.write_bytes(python2_pickle({"labels": labels, "data": data}))
    with pytest.raises(ValueError, match="has 3 images of class 0, published are 2"):
        ImageArrayDataset("cifar10", str(root), "test")


def test_wrong_names(roots):
    with pytest.raises(
        ValueError, match="name must be one of cifar10, cifar100, stl10, got 'svhn'"
    ):
        ImageArrayDataset("svhn", str(roots))
    with pytest.raises(ValueError, match="split of CIFAR10 must be one of train, test"):
        ImageArrayDataset("cifar10", str(roots / "cifar10"), "val")
    with pytest.raises(ValueError, match=r"no folder .*stl10_binary.*unpack stl10_binary\.tar\.gz"):
        ImageArrayDataset("stl10", str(roots / "cifar10"))
    inner = roots / "cifar10/cifar-10-batches-py"  # the folder itself is accepted too
    assert len(ImageArrayDataset("cifar10", str(inner), check_counts=False)) == 100


def truncate(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


BATCHES = {
    "missing batch": (lambda path: path.unlink(), "no file .*data_batch_4.*unpack cifar-10-python"),
    "truncated batch": (truncate, "data_batch_4 is no pickle of plain data: .*truncated"),
    "a program": (
        lambda path: path.write_bytes(b"\x80\x02cos\nsystem\nU\x04trueR."),
        "data_batch_4 is no pickle of plain data: it names os.system",
    ),
    "no dict": (lambda path: path.write_bytes(pickle.dumps([1])), "must hold a dict, not a list"),
    "fewer labels": (
        lambda path: path.write_bytes(
            python2_pickle({"labels": [1], "data": np.zeros((2, 3072), dtype=np.uint8)})
        ),
        "data_batch_4 has 1 labels for 2 images",
    ),
    "label of no class": (
        lambda path: path.write_bytes(
            python2_pickle({"labels": [10], "data": np.zeros((1, 3072), dtype=np.uint8)})
        ),
        "data_batch_4: label 10 is no class, there are 10",
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_bad_cifar_batches(tree, case):
    root = tree("cifar10")
    spoil, message = BATCHES[case]
    spoil(root / "cifar-10-batches-py/data_batch_4")
    with pytest.raises(ValueError, match=message):
        ImageArrayDataset("cifar10", str(root), check_counts=False)


def test_bad_meta_files(tree):
    root = tree("cifar10")
    meta = root / "cifar-10-batches-py/batches.meta"
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


@pytest.mark.parametrize(
    ("labels", "message"), [(b"\x01", "1 labels for 10"), (bytes(10), "label -1 is no class")]
)
def test_bad_stl10_labels(tree, labels, message):
    root = tree("stl10")
    (root / "stl10_binary/train_y.bin").write_bytes(labels)
    with pytest.raises(ValueError, match=message):
        ImageArrayDataset("stl10", str(root), "train", check_counts=False)
