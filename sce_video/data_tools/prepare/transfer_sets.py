"""What the readers of the transfer sets share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    is_count,
    nearest,
    read_lines,
)
from sce_video.datasets.image_datasets import (
    ARRAY_SETS,
    CIFAR10,
    CIFAR100,
    CIFAR_PUBLISHED,
    CifarFiles,
)
from sce_video.datasets.labels import LabelTable
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import write_bytes
from sce_video.utils.json_files import read_json


class TransferLists(NamedTuple):
    """Content of the official files of a transfer set.

    Attributes:
        official: Splits and classes; the name of an image is its path below the set's folder.
        tables: Labels of multi-label splits by file name; empty for the others.
    """

    official: OfficialLists
    tables: Mapping[str, LabelTable] = {}


def transfer_lists(
    name: str,
    parts: Mapping[str, Sequence[Entry]],
    published: Mapping[str, int],
    classes: Sequence[str],
    num_classes: int,
) -> OfficialLists:
    """The lists ``train.txt``, ``val.txt`` (where official) and ``test.txt``.

    Args:
        name: Short name of the set.
        parts: Images of each split, by its name.
        published: Number of images of each split.
        classes: Names of the labels.
        num_classes: Published number of classes.

    Raises:
        ValueError: an image is in two splits.
    """
    splits = [Split(f"{part}.txt", tuple(rows), published[part]) for part, rows in parts.items()]
    for number, split in enumerate(splits):
        for other in splits[:number]:
            check_disjoint(name, other, split)
    class_map = ClassMap("classes.txt", tuple(classes), num_classes)
    return OfficialLists(name, tuple(splits), (class_map,))


def unique_entries(rows: Iterable[tuple[str, str, int]], num_classes: int) -> tuple[Entry, ...]:
    """Entries of (where, path, label).

    Raises:
        ValueError: an image is listed twice, or a label is no class; the message says where.
    """
    entries: dict[str, Entry] = {}
    for where, name, label in rows:
        if name in entries:
            raise ValueError(f"{where}: {name!r} is listed twice")
        if not 0 <= label < num_classes:
            raise ValueError(f"{where}: {name!r} has class number {label} of {num_classes} classes")
        entries[name] = Entry(name, label)
    return tuple(entries.values())


def existing(path: Path, layout: str) -> Path:
    """The path of an official file.

    Raises:
        FileNotFoundError: there is none; the message shows the expected layout.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"no {path}: the folder must hold the unpacked official downloads:\n{layout}"
        )
    return path


def locate_images(root: Path, names: Iterable[str]) -> dict[str, Located]:
    """Locations of images whose names are their paths below ``root``."""
    return {
        name: Located(name, None if os.path.isfile(root / name) else "no such file")
        for name in names
    }


FOOD_LAYOUT = """\
  food-101/images/CLASS/ID.jpg                (food-101.tar.gz)
  food-101/meta/{train,test}.json, food-101/meta/classes.txt"""
SUN_LAYOUT = """\
  a/abbey/sun_*.jpg ... z/.../sun_*.jpg       (SUN397.tar.gz)
  ClassName.txt                               (SUN397.tar.gz)
  Training_01.txt, Testing_01.txt             (Partitions.zip)"""
AIRCRAFT_LAYOUT = """\
  data/images/NUMBER.jpg                      (fgvc-aircraft-2013b.tar.gz)
  data/images_variant_{train,val,test}.txt"""
DTD_LAYOUT = """\
  images/CLASS/CLASS_NUMBER.jpg               (dtd-r1.0.1.tar.gz)
  labels/{train,val,test}1.txt"""
PETS_LAYOUT = """\
  images/BREED_NUMBER.jpg                     (images.tar.gz)
  annotations/{trainval,test}.txt             (annotations.tar.gz)"""
CALTECH_LAYOUT = """\
  caltech101/101_ObjectCategories/CLASS/image_NUMBER.jpg   (101_ObjectCategories.tar.gz)
  train.txt, test.txt                         (linusericsson/ssl-transfer, caltech101-splits/)"""
