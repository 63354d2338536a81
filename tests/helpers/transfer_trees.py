"""Small trees of exactly the official layouts of the eleven transfer sets.

Names and formats are as in the official downloads; counts are scaled down. Every image of a class
has the colour of the class, so that features of the colour separate the classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from helpers.image_trees import draw, make_cifar10, make_cifar100
from scipy.io import savemat

PARTS = ("train", "val", "test")
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


def write_image(path: Path, label: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), draw(label, number, 20, 24)[..., ::-1])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def make_food101(root: Path, images: int = 4) -> Path:
    """``meta/train.json`` and its like list CLASS/ID without extension."""
    classes, listed = ("apple_pie", "baby_back_ribs", "waffles"), {"train": {}, "test": {}}
    for label, name in enumerate(classes):
        for i in range(images):
            part = "test" if i == images - 1 else "train"
            listed[part].setdefault(name, []).append(f"{name}/{1000 * label + i}")
            write_image(root / f"food-101/images/{name}/{1000 * label + i}.jpg", label, i)
    meta = root / "food-101/meta"
    write_lines(meta / "classes.txt", classes)
    for part, content in listed.items():
        (meta / f"{part}.json").write_text(json.dumps(content))
        write_lines(meta / f"{part}.txt", [line for ids in content.values() for line in ids])
    return root


def make_sun397(root: Path, images: int = 4) -> Path:
    """Folders /LETTER/CLASS or /LETTER/CLASS/KIND; ClassName.txt has its own order."""
    folders = ("/a/abbey", "/a/apartment_building/outdoor", "/z/zoo", "/b/bar")
    write_lines(root / "ClassName.txt", folders)
    listed: dict[str, list[str]] = {"Training_01": [], "Testing_01": []}
    ranks = {folder: i for i, folder in enumerate(sorted(folders, key=lambda f: f[3:]))}
    for folder in folders:
        for i in range(images):
            name = f"{folder}/sun_{'abcdefgh'[i]}xyz.jpg"
            listed["Testing_01" if i % 2 else "Training_01"].append(name)
            write_image(root / name[1:], ranks[folder], i)
    for stem, lines in listed.items():
        write_lines(root / f"{stem}.txt", lines)
    return root


def make_cars(root: Path, images: int = 4) -> Path:
    """Struct arrays of MATLAB with boxes, class from 1 and file name."""
    boxes = [(f"bbox_{name}", object) for name in ("x1", "y1", "x2", "y2")]
    kind = [*boxes, ("class", object), ("fname", object)]
    for part, stem in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        rows = []
        for i in range(3 * images):
            label, name = i % 3, f"{i + 1:05d}.jpg"
            write_image(root / f"cars_{part}" / name, label, i)
            rows.append((1, 1, 20, 18, label + 1, name))
        (root / "devkit").mkdir(exist_ok=True)
        savemat(root / f"devkit/{stem}.mat", {"annotations": np.array([rows], dtype=kind)[0:1]})
    return root


def make_aircraft(root: Path, images: int = 3) -> Path:
    """Lists of NUMBER VARIANT; variants have spaces and slashes."""
    variants = ("707-320", "737-300", "F/A-18", "Model B200", "DH-82")
    ranks = {variant: i for i, variant in enumerate(sorted(variants))}
    number = 34309
    for part in PARTS:
        lines = []
        for i in range(images * len(variants)):
            variant, number = variants[i % len(variants)], number + 7
            lines.append(f"{number:07d} {variant}")
            write_image(root / f"data/images/{number:07d}.jpg", ranks[variant], number)
        write_lines(root / f"data/images_variant_{part}.txt", lines)
    return root


def make_voc2007(root: Path, images: int = 24) -> Path:
    """Every image shows one class, every third image a second one, and one class is difficult.

    VOC writes a single digit in two columns: ``000012  1`` and ``000005 -1``.
    """
    main = root / "VOCdevkit/VOC2007/ImageSets/Main"
    # Train, val and test are interleaved by number, as in the original.
    labels: dict[str, dict[str, list[int]]] = {part: {} for part in PARTS}
    for i in range(3 * images):
        part, number = PARTS[i % 3], f"{i + 5:06d}"
        shown = (i // 3) % 20
        row = [-1] * 20
        row[shown] = 1
        if i % 3 == 0:
            row[(shown + 1) % 20] = 1
        row[(shown + 7) % 20] = 0
        labels[part][number] = row
        write_image(root / f"VOCdevkit/VOC2007/JPEGImages/{number}.jpg", shown, i)
    for part, rows in labels.items():
        for column, name in enumerate(VOC_CLASSES):
            lines = [f"{number} {row[column]:2d}" for number, row in rows.items()]
            write_lines(main / f"{name}_{part}.txt", lines)
    return root


def make_dtd(root: Path, images: int = 3) -> Path:
    """Lists of CLASS/FILE for partition 1."""
    classes = ("banded", "blotchy", "zigzagged")
    for offset, part in enumerate(PARTS):
        lines = []
        for label, name in enumerate(classes):
            for i in range(images):
                file = f"{name}/{name}_{offset * images + i + 1:04d}.jpg"
                lines.append(file)
                write_image(root / "images" / file, label, offset * images + i)
        write_lines(root / f"labels/{part}1.txt", lines)
    return root


def make_pets(root: Path, images: int = 4) -> Path:
    """Lists of IMAGE CLASS-ID SPECIES BREED-ID; names of breeds have underscores."""
    breeds = ("Abyssinian", "american_bulldog", "Egyptian_Mau")
    for offset, stem in enumerate(("trainval", "test")):
        lines = []
        for label, breed in enumerate(breeds):
            for i in range(images):
                name = f"{breed}_{100 * offset + i}"
                lines.append(f"{name} {label + 1} {1 + label % 2} 1")
                write_image(root / f"images/{name}.jpg", label, 100 * offset + i)
        write_lines(root / f"annotations/{stem}.txt", lines)
    return root


def make_caltech101(root: Path, images: int = 4) -> Path:
    """Lists of ssl-transfer: CLASS/image_NUMBER.jpg LABEL."""
    classes = ("BACKGROUND_Google", "Faces", "Faces_easy", "wrench")
    listed: dict[str, list[str]] = {"train": [], "test": []}
    for label, name in enumerate(classes):
        for i in range(images):
            file = f"{name}/image_{i + 1:04d}.jpg"
            listed["test" if i % 2 else "train"].append(f"{file} {label}")
            write_image(root / "caltech101/101_ObjectCategories" / file, label, i)
    for part, lines in listed.items():
        write_lines(root / f"{part}.txt", lines)
    return root


def make_flowers(root: Path, images: int = 3) -> Path:
    """Image numbers of each split, and the labels of all images, from 1."""
    count = 9 * images
    labels = np.arange(count) % 3 + 1
    for i in range(count):
        write_image(root / f"jpg/image_{i + 1:05d}.jpg", int(labels[i]) - 1, i)
    savemat(root / "imagelabels.mat", {"labels": labels.astype(np.uint8)[None]})
    numbers = np.arange(1, count + 1).reshape(3, -1)
    keys = dict(zip(("trnid", "valid", "tstid"), numbers[:, None].astype(np.uint16), strict=True))
    savemat(root / "setid.mat", keys)
    return root


#: Maker, and whether the validation split is official.
TREES: dict[str, tuple[Callable[[Path], Path], bool]] = {
    "food101": (make_food101, False),
    "cifar10": (partial(make_cifar10, per_class=1), False),
    "cifar100": (make_cifar100, False),
    "sun397": (make_sun397, False),
    "cars": (make_cars, False),
    "aircraft": (make_aircraft, True),
    "voc2007": (make_voc2007, True),
    "dtd": (make_dtd, True),
    "pets": (make_pets, False),
    "caltech101": (make_caltech101, False),
    "flowers": (make_flowers, True),
}
