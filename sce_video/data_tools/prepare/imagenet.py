"""ImageNet (ILSVRC2012), ImageNet100 and Tiny-ImageNet: labels are the ranks of the WordNet ids."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Downloads,
    Entry,
    OfficialLists,
    Split,
    files_below,
    is_count,
    nearest,
    read_class_file,
    read_lines,
    read_mat,
    unique_entries,
)
from sce_video.datasets.video_list import IMAGE_EXTENSIONS

IMAGENET = Downloads(
    """\
  train/n01440764/n01440764_10026.JPEG                  (ILSVRC2012_img_train.tar: a tar per class)
  val/ILSVRC2012_val_00000001.JPEG                      (ILSVRC2012_img_val.tar), with
  ILSVRC2012_devkit_t12/data/meta.mat                   (ILSVRC2012_devkit_t12.tar.gz)
  ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt
or, in place of the last three,
  val/n01440764/ILSVRC2012_val_00000293.JPEG"""
)

# The numbers are from Russakovsky et al. 2015. ImageNet100's images were counted in the archive.
#: The 100 classes of ImageNet100, sorted. A class's label is its position. The same classes are in
#: the table "classes" of the paper's appendix, in CMC (Tian et al. 2020), and in
#: juliendenize/eztorch (eztorch/datamodules/imagenet.py, ``Imagenet100DataModule.class_list``).
IMAGENET100_CLASSES = read_class_file("imagenet100")
#: Number of classes in ImageNet.
PUBLISHED_CLASSES = 1000
#: Number of training images in ImageNet.
PUBLISHED_TRAIN = 1_281_167
#: Number of training images in ImageNet100.
PUBLISHED_TRAIN_100 = 126_689
#: Number of validation images per class.
VAL_PER_CLASS = 50
_TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
_VAL_ARCHIVE = "ILSVRC2012_img_val.tar"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_WNID = re.compile(r"n[0-9]{8}")


def read_imagenet(root: Path, imagenet100: bool = False) -> OfficialLists:
    """Read the class folders of ``train``, and those of ``val`` or the labels in the devkit.

    Names are paths below ``root``: ``train/WNID/FILE`` and ``val/WNID/FILE``, or
    ``val/ILSVRC2012_val_00000001.JPEG`` if ``val`` has no class folders. In this case, line i of
    the devkit's ground truth contains the class of image i.

    Raises:
        FileNotFoundError: If ``train`` or ``val`` is missing, or ``val`` has no class folders and
            the devkit is missing.
        ValueError: If a class folder is missing, empty or unknown, archives are not unpacked, or
            the devkit is damaged.
    """
    meta = root / _DEVKIT / "meta.mat"
    ids = read_devkit_ids(meta) if meta.exists() else None
    train = IMAGENET.find(root, None, "folder of training images", "train")
    present = _class_folders(train)
    tars = sorted(train.glob("n*.tar"))
    if tars and len(present) < len(tars):  # the archive of training images contains 1,000 archives
        raise ValueError(
            f"{train} contains {len(tars)} archives such as {tars[0].name}. Unpack each of them "
            'into its own folder: for f in n*.tar; do mkdir -p "${f%.tar}" && tar xf "$f" -C '
            '"${f%.tar}"; done'
        )
    if not present:
        raise ValueError(f"{train} contains no class folder such as n01440764")
    known = sorted(ids.values()) if ids else present
    wnids = IMAGENET100_CLASSES if imagenet100 else tuple(known)
    _require_folders(train, present, wnids, _TRAIN_ARCHIVE)
    unknown = sorted(set(present) - set(known))
    if unknown:
        raise ValueError(f"{train / unknown[0]} is not a class folder of ImageNet (meta.mat)")

    name = "imagenet100" if imagenet100 else "imagenet"
    count = 100 if imagenet100 else PUBLISHED_CLASSES
    images = PUBLISHED_TRAIN_100 if imagenet100 else PUBLISHED_TRAIN
    train_split = Split(f"{name}_train.txt", _entries_of_folders(root, "train", wnids), images)
    val_entries, each = _read_val(root, wnids, present, ids), VAL_PER_CLASS
    val_split = Split(f"{name}_val.txt", val_entries, count * each, per_class=each)
    class_map = ClassMap(f"{name}_classes.txt", wnids, count)
    return OfficialLists(name, (train_split, val_split), (class_map,), kind="image")


def _read_val(
    root: Path, wnids: Sequence[str], train_folders: Sequence[str], ids: dict[int, str] | None
) -> tuple[Entry, ...]:
    """Read the validation images of the classes ``wnids``. Labels are positions in them."""
    val = IMAGENET.find(root, None, "folder of validation images", "val")
    folders = _class_folders(val)
    if folders:
        _require_folders(val, folders, wnids, _VAL_ARCHIVE)
        unknown = sorted(set(folders) - set(ids.values() if ids else train_folders))
        if unknown:
            raise ValueError(f"{root / 'train'} has no class folder {unknown[0]}, but {val} does")
        return _entries_of_folders(root, "val", wnids)
    truth = "ground truth of the validation images, which are not in class folders"
    name = f"{_DEVKIT}/ILSVRC2012_validation_ground_truth.txt"
    path = IMAGENET.find(root, None, truth, name)
    IMAGENET.find(root, None, "meta.mat of the devkit", f"{_DEVKIT}/meta.mat")
    if not files_below(val, IMAGE_EXTENSIONS):
        raise ValueError(f"{val} contains no images. Unpack {_VAL_ARCHIVE} again")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    entries = []
    for image, (where, line) in enumerate(read_lines(path), 1):
        if not is_count(line) or ids is None or int(line) not in ids:
            raise ValueError(f"{where}: {line!r:.100} is not the id of a class (meta.mat)")
        if ids[int(line)] in label_of:
            label = label_of[ids[int(line)]]
            entries.append(Entry(f"val/ILSVRC2012_val_{image:08d}.JPEG", label))
    return tuple(entries)


def read_devkit_ids(path: Path) -> dict[int, str]:
    """Return the WordNet ids of the classes, which are synsets without children, by ILSVRC2012 id.

    Raises:
        ValueError: If the file is damaged, or two classes have the same id.
    """
    synsets = read_mat(path, "synsets")
    try:
        leaves = [row for row in synsets if int(row["num_children"]) == 0]
        found = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
    except Exception as error:  # a damaged MATLAB file can raise any error
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise ValueError(f"{path} is not the devkit's meta.mat ({reason})") from error
    if not found or len(set(found.values())) != len(leaves):
        raise ValueError(f"{path} names no classes, or names one of them twice")
    return found


def _class_folders(folder: Path) -> list[str]:
    """Return the sorted names of the sub-folders that are WordNet ids (``n01440764``)."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if _WNID.fullmatch(e.name) and e.is_dir())