_SUN_COUNTS = {"train": 19_850, "test": 19_850}
_AIRCRAFT_COUNTS = {"train": 3_334, "val": 3_333, "test": 3_333}
_DTD_COUNTS = {"train": 1_880, "val": 1_880, "test": 1_880}


def read_food(root: Path) -> TransferLists:
    """Food-101 (Bossard et al. 2014): 101 classes, in the order of classes.txt.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed file; the message names it.
    """
    meta = existing(root / "food-101/meta", FOOD_LAYOUT)
    classes = _class_list(existing(meta / "classes.txt", FOOD_LAYOUT))
    parts = {}
    for part in ("train", "test"):
        path = existing(meta / f"{part}.json", FOOD_LAYOUT)
        content = read_json(path)
        if not isinstance(content, dict) or not all(
            isinstance(ids, list) and all(isinstance(i, str) for i in ids)
            for ids in content.values()
        ):
            raise ValueError(f"{path} must map every class to its list of CLASS/ID")
        if set(content) != set(classes):
            odd = min(set(content) ^ set(classes))
            raise ValueError(f"{path} and classes.txt have different classes, for example {odd!r}")
        rows = (
            (str(path), f"food-101/images/{name}.jpg", label)
            for label, class_name in enumerate(classes)
            for name in content[class_name]
        )
        parts[part] = unique_entries(rows, len(classes))
    counts = {"train": 75_750, "test": 25_250}
    return TransferLists(transfer_lists("food101", parts, counts, classes, 101))


def _class_list(path: Path) -> list[str]:
    """One class name per line, each once."""
    names: list[str] = []
    for number, line in read_lines(path):
        if line in names:
            raise ValueError(f"{path}, line {number}: class {line!r} is listed twice")
        names.append(line)
    return names


def read_sun397(root: Path) -> TransferLists:
    """SUN397 (Xiao et al. 2010), partition 1: the label is the rank of the sorted class name.

    The class of an image is its folder, ``/a/abbey`` or ``/a/apartment_building/outdoor``.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line or an unknown class; the message names file and line.
    """
    path = existing(root / "ClassName.txt", SUN_LAYOUT)
    for number, line in read_lines(path):
        if not line.startswith("/") or line.count("/") < 2:
            raise ValueError(f"{path}, line {number}: {line!r} must be '/LETTER/CLASS'")
    # "/a/abbey" sorts by what follows the letter.
    folders = sorted(_class_list(path), key=lambda folder: folder[3:])
    label_of = {folder: label for label, folder in enumerate(folders)}
    parts = {}
    for part, stem in (("train", "Training_01"), ("test", "Testing_01")):
        path = existing(root / f"{stem}.txt", SUN_LAYOUT)
        rows = []
        for number, line in read_lines(path):
            folder, where = line.rpartition("/")[0], f"{path}, line {number}"
            if folder not in label_of:
                raise ValueError(f"{where}: unknown class {folder!r}; {nearest(folder, label_of)}")
            rows.append((where, line.removeprefix("/"), label_of[folder]))
        parts[part] = unique_entries(rows, len(folders))
    names = [folder[3:] for folder in folders]
    return TransferLists(transfer_lists("sun397", parts, _SUN_COUNTS, names, 397))


def read_aircraft(root: Path) -> TransferLists:
    """FGVC-Aircraft (Maji et al. 2013): 100 variants, sorted by name; official validation split.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line; the message names file and line.
    """
    listed = {part: list(_variants(root, part)) for part in _AIRCRAFT_COUNTS}
    classes = sorted({variant for rows in listed.values() for _, _, variant in rows})
    label_of = {variant: label for label, variant in enumerate(classes)}
    parts = {
        part: unique_entries(((w, name, label_of[v]) for w, name, v in rows), len(classes))
        for part, rows in listed.items()
    }
    return TransferLists(transfer_lists("aircraft", parts, _AIRCRAFT_COUNTS, classes, 100))


