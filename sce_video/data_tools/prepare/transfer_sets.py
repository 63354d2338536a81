"""The eleven transfer datasets of the paper's many-shot table: from official downloads to lists.

A dataset is described by its layout, its published counts and a function that reads its lists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sce_video.data_tools.prepare.lists import write_lists, write_outputs
from sce_video.data_tools.prepare.official import (
    ClassMap,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    first_existing,
    nearest,
    read_class_file,
    read_lines,
    read_mat,
    read_matches,
    unique_entries,
)
from sce_video.datasets.image_datasets import (
    ARRAY_SETS,
    CIFAR10,
    CIFAR100,
    LabelTable,
    PublishedSet,
)
from sce_video.options.data_commands import PrepareOptions
from sce_video.utils.files import read_json, write_bytes

#: An image: its place in the list, its path below the dataset's folder, and its label.
_Row = tuple[str, str, int]


class _Files(NamedTuple):
    """Official files below ``root``."""

    root: Path
    layout: str

    def path(self, name: str) -> Path:
        """Return the path of a file; FileNotFoundError, with the layout, if it does not exist."""
        return first_existing([self.root / name], self.root, self.layout, name)


class _Content(NamedTuple):
    """Rows of each split, class names, and tables of labels by file name (VOC2007)."""

    parts: Mapping[str, Sequence[_Row]]
    classes: Sequence[str]
    tables: Mapping[str, LabelTable] = {}


class TransferSet(NamedTuple):
    """An official image dataset.

    Attributes:
        layout: Layout of its unpacked downloads.
        published: Number of images of each split, including the validation split if it exists.
        num_classes: Published number of classes.
        read: Function that reads its files, or raises FileNotFoundError or ValueError.
    """

    layout: str
    published: Mapping[str, int]
    num_classes: int
    read: Callable[[_Files], _Content]


def prepare_transfer_set(options: PrepareOptions) -> bool:
    """Check the files, print the counts, and write ``train.txt``, ``val.txt`` and ``test.txt``.

    The lists are written to ``options.out`` or, by default, to ``root/lists``. The lists of VOC2007
    contain only paths, because an image has several labels, which are written to tables.

    Returns:
        True if all counts agree with the published counts.

    Raises:
        FileNotFoundError: If an official file is missing.
        ValueError: If official files are malformed, or if existing lists differ.
        MissingPackageError: If a MATLAB file needs scipy, which cannot be imported.
    """
    name, root = options.name, Path(options.root)
    found = TRANSFER_SETS[name]
    options = replace(options, out=options.out or str(root / "lists"))
    content = found.read(_Files(root, found.layout))
    classes = None if content.tables else len(content.classes)

    def checked(rows: Iterable[_Row]) -> Iterator[_Row]:
        for where, path, label in rows:
            if classes is not None and not 0 <= label < classes:
                raise ValueError(
                    f"{where}: {path!r} has class number {label}, but there are only {classes} "
                    "classes"
                )
            yield where, path, label

    splits = [
        Split(f"{part}.txt", unique_entries(checked(content.parts[part])), published)
        for part, published in found.published.items()
    ]
    for one, other in combinations(splits, 2):
        check_disjoint(name, one, other)
    class_map = ClassMap("classes.txt", tuple(content.classes), found.num_classes)
    official = OfficialLists(name, tuple(splits), (class_map,), kind="image")
    located = {
        path: Located(path, None if os.path.isfile(root / path) else "no such file")
        for path in official.names()
    }
    agrees = write_lists(official, located, options)
    write_outputs({name: table.to_text() for name, table in content.tables.items()}, options)
    return agrees


def _ranked(parts: Mapping[str, Sequence[tuple[str, str, str]]]) -> _Content:
    """Replace the class names of rows by labels, which are the ranks of the sorted names."""
    classes = sorted({name for rows in parts.values() for _, _, name in rows})
    label_of = {name: label for label, name in enumerate(classes)}
    return _Content(
        {part: [(w, path, label_of[n]) for w, path, n in rows] for part, rows in parts.items()},
        classes,
    )


def _read_food(files: _Files) -> _Content:
    """Read Food-101 (Bossard et al. 2014): 101 classes, in the order of classes.txt."""
    files.path("food-101/meta")
    classes = [name for _, name in read_lines(files.path("food-101/meta/classes.txt"), True)]
    parts = {}
    for part in ("train", "test"):
        path = files.path(f"food-101/meta/{part}.json")
        content = read_json(path)
        if not isinstance(content, dict) or not all(
            isinstance(ids, list) and all(isinstance(i, str) for i in ids)
            for ids in content.values()
        ):
            raise ValueError(f"{path} must map every class to its list of CLASS/ID")
        if set(content) != set(classes):
            odd = min(set(content) ^ set(classes))
            raise ValueError(f"{path} and classes.txt have different classes, for example {odd!r}")
        parts[part] = [
            (str(path), f"food-101/images/{name}.jpg", label)
            for label, class_name in enumerate(classes)
            for name in content[class_name]
        ]
    return _Content(parts, classes)


def _read_sun397(files: _Files) -> _Content:
    """Read SUN397 (Xiao et al. 2010), partition 1. Labels are ranks of the class names.

    The class of an image is its folder, ``/a/abbey`` or ``/a/apartment_building/outdoor``.
    """
    listed = read_lines(files.path("ClassName.txt"), unique=True)
    for where, line in listed:
        if not line.startswith("/") or line.count("/") < 2:
            raise ValueError(f"{where}: {line!r} must be '/LETTER/CLASS'")
    # Sort folders such as "/a/abbey" by the part after the letter.
    folders = sorted((folder for _, folder in listed), key=lambda folder: folder[3:])
    label_of = {folder: label for label, folder in enumerate(folders)}
    parts: dict[str, list[_Row]] = {"train": [], "test": []}
    for rows, name in zip(parts.values(), ("Training_01.txt", "Testing_01.txt"), strict=True):
        for where, line in read_lines(files.path(name)):
            folder = line.rpartition("/")[0]
            if folder not in label_of:
                raise ValueError(f"{where}: unknown class {folder!r}; {nearest(folder, label_of)}")
            rows.append((where, line.removeprefix("/"), label_of[folder]))
    return _Content(parts, [folder[3:] for folder in folders])


def _read_aircraft(files: _Files) -> _Content:
    """Read FGVC-Aircraft (Maji et al. 2013): 100 sorted variants, official validation split."""
    parts = {}
    for part in ("train", "val", "test"):
        # Variant names may contain spaces.
        path = files.path(f"data/images_variant_{part}.txt")
        found = read_matches(path, r"(\d{1,18}) \s*(\S.*)", "'NUMBER VARIANT'")
        parts[part] = [(where, f"data/images/{m[1]}.jpg", m[2]) for where, m in found]
    return _ranked(parts)


def _read_dtd(files: _Files) -> _Content:
    """Read DTD (Cimpoi et al. 2014), partition 1: 47 classes, official validation split."""
    parts = {}
    for part in ("train", "val", "test"):
        path = files.path(f"labels/{part}1.txt")
        found = read_matches(path, r"([^/]*)/[^/]*", "'CLASS/FILE.jpg'")
        parts[part] = [(where, f"images/{m[0]}", m[1]) for where, m in found]
    return _ranked(parts)


def _read_pets(files: _Files) -> _Content:
    """Read Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds. The label is CLASS-ID minus one."""
    breeds: dict[int, str] = {}
    parts: dict[str, list[_Row]] = {"train": [], "test": []}
    pattern, form = r"(\S+)\s+(?!0\s)(\d{1,18})\s+\S+\s+\S+", "IMAGE CLASS-ID SPECIES BREED-ID"
    for part, stem in (("train", "trainval"), ("test", "test")):
        path = files.path(f"annotations/{stem}.txt")
        for where, match in read_matches(path, pattern, repr(form)):
            number = int(match[2])
            _name_class(breeds, number, match[1].rpartition("_")[0], where)
            parts[part].append((where, f"images/{match[1]}.jpg", number - 1))
    gap = next((number for number in range(1, max(breeds)) if number not in breeds), None)
    if gap is not None:
        raise ValueError(f"{files.root / 'annotations'}: class {gap} has no image")
    return _Content(parts, [breeds[number] for number in sorted(breeds)])


def _read_caltech101(files: _Files) -> _Content:
    """Read Caltech-101 (Fei-Fei et al. 2004) with the lists of ssl-transfer: 102 classes.

    BACKGROUND_Google is a class. The lists contain 17 to 30 training images per class, and not the
    30 that BYOL and other methods draw.
    """
    classes: dict[int, str] = {}
    parts: dict[str, list[_Row]] = {"train": [], "test": []}
    for part, rows in parts.items():
        pattern, form = r"(([^/]*)/[^/]*) (\d{1,18})", "'CLASS/image_NUMBER.jpg LABEL'"
        for where, match in read_matches(files.path(f"{part}.txt"), pattern, form):
            label = int(match[3])
            _name_class(classes, label, match[2], where)
            rows.append((where, f"caltech101/101_ObjectCategories/{match[1]}", label))
    return _Content(parts, [classes[label] for label in sorted(classes)])


def _name_class(classes: dict[int, str], number: int, name: str, where: str) -> None:
    """Record the name of a class; ValueError if the class had a different name before."""
    if classes.setdefault(number, name) != name:
        raise ValueError(f"{where}: class {number} was {classes[number]!r} on an earlier line")


def _read_cars(files: _Files) -> _Content:
    """Read Stanford Cars (Krause et al. 2013): 196 classes, numbered from 1 in the files."""
    parts = {}
    for part, stem in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        path = files.path(f"devkit/{stem}.mat")
        annotations = np.atleast_1d(read_mat(path, "annotations"))
        if not {"class", "fname"} <= set(annotations.dtype.names or ()):
            raise ValueError(
                f"{path}: its annotations have no 'class' and 'fname'. For the test set, use the "
                "file with labels, cars_test_annos_withlabels.mat"
            )
        parts[part] = [
            (str(path), f"cars_{part}/{name}", _whole_number(path, label) - 1)
            for name, label in zip(annotations["fname"], annotations["class"], strict=True)
        ]
    count = 1 + max(label for rows in parts.values() for _, _, label in rows)
    return _Content(parts, [f"class {number}" for number in range(1, count + 1)])


def _read_flowers(files: _Files) -> _Content:
    """Read Oxford Flowers 102 (Nilsback and Zisserman 2008): official validation split.

    The training set is ``trnid``, 10 images of each class.
    """
    setid, path = files.path("setid.mat"), files.path("imagelabels.mat")
    # The files count classes and images from 1, but our lists count from 0.
    labels = [_whole_number(path, value) - 1 for value in np.atleast_1d(read_mat(path, "labels"))]
    parts: dict[str, list[_Row]] = {"train": [], "val": [], "test": []}
    for rows, key in zip(parts.values(), ("trnid", "valid", "tstid"), strict=True):
        for value in np.atleast_1d(read_mat(setid, key)):
            number = _whole_number(setid, value)
            if not 1 <= number <= len(labels):
                raise ValueError(
                    f"{setid}: {key} names image {number}, but there are only {len(labels)} labels"
                )
            rows.append((str(setid), f"jpg/image_{number:05d}.jpg", labels[number - 1]))
    return _Content(parts, [f"class {number}" for number in range(1, max(labels) + 2)])


def _whole_number(path: Path, value: Any) -> int:
    """Return a whole number from a MATLAB array, which may store it as a float."""
    with contextlib.suppress(TypeError, ValueError):
        if int(value) == value:
            return int(value)
    raise ValueError(f"{path}: {value!r:.60} is not a whole number")


def _read_cifar(files: _Files, cifar: PublishedSet) -> _Content:
    """Write the images of both splits below ``root/png``, unless they exist."""
    for name in (cifar.meta, *(batch for split in cifar.splits.values() for batch in split)):
        files.path(f"{cifar.folder}/{name}")
    name, root = cifar.name.lower(), files.root
    splits = {split: ARRAY_SETS[name](str(root), split, False) for split in cifar.splits}
    parts = {}
    for split, images in splits.items():
        paths = [f"png/{split}/{number:05d}.png" for number in range(len(images))]
        parts[split] = list(zip(images.names(), paths, images.labels.tolist(), strict=True))
        for number, path in enumerate(paths):
            if not (root / path).exists():  # an interrupted run may have written it
                bgr = cv2.cvtColor(images.image(number), cv2.COLOR_RGB2BGR)
                write_bytes(root / path, cv2.imencode(".png", bgr)[1].tobytes())
    return _Content(parts, list(splits["train"].classes))


_VOC_CLASSES = read_class_file("voc2007")


def _read_voc2007(files: _Files) -> _Content:
    """Read VOC2007 (Everingham et al. 2010), whose splits have a list ``NUMBER LABEL`` per class.

    The result contains tables ``*_labels.txt`` with the labels 1, -1 and 0 (difficult).
    """
    tables = {}
    for part in ("train", "val", "test"):
        columns: list[dict[str, int]] = []
        for name in _VOC_CLASSES:
            file_name = f"VOCdevkit/VOC2007/ImageSets/Main/{name}_{part}.txt"
            column: dict[str, int] = {}
            form = "'NUMBER -1', 0 or 1"
            for where, match in read_matches(files.path(file_name), r"(\S+)\s+(-1|0|1)", form):
                if match[1] in column:
                    raise ValueError(f"{where}: {match[1]!r} is listed twice")
                column[match[1]] = int(match[2])
            columns.append(column)
            if column.keys() != columns[0].keys():
                odd = min(column.keys() ^ columns[0].keys())
                raise ValueError(
                    f"{files.root / file_name} and the list of {_VOC_CLASSES[0]} have different "
                    f"images, for example {odd!r}"
                )
        labels = [[column[image] for column in columns] for image in columns[0]]
        paths = tuple(f"VOCdevkit/VOC2007/JPEGImages/{image}.jpg" for image in columns[0])
        tables[part] = LabelTable(paths, np.array(labels, dtype=np.int8))
    parts = {part: [("", path, -1) for path in table.paths] for part, table in tables.items()}
    named = {f"{part}_labels.txt": table for part, table in tables.items()}
    return _Content(parts, _VOC_CLASSES, named)


#: Keys are the names that ``sce-video prepare`` uses.
TRANSFER_SETS = {
    "food101": TransferSet(
        """\
  food-101/images/CLASS/ID.jpg                (food-101.tar.gz)
  food-101/meta/{train,test}.json, food-101/meta/classes.txt""",
        {"train": 75_750, "test": 25_250}, 101, _read_food,
    ),
    "cifar10": TransferSet(
        """\
  cifar-10-batches-py/{data_batch_1,...,data_batch_5,test_batch,batches.meta}
                                              (cifar-10-python.tar.gz)""",
        CIFAR10.counts, 10, lambda files: _read_cifar(files, CIFAR10),
    ),
    "cifar100": TransferSet(
        """\
  cifar-100-python/{train,test,meta}          (cifar-100-python.tar.gz)""",
        CIFAR100.counts, 100, lambda files: _read_cifar(files, CIFAR100),
    ),
    "sun397": TransferSet(
        """\
  a/abbey/sun_*.jpg ... z/.../sun_*.jpg       (SUN397.tar.gz)
  ClassName.txt                               (SUN397.tar.gz)
  Training_01.txt, Testing_01.txt             (Partitions.zip)""",
        {"train": 19_850, "test": 19_850}, 397, _read_sun397,
    ),
    "cars": TransferSet(
        """\
  cars_train/NUMBER.jpg                       (cars_train.tgz)
  cars_test/NUMBER.jpg                        (cars_test.tgz)
  devkit/cars_train_annos.mat                 (car_devkit.tgz)
  devkit/cars_test_annos_withlabels.mat""",
        {"train": 8_144, "test": 8_041}, 196, _read_cars,
    ),
    "aircraft": TransferSet(
        """\
  data/images/NUMBER.jpg                      (fgvc-aircraft-2013b.tar.gz)
  data/images_variant_{train,val,test}.txt""",
        {"train": 3_334, "val": 3_333, "test": 3_333}, 100, _read_aircraft,
    ),
    "voc2007": TransferSet(
        """\
  VOCdevkit/VOC2007/JPEGImages/NUMBER.jpg     (VOCtrainval_06-Nov-2007.tar, VOCtest_06-Nov-2007.tar)
  VOCdevkit/VOC2007/ImageSets/Main/CLASS_{train,val,test}.txt""",
        {"train": 2_501, "val": 2_510, "test": 4_952}, 20, _read_voc2007,
    ),
    "dtd": TransferSet(
        """\
  images/CLASS/CLASS_NUMBER.jpg               (dtd-r1.0.1.tar.gz)
  labels/{train,val,test}1.txt""",
        {"train": 1_880, "val": 1_880, "test": 1_880}, 47, _read_dtd,
    ),
    "pets": TransferSet(
        """\
  images/BREED_NUMBER.jpg                     (images.tar.gz)
  annotations/{trainval,test}.txt             (annotations.tar.gz)""",
        {"train": 3_680, "test": 3_669}, 37, _read_pets,
    ),
    "caltech101": TransferSet(
        """\
  caltech101/101_ObjectCategories/CLASS/image_NUMBER.jpg   (101_ObjectCategories.tar.gz)
  train.txt, test.txt              (linusericsson/ssl-transfer on GitHub, caltech101-splits/)""",
        {"train": 2_416, "test": 6_728}, 102, _read_caltech101,
    ),
    "flowers": TransferSet(
        """\
  jpg/image_NUMBER.jpg                        (102flowers.tgz)
  setid.mat, imagelabels.mat""",
        {"train": 1_020, "val": 1_020, "test": 6_149}, 102, _read_flowers,
    ),
}  # fmt: skip
