"""ImageNet's folders and devkit, and ImageNet100, by hand."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from helpers.image_trees import draw, make_imagenet, write_jpeg
from scipy.io import savemat

from sce_video.data_tools.prepare.imagenet import (
    IMAGENET100_CLASSES,
    read_imagenet,
)
from sce_video.data_tools.prepare.official import Entry, locate_images

WNIDS = ("n01440764", "n01443537", "n01484850")
DEVKIT = "ILSVRC2012_devkit_t12/data"
TRUTH = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """``flat``: val flat with the devkit; ``folders``: val in class folders, no devkit."""
    root = tmp_path_factory.mktemp("imagenet")
    make_imagenet(root / "flat", val=2)
    make_imagenet(root / "folders", val=2, flat_val=False)
    return root


@pytest.fixture
def tree(originals, tmp_path):
    return lambda kind="flat": shutil.copytree(originals / kind, tmp_path / kind)


def names_by_label(split):
    found = {}
    for entry in split.entries:
        found.setdefault(entry.label, set()).add(entry.name.rpartition("/")[2])
    return found


def test_flat_val_with_the_devkit(originals):
    official = read_imagenet(originals / "flat")
    train, val = official.splits
    assert (train.list_name, val.list_name) == ("imagenet_train.txt", "imagenet_val.txt")
    assert official.class_maps[0].names == WNIDS and official.class_maps[0].published == 1000
    assert train.entries[2] == Entry("train/n01443537/n01443537_10.JPEG", 1)
    # written in the order 0, 2, 1, 0, 2, 1, under ids of the devkit that are in another order
    assert [entry.label for entry in val.entries] == [0, 2, 1, 0, 2, 1]
    assert val.entries[1].name == "val/ILSVRC2012_val_00000002.JPEG"
    assert (train.published, val.published, val.per_class) == (1_281_167, 50_000, 50)
    located = locate_images(originals / "flat", originals / "flat", official)
    assert len(located) == 12 and not any(found.missing for found in located.values())


def test_both_layouts_give_the_same_labels(originals):
    flat, folders = (read_imagenet(originals / kind) for kind in ("flat", "folders"))
    assert names_by_label(flat.splits[1]) == names_by_label(folders.splits[1])
    assert flat.splits[0] == folders.splits[0]


def test_the_class_list_of_imagenet100():
    """First, last and some of the table of the paper; 100 different ids in sorted order."""
    assert len(set(IMAGENET100_CLASSES)) == 100
    assert tuple(sorted(IMAGENET100_CLASSES)) == IMAGENET100_CLASSES
    assert all(re.fullmatch(r"n\d{8}", wnid) for wnid in IMAGENET100_CLASSES)
    assert (IMAGENET100_CLASSES[0], IMAGENET100_CLASSES[-1]) == ("n01558993", "n13040303")
    assert {"n02869837", "n13037406", "n07836838", "n02099849"} <= set(IMAGENET100_CLASSES)


@pytest.mark.parametrize("flat", [True, False])
def test_imagenet100_has_the_same_classes_in_train_and_val(tmp_path, flat):
    """Classes outside of the list are in neither, and labels are ranks in the list."""
    others = ("n01440764", "n15075141")  # the first and the last class of ImageNet
    wnids = sorted((*IMAGENET100_CLASSES, *others))
    make_imagenet(tmp_path, wnids, train=1, flat_val=flat, size=(8, 8))
    official = read_imagenet(tmp_path, imagenet100=True)
    train, val = official.splits
    assert [split.list_name for split in (train, val)] == [
        "imagenet100_train.txt",
        "imagenet100_val.txt",
    ]
    assert official.class_maps[0].names == IMAGENET100_CLASSES
    assert (train.published, val.published) == (126_689, 5_000)
    for entry in train.entries:
        assert entry.name.split("/")[1] == IMAGENET100_CLASSES[entry.label]
    assert len(train.entries) == len(val.entries) == 100
    assert {entry.label for entry in val.entries} == set(range(100))
    if not flat:
        for entry in val.entries:
            assert entry.name.split("/")[1] == IMAGENET100_CLASSES[entry.label]


def test_missing_images_of_the_flat_val(tree):
    root = tree()
    (root / "val/ILSVRC2012_val_00000003.JPEG").unlink()
    located = locate_images(root, root, read_imagenet(root))
    missing = [name for name, found in located.items() if found.missing]
    assert missing == ["val/ILSVRC2012_val_00000003.JPEG"]


def tars(root):
    shutil.rmtree(root / "train")
    (root / "train").mkdir()
    (root / "train/n01440764.tar").write_bytes(b"")


BAD = {
    "class folder, devkit": (
        "flat",
        lambda root: shutil.rmtree(root / "train/n01443537"),
        "train lacks 1 of 3 class folders: n01443537. Unpack ILSVRC2012_img_train.tar again",
    ),
    "class folder, val": (
        "folders",
        lambda root: shutil.rmtree(root / "val/n01443537"),
        "val lacks 1 of 3 class folders: n01443537. Unpack ILSVRC2012_img_val.tar again",
    ),
    "class folder, train": (
        "folders",
        lambda root: shutil.rmtree(root / "train/n01443537"),
        r"val/n01443537 has no folder of that name in .*train",
    ),
    "empty class folder": (
        "folders",
        lambda root: [path.unlink() for path in (root / "train/n01443537").iterdir()],
        "n01443537 holds no image",
    ),
    "unknown folder": (
        "flat",
        lambda root: write_jpeg(root / "train/n99999999/a.JPEG", draw(0, 0, 8, 8)),
        "n99999999 is no class folder of ImageNet",
    ),
    "tars": ("folders", tars, r"holds 1 archives as n01440764\.tar: unpack each .*tar xf"),
    "no class": (
        "folders",
        lambda root: [shutil.rmtree(path) for path in (root / "train").iterdir()],
        "holds no class folder such as n01440764",
    ),
    "no train": ("flat", lambda root: shutil.rmtree(root / "train"), "no folder of training"),
    "no val": ("flat", lambda root: shutil.rmtree(root / "val"), "no folder of validation"),
    "empty val": (
        "flat",
        lambda root: [path.unlink() for path in (root / "val").iterdir()],
        "val holds no image: unpack ILSVRC2012_img_val.tar again",
    ),
    "no devkit": (
        "flat",
        lambda root: shutil.rmtree(root / "ILSVRC2012_devkit_t12"),
        "no ground truth of the validation images, which are not in class folders",
    ),
    "no meta.mat": (
        "flat",
        lambda root: (root / DEVKIT / "meta.mat").unlink(),
        "no meta.mat of the devkit",
    ),
    "damaged meta.mat": (
        "flat",
        lambda root: (root / DEVKIT / "meta.mat").write_bytes(b"no mat file" * 20),
        "meta.mat is not the devkit's meta.mat",
    ),
    "other mat file": (
        "flat",
        lambda root: savemat(root / DEVKIT / "meta.mat", {"x": np.zeros(3)}),
        "meta.mat is not the devkit's meta.mat",
    ),
    "truth": (
        "flat",
        lambda root: (root / TRUTH).write_text("1\n2\n9\n"),
        "ground_truth.txt, line 3: '9' is no id of a class",
    ),
    "inner synset": (
        "flat",
        lambda root: (root / TRUTH).write_text("4\n"),
        "line 1: '4' is no id of a class",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_trees(tree, case):
    kind, spoil, message = BAD[case]
    root = tree(kind)
    spoil(root)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_imagenet(root)


def test_imagenet100_needs_its_classes(originals):
    with pytest.raises(ValueError, match=r"lacks 100 of 100 class folders: n01558993, "):
        read_imagenet(originals / "folders", imagenet100=True)