def _variants(root: Path, part: str) -> Iterator[tuple[str, str, str]]:
    """(where, path, variant) of the lines ``NUMBER VARIANT``; variants may contain spaces."""
    path = existing(root / f"data/images_variant_{part}.txt", AIRCRAFT_LAYOUT)
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        name, _, variant = line.partition(" ")
        if not is_count(name) or not variant.strip():
            raise ValueError(f"{where}: {line!r} must be 'NUMBER VARIANT'")
        yield where, f"data/images/{name}.jpg", variant.strip()


def read_dtd(root: Path) -> TransferLists:
    """DTD (Cimpoi et al. 2014), partition 1: 47 sorted classes; official validation split.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line; the message names file and line.
    """
    listed = {}
    for part in _DTD_COUNTS:
        path = existing(root / f"labels/{part}1.txt", DTD_LAYOUT)
        listed[part] = [(f"{path}, line {number}", line) for number, line in read_lines(path)]
        for where, line in listed[part]:
            if line.count("/") != 1:
                raise ValueError(f"{where}: {line!r} must be 'CLASS/FILE.jpg'")
    classes = sorted({line.partition("/")[0] for rows in listed.values() for _, line in rows})
    label_of = {name: label for label, name in enumerate(classes)}
    parts = {
        part: unique_entries(
            ((w, f"images/{line}", label_of[line.partition("/")[0]]) for w, line in rows),
            len(classes),
        )
        for part, rows in listed.items()
    }
    return TransferLists(transfer_lists("dtd", parts, _DTD_COUNTS, classes, 47))


def read_pets(root: Path) -> TransferLists:
    """Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds, the label is CLASS-ID minus one.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line, or two breeds of one number; the message says where.
    """
    breeds: dict[int, str] = {}
    parts = {}
    for part, stem in (("train", "trainval"), ("test", "test")):
        path = existing(root / f"annotations/{stem}.txt", PETS_LAYOUT)
        rows = []
        for number, line in read_lines(path):
            where, words = f"{path}, line {number}", line.split()
            if len(words) != 4 or not is_count(words[1]) or words[1] == "0":
                raise ValueError(f"{where}: {line!r} must be 'IMAGE CLASS-ID SPECIES BREED-ID'")
            label, breed = int(words[1]) - 1, words[0].rpartition("_")[0]
            if breeds.setdefault(label, breed) != breed:
                raise ValueError(f"{where}: class {label + 1} is {breeds[label]!r} before")
            rows.append((where, f"images/{words[0]}.jpg", label))
        parts[part] = rows
    names = [breeds.get(label, "") for label in range(max(breeds) + 1)]
    if "" in names:
        raise ValueError(f"{root / 'annotations'}: no image of class {names.index('') + 1}")
    entries = {part: unique_entries(rows, len(names)) for part, rows in parts.items()}
    counts = {"train": 3_680, "test": 3_669}
    return TransferLists(transfer_lists("pets", entries, counts, names, 37))


def read_caltech101(root: Path) -> TransferLists:
    """Caltech-101 (Fei-Fei et al. 2004) with the lists of ssl-transfer: 102 classes.

    BACKGROUND_Google is a class. The lists have 17 to 30 training images of each, and are not the
    30 of each that BYOL and others draw.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line, or two classes of one number; the message says where.
    """
    classes: dict[int, str] = {}
    parts = {}
    for part in ("train", "test"):
        path = existing(root / f"{part}.txt", CALTECH_LAYOUT)
        rows = []
        for number, line in read_lines(path):
            where, (name, _, label) = f"{path}, line {number}", line.rpartition(" ")
            if name.count("/") != 1 or not is_count(label):
                raise ValueError(f"{where}: {line!r} must be 'CLASS/image_NUMBER.jpg LABEL'")
            folder = name.partition("/")[0]
            if classes.setdefault(int(label), folder) != folder:
                raise ValueError(f"{where}: class {label} is {classes[int(label)]!r} before")
            rows.append((where, f"caltech101/101_ObjectCategories/{name}", int(label)))
        parts[part] = rows
    names = [classes[label] for label in sorted(classes)]
    entries = {part: unique_entries(rows, len(names)) for part, rows in parts.items()}
    counts = {"train": 2_416, "test": 6_728}
    return TransferLists(transfer_lists("caltech101", entries, counts, names, 102))


