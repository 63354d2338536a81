"""ImageNet's folders and devkit, and ImageNet100, by hand."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from helpers.image_trees import make_imagenet, make_tiny_imagenet
from helpers.run_tool import prepare
from scipy.io import savemat

from sce_video.data_tools.prepare.imagenet import (
    IMAGENET100_CLASSES,
    read_imagenet,
    read_tiny_imagenet,
    tiny_imagenet_folder,
)
from sce_video.data_tools.prepare.official import MOVED, Entry, locate_images

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
    assert len(official.names()) == 12
    assert missing_of(originals / "flat", originals / "flat", official) == []


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
    names = ("imagenet100_train.txt", "imagenet100_val.txt")
    assert (train.list_name, val.list_name) == names
    assert official.class_maps[0].names == IMAGENET100_CLASSES
    assert (train.published, val.published) == (126_689, 5_000)
    assert len(train.entries) == len(val.entries) == 100
    assert {entry.label for entry in val.entries} == set(range(100))
    for entry in (*train.entries, *(() if flat else val.entries)):
        assert entry.name.split("/")[1] == IMAGENET100_CLASSES[entry.label]


def missing_of(root, folder, official):
    located = locate_images(root, folder, official)
    return [name for name, found in located.items() if found.missing]


def tars(root):
    shutil.rmtree(root / "train")
    (root / "train").mkdir()
    (root / "train/n01440764.tar").write_bytes(b"")


def without(path):
    return lambda root: [shutil.rmtree(p) if p.is_dir() else p.unlink() for p in root.glob(path)]


def text(path, content):
    return lambda root: (root / path).write_text(content)


def mat(root):
    savemat(root / DEVKIT / "meta.mat", {"x": np.zeros(3)})


WNID = "n01443537"
LACKS = "lacks 1 of 3 class folders: n01443537. Unpack ILSVRC2012_img"
#: Layout, what is done to it, and the message.
BAD = [
    ("flat", without(f"train/{WNID}"), f"train {LACKS}_train.tar again"),
    ("folders", without(f"train/{WNID}"), f"train has no class folder {WNID}, but .*val does"),
    ("folders", without(f"train/{WNID}/*"), f"{WNID} contains no images"),
    ("flat", lambda root: (root / "train/n99999999").mkdir(), "n99999999 is not a class folder of"),
    ("folders", tars, r"contains 1 archives such as n01440764\.tar\. Unpack each .*tar xf"),
    ("flat", without("train"), "no folder of training"),
    ("flat", without("val/*"), "val contains no images. Unpack ILSVRC2012_img_val.tar again"),
    ("flat", without("ILSVRC2012_devkit_t12"), "no ground truth of the validation images, which"),
    ("flat", text(f"{DEVKIT}/meta.mat", "no mat file" * 20), "meta.mat is not a readable MATLAB"),
    ("flat", mat, "meta.mat has no variable 'synsets'"),
    ("flat", text(TRUTH, "1\n2\n9\n"), "ground_truth.txt, line 3: '9' is not the id of a class"),
]


@pytest.mark.parametrize(("kind", "spoil", "message"), BAD)
def test_bad_trees(tree, kind, spoil, message):
    root = tree(kind)
    spoil(root)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_imagenet(root)


# -- Tiny-ImageNet ----------------------------------------------------------------------------

TINY_WNIDS = ("n01443537", "n02124075", "n04067472")


@pytest.fixture(scope="module")
def tiny_original(tmp_path_factory):
    return make_tiny_imagenet(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny(tiny_original, tmp_path):
    return shutil.copytree(tiny_original, tmp_path / "tiny")


def test_tiny_imagenet(tiny):
    official = read_tiny_imagenet(tiny)
    folder = tiny_imagenet_folder(tiny)
    train, val = official.splits
    assert (train.list_name, val.list_name) == ("train.txt", "val.txt")
    assert official.class_maps[0].names == TINY_WNIDS  # sorted, unlike wnids.txt
    assert len(train.entries) == 9 and len(val.entries) == 6
    assert train.entries[3] == Entry("train/n02124075/images/n02124075_0.JPEG", 1)
    assert val.entries[1] == Entry("val/images/val_1.JPEG", 1)
    assert [(s.published, s.per_class) for s in (train, val)] == [(100_000, 500), (10_000, 50)]
    assert missing_of(tiny, folder, official) == []
    name = "val/images/val_1.JPEG"
    assert locate_images(tiny, folder, official)[name].path == f"tiny-imagenet-200/{name}"
    # ROOT may be the folder itself.
    assert tiny_imagenet_folder(folder) == folder and read_tiny_imagenet(folder) == official
    assert locate_images(folder, folder, official)[name].path == name
    (folder / train.entries[4].name).unlink()
    assert missing_of(tiny, folder, official) == [train.entries[4].name]
    for entry in val.entries:  # sorted into folders of classes by a common script
        image = folder / entry.name
        moved = folder / "val" / TINY_WNIDS[entry.label] / image.name
        moved.parent.mkdir(exist_ok=True)
        image.rename(moved)
    found = locate_images(tiny, folder, official)[name]
    assert found.path == "tiny-imagenet-200/val/n02124075/val_1.JPEG" and found.remark == MOVED


def test_every_file_is_decoded_and_bad_ones_are_left_out(tmp_path, in_process, capsys):
    root = make_tiny_imagenet(tmp_path, train=2, val=1)
    folder = root / "tiny-imagenet-200"
    (folder / "train/n01443537/images/n01443537_1.JPEG").write_bytes(b"")
    cut = folder / "val/images/val_2.JPEG"
    cut.write_bytes(cut.read_bytes()[:-100])  # the header is fine
    (folder / "train/n04067472/images/n04067472_1.JPEG").unlink()
    assert prepare("tiny_imagenet", root, "--workers", "1", "--strict") == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in err and "numbers differ from the published ones" in err
    assert len((root / "train.txt").read_text().splitlines()) == 4
    assert (root / "missing_tiny_imagenet.txt").read_text() == (
        "tiny-imagenet-200/train/n04067472/images/n04067472_1.JPEG\tno such file\n"
    )
    assert (root / "unreadable_tiny_imagenet.txt").read_text() == (
        "tiny-imagenet-200/train/n01443537/images/n01443537_1.JPEG\tis empty (0 bytes)\n"
        "tiny-imagenet-200/val/images/val_2.JPEG\tis not an image that can be decoded\n"
    )
    line = next(line for line in out.splitlines() if line.startswith("train "))
    assert line.split() == ["train", "6", "5", "1", "1", "100,000", "differs"]


def edit(path, old, new):
    def change(root):
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new, 1))

    return change


BOXES = "train/n02124075/n02124075_boxes.txt"
LIST = "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("train/n02124075"), "lacks 1 of 3 class folders: n02124075. Unpack tiny-imagenet"),
        (without(BOXES), "no list of boxes. The command looked for .*n02124075_boxes.txt"),
        (without("wnids.txt"), "no list of classes(.|\n)*tiny-imagenet-200.zip"),
        (edit("wnids.txt", "n02124075", "n01443537"), "'n01443537' is listed twice"),
        (edit(LIST, "n02124075", "n0212407"), "has the unknown class 'n0212407'; .*'n02124075'"),
        (edit(LIST, "\t44", " 44"), "line 1: .* must be 'NAME WNID X0 Y0 X1 Y1'"),
        (edit(LIST, "val_1", "val_0"), "line 2: 'val/images/val_0.JPEG' is listed"),
    ],
)
def test_bad_trees_of_tiny_imagenet(tiny, spoil, message):
    spoil(tiny / "tiny-imagenet-200")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_tiny_imagenet(tiny)
