"""Tiny-ImageNet's official lists, by hand."""

from __future__ import annotations

import shutil

import pytest
from helpers.image_trees import make_tiny_imagenet

from sce_video.data_tools.prepare.imagenet import read_tiny_imagenet, tiny_imagenet_folder
from sce_video.data_tools.prepare.official import MOVED, Entry, locate_images

WNIDS = ("n01443537", "n02124075", "n04067472")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_tiny_imagenet(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tree(original, tmp_path):
    return shutil.copytree(original, tmp_path / "tiny")


def test_the_official_files(original):
    official = read_tiny_imagenet(original)
    train, val = official.splits
    assert (train.list_name, val.list_name) == ("train.txt", "val.txt")
    assert official.class_maps[0].names == WNIDS  # sorted, unlike wnids.txt
    assert len(train.entries) == 9 and len(val.entries) == 6
    assert train.entries[3] == Entry("train/n02124075/images/n02124075_0.JPEG", 1)
    assert val.entries[1] == Entry("val/images/val_1.JPEG", 1)
    assert (train.published, train.per_class) == (100_000, 500)
    assert (val.published, val.per_class) == (10_000, 50)
    located = locate_images(original, tiny_imagenet_folder(original), official)
    assert len(located) == 15 and not any(found.missing for found in located.values())
    path = located["val/images/val_1.JPEG"].path
    assert path == "tiny-imagenet-200/val/images/val_1.JPEG" and (original / path).is_file()


def test_the_folder_itself(original):
    folder = original / "tiny-imagenet-200"
    official = read_tiny_imagenet(folder)
    path = locate_images(folder, tiny_imagenet_folder(folder), official)[
        "val/images/val_1.JPEG"
    ].path
    assert path == "val/images/val_1.JPEG"


def test_val_sorted_into_folders_of_classes(tree):
    val = tree / "tiny-imagenet-200/val"
    official = read_tiny_imagenet(tree)
    for entry in official.splits[1].entries:
        name = entry.name.rpartition("/")[2]
        folder = val / WNIDS[entry.label]
        folder.mkdir(exist_ok=True)
        (val / "images" / name).rename(folder / name)
    located = locate_images(tree, tiny_imagenet_folder(tree), official)
    found = located["val/images/val_1.JPEG"]
    assert found.path == "tiny-imagenet-200/val/n02124075/val_1.JPEG" and found.remark == MOVED


def test_missing_images(tree):
    (tree / "tiny-imagenet-200/train/n02124075/images/n02124075_1.JPEG").unlink()
    official = read_tiny_imagenet(tree)
    located = locate_images(tree, tiny_imagenet_folder(tree), official)
    missing = {name for name, found in located.items() if found.missing}
    assert missing == {"train/n02124075/images/n02124075_1.JPEG"}


def edit(path, change):
    path.write_text(change(path.read_text()))


BAD = {
    "class folder": (
        lambda f: shutil.rmtree(f / "train/n02124075"),
        "train lacks 1 of 3 class folders: n02124075. Unpack tiny-imagenet-200.zip again",
    ),
    "boxes": (
        lambda f: (f / "train/n02124075/n02124075_boxes.txt").unlink(),
        "no list of boxes: looked for .*n02124075_boxes.txt",
    ),
    "annotations": (
        lambda f: (f / "val/val_annotations.txt").unlink(),
        "no list of validation images",
    ),
    "no set": (lambda f: shutil.rmtree(f), "no list of classes(.|\n)*tiny-imagenet-200.zip"),
    "wnids": (
        lambda f: edit(f / "wnids.txt", lambda text: text + "\ncat"),
        "wnids.txt, line 4: 'cat' is no WordNet id",
    ),
    "twice": (
        lambda f: edit(f / "wnids.txt", lambda text: text + "\nn02124075"),
        "wnids.txt, line 4: n02124075 is listed twice",
    ),
    "unknown class": (
        lambda f: edit(f / "val/val_annotations.txt", lambda t: t.replace("n02124075", "n0212407")),
        "val_1.JPEG has the unknown class 'n0212407'; .*'n02124075'",
    ),
    "row": (
        lambda f: edit(f / "val/val_annotations.txt", lambda t: t.replace("\t44", " 44")),
        "val_annotations.txt, line 1: .* must be 'NAME WNID X0 Y0 X1 Y1'",
    ),
    "row twice": (
        lambda f: edit(f / "val/val_annotations.txt", lambda t: t + t.splitlines()[0]),
        "val_annotations.txt, line 7: 'val_0.JPEG' is listed twice",
    ),
    "path": (
        lambda f: edit(f / "val/val_annotations.txt", lambda t: t.replace("val_0", "../val_0")),
        "line 1: .* must be",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_trees(tree, case):
    spoil, message = BAD[case]
    spoil(tree / "tiny-imagenet-200")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_tiny_imagenet(tree)
