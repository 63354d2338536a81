"""Transfer sets whose official lists are text: Food-101, SUN397, Aircraft, DTD, Pets, Caltech-101.

Labels are those of linusericsson/ssl-transfer, ``datasets/*.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sce_video.data_tools.preparation.official import is_count, nearest, read_lines
from sce_video.data_tools.transfer.common import (
    TransferLists,
    existing,
    transfer_lists,
    unique_entries,
)
from sce_video.utils.json_files import read_json

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