CARS_LAYOUT = """\
  cars_train/NUMBER.jpg                       (cars_train.tgz)
  cars_test/NUMBER.jpg                        (cars_test.tgz)
  devkit/cars_train_annos.mat                 (car_devkit.tgz)
  devkit/cars_test_annos_withlabels.mat"""
FLOWERS_LAYOUT = """\
  jpg/image_NUMBER.jpg                        (102flowers.tgz)
  setid.mat, imagelabels.mat"""


def read_cars(root: Path) -> TransferLists:
    """Stanford Cars (Krause et al. 2013): 196 classes, numbered from 1 in the files.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
        MissingPackageError: scipy cannot be imported.
    """
    parts = {}
    for part, stem in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        path = existing(root / f"devkit/{stem}.mat", CARS_LAYOUT)
        annotations = np.atleast_1d(_read_mat(path, "annotations"))
        if not {"class", "fname"} <= set(annotations.dtype.names or ()):
            raise ValueError(
                f"{path}: its annotations have no 'class' and 'fname'; the test set needs the file "
                "with labels, cars_test_annos_withlabels.mat"
            )
        rows = [
            (str(path), f"cars_{part}/{name}", _number(path, label) - 1)
            for name, label in zip(annotations["fname"], annotations["class"], strict=True)
        ]
        parts[part] = rows
    count = 1 + max(label for rows in parts.values() for _, _, label in rows)
    entries = {part: unique_entries(rows, count) for part, rows in parts.items()}
    classes = [f"class {number}" for number in range(1, count + 1)]
    counts = {"train": 8_144, "test": 8_041}
    return TransferLists(transfer_lists("cars", entries, counts, classes, 196))


def read_flowers(root: Path) -> TransferLists:
    """Oxford Flowers 102 (Nilsback and Zisserman 2008): official validation split.

    The training set is ``trnid``, 10 images of each class.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
        MissingPackageError: scipy cannot be imported.
    """
    setid = existing(root / "setid.mat", FLOWERS_LAYOUT)
    path = existing(root / "imagelabels.mat", FLOWERS_LAYOUT)
    labels = [_number(path, value) - 1 for value in np.atleast_1d(_read_mat(path, "labels"))]
    count = max(labels) + 1
    parts = {}
    for part, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        rows = []
        for value in np.atleast_1d(_read_mat(setid, key)):
            number = _number(setid, value)
            if not 1 <= number <= len(labels):
                raise ValueError(f"{setid}: {key} names image {number} of {len(labels)} labels")
            rows.append((str(setid), f"jpg/image_{number:05d}.jpg", labels[number - 1]))
        parts[part] = unique_entries(rows, count)
    classes = [f"class {number}" for number in range(1, count + 1)]
    counts = {"train": 1_020, "val": 1_020, "test": 6_149}
    return TransferLists(transfer_lists("flowers", parts, counts, classes, 102))


def _number(path: Path, value: Any) -> int:
    """A whole number of a MATLAB array, which stores all as floats or small integers."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{path}: {value!r:.60} is not a number") from None
    if number != value:
        raise ValueError(f"{path}: {value!r:.60} is not a whole number")
    return number


def _read_mat(path: Path, key: str) -> Any:
    """One variable of a MATLAB file of version 5 (the official files are)."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MissingPackageError(
            f"reading {path} needs scipy, which cannot be imported ({error}): "
            "pip install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error
    try:
        content = loadmat(path, squeeze_me=True, variable_names=[key])
    except Exception as error:  # a damaged file can raise anything
        reason = str(error)[:200] or type(error).__name__
        raise ValueError(f"{path} is no readable MATLAB file: {reason}") from error
    if key not in content:
        raise ValueError(f"{path} has no variable {key!r}")
    return content[key]


CIFAR10_LAYOUT = """\
  cifar-10-batches-py/{data_batch_1,...,data_batch_5,test_batch,batches.meta}
                                              (cifar-10-python.tar.gz)"""
CIFAR100_LAYOUT = """\
  cifar-100-python/{train,test,meta}          (cifar-100-python.tar.gz)"""


