"""Tiny-ImageNet: the folder tiny-imagenet-200 of the official archive."""

from __future__ import annotations

from pathlib import Path

from sce_video.data_tools.preparation.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_class_folders,
    class_folders,
    first_existing,
    locate_images,
    nearest,
    read_lines,
    read_wnids,
)

LAYOUT = """\
  tiny-imagenet-200/wnids.txt                                      (tiny-imagenet-200.zip)
  tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG
  tiny-imagenet-200/train/n01443537/n01443537_boxes.txt
  tiny-imagenet-200/val/images/val_0.JPEG
  tiny-imagenet-200/val/val_annotations.txt"""

# Le and Yang 2015: 500 training and 50 validation images of each class.
PUBLISHED_CLASSES = 200
PER_CLASS = {"train": 500, "val": 50}
_ARCHIVE = "tiny-imagenet-200.zip"


def tiny_imagenet_folder(root: Path) -> Path:
    """``root/tiny-imagenet-200``, or ``root`` if that is the folder itself."""
    candidates = [root / "tiny-imagenet-200/wnids.txt", root / "wnids.txt"]
    return first_existing(candidates, root, LAYOUT, "list of classes").parent


def read_tiny_imagenet(root: Path) -> OfficialLists:
    """Read wnids.txt, WNID_boxes.txt of every class and val_annotations.txt.

    Labels are the ranks of the sorted WordNet ids. The images of ``test`` have no labels and are
    in no list.

    Raises:
        FileNotFoundError: A list is missing.
        ValueError: A malformed line, an unknown class, an image listed twice, a missing class
            folder; the message names file and line.
    """
    folder = tiny_imagenet_folder(root)
    wnids = read_wnids(folder / "wnids.txt")
    train = first_existing([folder / "train"], root, LAYOUT, "folder of training images")
    check_class_folders(train, class_folders(train), wnids, _ARCHIVE)
    entries: list[Entry] = []
    for label, wnid in enumerate(wnids):
        boxes = first_existing([train / wnid / f"{wnid}_boxes.txt"], root, LAYOUT, "list of boxes")
        rows = _read_rows(boxes, columns=5)
        entries += [Entry(f"train/{wnid}/images/{row[0]}", label) for row in rows]
    annotations = first_existing(
        [folder / "val/val_annotations.txt"], root, LAYOUT, "list of validation images"
    )
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    val: list[Entry] = []
    for row in _read_rows(annotations, columns=6):
        if row[1] not in label_of:
            raise ValueError(
                f"{annotations}: {row[0]} has the unknown class {row[1]!r}; "
                f"{nearest(row[1], wnids)} (wnids.txt)"
            )
        val.append(Entry(f"val/images/{row[0]}", label_of[row[1]]))
    splits = tuple(
        Split(f"{part}.txt", tuple(found), PUBLISHED_CLASSES * each, per_class=each)
        for (part, each), found in zip(PER_CLASS.items(), (entries, val), strict=True)
    )
    return OfficialLists(
        name="tiny_imagenet",
        splits=splits,
        class_maps=(ClassMap("classes.txt", wnids, PUBLISHED_CLASSES),),
        kind="image",
    )


def _read_rows(path: Path, columns: int) -> list[list[str]]:
    """Rows of a table with tabs; the first column is the name of an image, the last four a box.

    Raises:
        ValueError: Another number of columns, a name with a folder, or one listed twice.
    """
    rows: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        row = line.split("\t")
        if len(row) != columns or "/" in row[0] or not all(x.isdecimal() for x in row[-4:]):
            what = "NAME WNID X0 Y0 X1 Y1" if columns == 6 else "NAME X0 Y0 X1 Y1"
            raise ValueError(f"{path}, line {number}: {line!r:.200} must be {what!r}, with tabs")
        if row[0] in rows:
            raise ValueError(f"{path}, line {number}: {row[0]!r} is listed twice")
        rows[row[0]] = row
    return list(rows.values())


def locate_tiny_imagenet(root: Path, official: OfficialLists) -> dict[str, Located]:
    """Locations of the images, by name."""
    return locate_images(root, tiny_imagenet_folder(root), official)
