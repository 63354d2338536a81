"""The eleven transfer sets from trees of the official layouts to lists, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers import run_tool
from helpers.image_trees import colour, draw
from helpers.transfer_trees import TREES, VOC_CLASSES
from scipy.io import savemat

from sce_video.data_tools.prepare.transfer_sets import TRANSFER_SETS, prepare_transfer_set
from sce_video.datasets.image_datasets import read_label_table
from sce_video.datasets.video_list import read_annotation_list
from sce_video.options.data_commands import TRANSFER_NAMES, PrepareOptions

#: Published images of train, val (where official) and test, and classes.
PUBLISHED = {
    "food101": (75_750, 25_250, 101),
    "cifar10": (50_000, 10_000, 10),
    "cifar100": (50_000, 10_000, 100),
    "sun397": (19_850, 19_850, 397),
    "cars": (8_144, 8_041, 196),
    "aircraft": (3_334, 3_333, 3_333, 100),
    "voc2007": (2_501, 2_510, 4_952, 20),
    "dtd": (1_880, 1_880, 1_880, 47),
    "pets": (3_680, 3_669, 37),
    "caltech101": (2_416, 6_728, 102),
    "flowers": (1_020, 1_020, 6_149, 102),
}


def make(name: str, root: Path) -> Path:
    return TREES[name][0](root)


def prepare(name: str, root: Path, **options: object) -> bool:
    return prepare_transfer_set(PrepareOptions(name=name, root=root, no_check=True, **options))


@pytest.mark.parametrize("name", TRANSFER_SETS)
def test_lists_hold_every_image_once_with_its_class(name, tmp_path, capsys):
    """The colour of an image is that of its label, in every split, and all images are listed."""
    root, parts = make(name, tmp_path), ("train", "val", "test")
    parts = parts if TREES[name][1] else ("train", "test")
    assert run_tool.prepare(name, root, "--no-check", "--strict") == 1  # counts are scaled down
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    published = {row[0]: row[-2] for row in rows if row and row[-1] in ("ok", "differs")}
    expected = dict(zip((*parts, "classes"), PUBLISHED[name], strict=True))
    assert published == {part: f"{count:,}" for part, count in expected.items()}
    listed = []
    for part in parts:
        videos = read_annotation_list(str(root / f"lists/{part}.txt"), "image")
        paths = [videos.path(i) for i in range(len(videos))]
        if name == "voc2007":  # several labels in a table, see below
            assert read_label_table(root / f"lists/{part}_labels.txt").paths == tuple(paths)
            assert set(videos.labels) == {-1}
        else:
            for path, label in list(zip(paths, videos.labels, strict=True))[:12]:
                mean = cv2.imread(str(root / path))[..., ::-1].mean(axis=(0, 1))
                assert np.abs(mean - colour(label)).max() < 35, path  # up to its noise
            classes = (root / "lists/classes.txt").read_text().splitlines()
            assert set(videos.labels) <= set(range(len(classes)))
        listed += paths
    assert len(set(listed)) == len(listed)
    on_disk = {str(p.relative_to(root)) for p in root.rglob("*") if p.suffix in (".jpg", ".png")}
    assert set(listed) == on_disk and tuple(TRANSFER_SETS) == TRANSFER_NAMES  # of the command


def test_labels_of_voc_are_those_of_its_lists(tmp_path):
    root = make("voc2007", tmp_path)
    prepare("voc2007", root)
    table = read_label_table(root / "lists/val_labels.txt")
    for column, name in enumerate(VOC_CLASSES):
        lines = root / f"VOCdevkit/VOC2007/ImageSets/Main/{name}_val.txt"
        expected = dict(line.split() for line in lines.read_text().splitlines())
        found = {
            Path(p).stem: str(row[column]) for p, row in zip(table.paths, table.labels, strict=True)
        }
        assert found == expected
    assert {-1, 0, 1} == set(np.unique(table.labels))


def test_labels_are_ranks_of_what_the_protocol_sorts(tmp_path):
    """SUN397 sorts without the letter, Aircraft by variant; both have other orders in the files."""
    sun, aircraft = make("sun397", tmp_path / "s"), make("aircraft", tmp_path / "a")
    prepare("sun397", sun)
    prepare("aircraft", aircraft)
    assert (sun / "lists/classes.txt").read_text().split() == [
        "abbey", "apartment_building/outdoor", "bar", "zoo",
    ]  # fmt: skip
    names = (aircraft / "lists/classes.txt").read_text().splitlines()
    assert names == ["707-320", "737-300", "DH-82", "F/A-18", "Model B200"]


def test_images_of_cifar_are_unpacked_without_loss(tmp_path):
    root = make("cifar10", tmp_path)
    prepare("cifar10", root)
    image = cv2.imread(str(root / "png/train/00013.png"))[..., ::-1]  # 10 images in batch 1
    np.testing.assert_array_equal(image, draw(3, 103, 32, 32))


def test_a_missing_list_is_named_with_the_layout(tmp_path):
    root = make("cars", tmp_path)
    path = root / "devkit/cars_test_annos_withlabels.mat"
    path.unlink()
    with pytest.raises(FileNotFoundError) as error:
        prepare("cars", root)
    assert str(path) in str(error.value) and TRANSFER_SETS["cars"].layout in str(error.value)
    assert not (root / "lists").exists()


def append(path: str, line: str):
    return lambda root: (root / path).write_text((root / path).read_text() + line + "\n")


def replaced(path: str, content: bytes):
    return lambda root: (root / path).write_bytes(content)


def mat(path: str, content: dict):
    return lambda root: savemat(root / path, content)


SOFA = "VOCdevkit/VOC2007/ImageSets/Main/sofa_val.txt"
NO_LABELS = np.array([[("a.jpg",)]], dtype=[("fname", object)])
FAULTS = [
    (
        "food101",
        replaced("food-101/meta/test.json", json.dumps({"waffle": []}).encode()),
        "test.json and classes.txt have different classes",
    ),
    (
        "cars",
        mat("devkit/cars_test_annos_withlabels.mat", {"annotations": NO_LABELS}),
        "have no 'class' and 'fname'. For the test set, use the file with labels",
    ),
    (
        "flowers",
        mat("setid.mat", {"trnid": [[99]], "valid": [[1]], "tstid": [[2]]}),
        "trnid names image 99, but there are only 27 labels",
    ),
    (
        "pets",
        append("annotations/test.txt", "pug_1 1 2 1"),
        "class 1 was 'Abyssinian' on an earlier line",
    ),
    ("caltech101", append("test.txt", "Faces/a.jpg"), "must be 'CLASS/image_NUMBER.jpg LABEL'"),
    ("voc2007", append(SOFA, "1 2"), "sofa_val.txt, line 25: '1 2' must be 'NUMBER -1', 0 or 1"),
    (
        "cifar10",
        replaced("cifar-10-batches-py/test_batch", b"\x80\x02}q\x01("),
        "test_batch is not a pickle of plain data: it is truncated",
    ),
]


@pytest.mark.parametrize(("name", "damage", "message"), FAULTS)
def test_malformed_official_files(name, damage, message, tmp_path):
    root = make(name, tmp_path)
    damage(root)
    with pytest.raises(ValueError) as error:
        prepare(name, root)
    assert message in str(error.value)
    assert not (root / "lists").exists()