def read_cifar10(root: Path) -> TransferLists:
    """CIFAR10: the images are written below ``root/png``, unless they are there.

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a file of another content; the message names it.
    """
    return _read(root, CIFAR10, CIFAR10_LAYOUT)


def read_cifar100(root: Path) -> TransferLists:
    """CIFAR100 with its fine labels, see :func:`read_cifar10`."""
    return _read(root, CIFAR100, CIFAR100_LAYOUT)


def _read(root: Path, files: CifarFiles, layout: str) -> TransferLists:
    """Write the images of both splits, numbered in their order, and list them."""
    for name in (files.meta, *(batch for split in files.batches.values() for batch in split)):
        existing(root / files.folder / name, layout)
    name = files.name.lower()
    splits = {split: ARRAY_SETS[name](str(root), split, False) for split in CIFAR_PUBLISHED}
    parts = {}
    for split, images in splits.items():
        paths = [f"png/{split}/{number:05d}.png" for number in range(len(images))]
        rows = zip(images.names(), paths, images.labels.tolist(), strict=True)
        parts[split] = unique_entries(rows, files.num_classes)
        for number, path in enumerate(paths):
            _write_image(root / path, images.image(number))
    classes = list(splits["train"].classes)
    lists = transfer_lists(name, parts, CIFAR_PUBLISHED, classes, files.num_classes)
    return TransferLists(lists)


def _write_image(path: Path, image: np.ndarray) -> None:
    if not path.exists():
        _, encoded = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        write_bytes(path, encoded.tobytes())


LAYOUT = """\
  VOCdevkit/VOC2007/JPEGImages/NUMBER.jpg     (VOCtrainval_06-Nov-2007.tar, VOCtest_06-Nov-2007.tar)
  VOCdevkit/VOC2007/ImageSets/Main/CLASS_{train,val,test}.txt"""
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
VOC2007_PUBLISHED = {"train": 2_501, "val": 2_510, "test": 4_952}


def read_voc2007(root: Path) -> TransferLists:
    """Lists without labels, and tables ``{train,val,test}_labels.txt`` of 1, -1 and 0 (difficult).

    Raises:
        FileNotFoundError: an official file is missing.
        ValueError: a malformed line, or classes that list other images; the message says where.
    """
    tables = {f"{part}_labels.txt": _read_table(root, part) for part in VOC2007_PUBLISHED}
    parts = {
        part: tuple(Entry(path, -1) for path in tables[f"{part}_labels.txt"].paths)
        for part in VOC2007_PUBLISHED
    }
    official = transfer_lists("voc2007", parts, VOC2007_PUBLISHED, CLASSES, 20)
    return TransferLists(official, tables)


def _read_table(root: Path, part: str) -> LabelTable:
    """The 20 lists of a split, whose lines are ``NUMBER LABEL``."""
    folder = root / "VOCdevkit/VOC2007"
    columns: dict[str, dict[str, int]] = {}
    for name in CLASSES:
        path = existing(folder / f"ImageSets/Main/{name}_{part}.txt", LAYOUT)
        columns[name] = {}
        for number, line in read_lines(path):
            words = line.split()
            if len(words) != 2 or words[1] not in ("-1", "0", "1"):
                raise ValueError(f"{path}, line {number}: {line!r} must be 'NUMBER -1', 0 or 1")
            if words[0] in columns[name]:
                raise ValueError(f"{path}, line {number}: {words[0]!r} is listed twice")
            columns[name][words[0]] = int(words[1])
        if columns[name].keys() != columns[CLASSES[0]].keys():
            odd = min(columns[name].keys() ^ columns[CLASSES[0]].keys())
            raise ValueError(
                f"{path} and the list of {CLASSES[0]} have different images, for example {odd!r}"
            )
    images = list(columns[CLASSES[0]])
    labels = [[columns[name][image] for name in CLASSES] for image in images]
    paths = tuple(f"VOCdevkit/VOC2007/JPEGImages/{image}.jpg" for image in images)
    return LabelTable(paths, np.array(labels, dtype=np.int8))