def _require_folders(
    folder: Path, present: Collection[str], wanted: Sequence[str], archive: str
) -> None:
    """Raise ValueError if a class has no folder, which would shift the labels of later classes."""
    missing = [wnid for wnid in wanted if wnid not in present]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(wanted)} class folders: {shown}. Unpack "
            f"{archive} again"
        )


def _entries_of_folders(root: Path, part: str, wnids: Sequence[str]) -> tuple[Entry, ...]:
    """Return the sorted images in ``root/part/WNID/`` of each class."""
    entries: list[Entry] = []
    for label, wnid in enumerate(wnids):
        names = files_below(root / part / wnid, IMAGE_EXTENSIONS)
        if not names:
            raise ValueError(f"{root / part / wnid} contains no images. Unpack its archive again")
        entries += [Entry(f"{part}/{wnid}/{name}", label) for name in names]
    return tuple(entries)


TINY_IMAGENET = Downloads(
    """\
  tiny-imagenet-200/wnids.txt                                      (tiny-imagenet-200.zip)
  tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG
  tiny-imagenet-200/train/n01443537/n01443537_boxes.txt
  tiny-imagenet-200/val/images/val_0.JPEG
  tiny-imagenet-200/val/val_annotations.txt""",
    lists=("tiny-imagenet-200", ""),
)

#: Number of classes in Tiny ImageNet (Le and Yang 2015).
TINY_IMAGENET_CLASSES = 200
#: Number of images per class and split in Tiny ImageNet.
PER_CLASS = {"train": 500, "val": 50}
_ARCHIVE = "tiny-imagenet-200.zip"


def tiny_imagenet_folder(root: Path) -> Path:
    """Return ``root/tiny-imagenet-200``, or ``root`` if it contains the files itself."""
    return TINY_IMAGENET.find(root, None, "list of classes", "wnids.txt").parent


def read_tiny_imagenet(root: Path) -> OfficialLists:
    """Read wnids.txt, WNID_boxes.txt of every class and val_annotations.txt.

    Labels are ranks of the sorted ids, and not line numbers of wnids.txt. The images of ``test``
    have no labels and are not listed. Columns are separated by tabs: ``NAME X0 Y0 X1 Y1`` for
    training images, ``NAME WNID X0 Y0 X1 Y1`` for validation images. Boxes are not used.
    """
    folder = tiny_imagenet_folder(root)
    listed = read_lines(folder / "wnids.txt", unique=True)
    for where, line in listed:
        if not _WNID.fullmatch(line):
            raise ValueError(f"{where}: {line!r:.100} is not a WordNet id such as n01440764")
    wnids = tuple(sorted(wnid for _, wnid in listed))
    train = TINY_IMAGENET.find(root, folder, "folder of training images", "train")
    _require_folders(train, _class_folders(train), wnids, _ARCHIVE)
    label_of = {wnid: label for label, wnid in enumerate(wnids)}

    def train_rows() -> Iterator[tuple[str, str, int]]:
        for wnid, label in label_of.items():
            name = f"train/{wnid}/{wnid}_boxes.txt"
            boxes = TINY_IMAGENET.find(root, folder, "list of boxes", name)
            for where, (name, *_) in _read_rows(boxes, "NAME X0 Y0 X1 Y1"):
                yield where, f"train/{wnid}/images/{name}", label

    def val_rows() -> Iterator[tuple[str, str, int]]:
        what, name = "list of validation images", "val/val_annotations.txt"
        annotations = TINY_IMAGENET.find(root, folder, what, name)
        for where, (name, wnid, *_) in _read_rows(annotations, "NAME WNID X0 Y0 X1 Y1"):
            if wnid not in label_of:
                known = f"{nearest(wnid, wnids)} (wnids.txt)"
                raise ValueError(f"{where}: {name} has the unknown class {wnid!r}; {known}")
            yield where, f"val/images/{name}", label_of[wnid]

    rows = {"train": unique_entries(train_rows()), "val": unique_entries(val_rows())}
    splits = tuple(
        Split(f"{part}.txt", rows[part], TINY_IMAGENET_CLASSES * each, per_class=each)
        for part, each in PER_CLASS.items()
    )
    class_map = ClassMap("classes.txt", wnids, TINY_IMAGENET_CLASSES)
    return OfficialLists("tiny_imagenet", splits, (class_map,), kind="image")


def _read_rows(path: Path, form: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of rows that begin with a file name and end with a box."""
    for where, line in read_lines(path):
        row = line.split("\t")
        good = len(row) == len(form.split()) and "/" not in row[0]
        if not good or not all(cell.isdecimal() for cell in row[-4:]):
            raise ValueError(f"{where}: {line!r:.200} must be {form!r}, with tabs")
        yield where, row
