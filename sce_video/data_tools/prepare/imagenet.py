"""ImageNet (ILSVRC2012) and ImageNet100: class folders, and the flat val with the devkit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Downloads,
    Entry,
    OfficialLists,
    Split,
    check_class_folders,
    class_folders,
    entries_of_folders,
    first_existing,
    is_count,
    list_images,
    nearest,
    read_lines,
    read_wnids,
)

IMAGENET = Downloads(
    """\
  train/n01440764/n01440764_10026.JPEG                  (ILSVRC2012_img_train.tar: a tar per class)
  val/ILSVRC2012_val_00000001.JPEG                      (ILSVRC2012_img_val.tar), with
  ILSVRC2012_devkit_t12/data/meta.mat                   (ILSVRC2012_devkit_t12.tar.gz)
  ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt
or, in place of the last three,
  val/n01440764/ILSVRC2012_val_00000293.JPEG"""
)

# Russakovsky et al. 2015. The training images of the 100 classes are counted in the archive.
#: The 100 classes of ImageNet100, sorted: the label of a class is its rank. The paper's table
#: "classes" of the appendix, which is the list of CMC (Tian et al. 2020) and
#: ``Imagenet100DataModule.class_list`` in eztorch/datamodules/imagenet.py of juliendenize/eztorch.
IMAGENET100_CLASSES: tuple[str, ...] = tuple(
    (Path(__file__).parent / "classes" / "imagenet100.txt").read_text(encoding="utf-8").splitlines()
)
PUBLISHED_CLASSES = 1000
PUBLISHED_TRAIN = 1_281_167
PUBLISHED_TRAIN_100 = 126_689
VAL_PER_CLASS = 50
_TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
_VAL_ARCHIVE = "ILSVRC2012_img_val.tar"


def read_imagenet(root: Path, imagenet100: bool = False) -> OfficialLists:
    """Read the class folders of ``train``, and ``val`` in folders or flat with the devkit.

    Labels are the ranks of the sorted WordNet ids, for ImageNet100 among its 100; train and val
    have the same classes.

    Args:
        root: Folder of ``train`` and ``val``.
        imagenet100: Only the classes of :data:`IMAGENET100_CLASSES`.

    Raises:
        FileNotFoundError: No ``train``, no ``val``, or a flat one without the devkit.
        ValueError: A class folder is missing or empty, an unknown one, archives that are not
            unpacked, or a damaged devkit.
    """
    devkit = root / "ILSVRC2012_devkit_t12/data"
    ids = read_devkit_ids(devkit / "meta.mat") if (devkit / "meta.mat").exists() else None
    train = first_existing([root / "train"], root, IMAGENET.layout, "folder of training images")
    present = class_folders(train)
    _check_unpacked(train, present)
    known = sorted(ids.values()) if ids else present
    wnids = IMAGENET100_CLASSES if imagenet100 else tuple(known)
    check_class_folders(train, present, wnids, _TRAIN_ARCHIVE)
    unknown = sorted(set(present) - set(known))
    if unknown:
        raise ValueError(f"{train / unknown[0]} is no class folder of ImageNet (meta.mat)")
    name = "imagenet100" if imagenet100 else "imagenet"
    published = 100 if imagenet100 else PUBLISHED_CLASSES
    images = PUBLISHED_TRAIN_100 if imagenet100 else PUBLISHED_TRAIN
    return OfficialLists(
        name=name,
        splits=(
            Split(f"{name}_train.txt", entries_of_folders(root, "train", wnids), images),
            Split(
                f"{name}_val.txt",
                _read_val(root, wnids, present, ids),
                published * VAL_PER_CLASS,
                per_class=VAL_PER_CLASS,
            ),
        ),
        class_maps=(ClassMap(f"{name}_classes.txt", wnids, published),),
        kind="image",
    )


def _check_unpacked(train: Path, present: Sequence[str]) -> None:
    """Refuse the 1000 tars that are inside the archive of the training images."""
    tars = sorted(train.glob("n*.tar"))
    if tars and len(present) < len(tars):
        raise ValueError(
            f"{train} holds {len(tars)} archives as {tars[0].name}: unpack each in a folder of "
            'its own: for f in n*.tar; do mkdir -p "${f%.tar}" && tar xf "$f" -C "${f%.tar}"; done'
        )
    if not present:
        raise ValueError(f"{train} holds no class folder such as n01440764")


def _read_val(
    root: Path, wnids: Sequence[str], train_folders: Sequence[str], ids: dict[int, str] | None
) -> tuple[Entry, ...]:
    """Validation images of the classes ``wnids``, whose ranks are the labels."""
    val = first_existing([root / "val"], root, IMAGENET.layout, "folder of validation images")
    folders = class_folders(val)
    if folders:
        check_class_folders(val, folders, wnids, _VAL_ARCHIVE)
        unknown = sorted(set(folders) - set(ids.values() if ids else train_folders))
        if unknown:
            raise ValueError(f"{val / unknown[0]} has no folder of that name in {root / 'train'}")
        return entries_of_folders(root, "val", wnids)
    path = root / "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
    what = "ground truth of the validation images, which are not in class folders"
    first_existing([path], root, IMAGENET.layout, what)
    if ids is None:
        first_existing(
            [path.with_name("meta.mat")], root, IMAGENET.layout, "meta.mat of the devkit"
        )
    if not list_images(val):
        raise ValueError(f"{val} holds no image: unpack {_VAL_ARCHIVE} again")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    entries = []
    for image, (number, line) in enumerate(read_lines(path), 1):
        wnid = (ids or {}).get(int(line)) if is_count(line) else None
        if wnid is None:
            raise ValueError(f"{path}, line {number}: {line!r:.100} is no id of a class (meta.mat)")
        if wnid in label_of:
            entries.append(Entry(f"val/ILSVRC2012_val_{image:08d}.JPEG", label_of[wnid]))
    return tuple(entries)


def read_devkit_ids(path: Path) -> dict[int, str]:
    """WordNet id of each ILSVRC2012 id, of the classes: synsets without children.

    Raises:
        ValueError: The file is damaged or holds something else.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:  # a dependency of mmaction2
        raise ValueError(f"reading {path} needs scipy: pip install scipy") from error
    try:
        synsets = loadmat(path, squeeze_me=True, variable_names=["synsets"])["synsets"]
        leaves = [row for row in synsets if int(row["num_children"]) == 0]
        found = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
    except Exception as error:  # a damaged MAT file can raise anything
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise ValueError(f"{path} is not the devkit's meta.mat ({reason})") from error
    if not found or len(set(found.values())) != len(leaves):
        raise ValueError(f"{path} names no classes, or one twice")
    return found


TINY_IMAGENET = Downloads(
    """\
  tiny-imagenet-200/wnids.txt                                      (tiny-imagenet-200.zip)
  tiny-imagenet-200/train/n01443537/images/n01443537_0.JPEG
  tiny-imagenet-200/train/n01443537/n01443537_boxes.txt
  tiny-imagenet-200/val/images/val_0.JPEG
  tiny-imagenet-200/val/val_annotations.txt"""
)

# Le and Yang 2015: 500 training and 50 validation images of each class.
TINY_IMAGENET_CLASSES = 200
PER_CLASS = {"train": 500, "val": 50}
_ARCHIVE = "tiny-imagenet-200.zip"


def tiny_imagenet_folder(root: Path) -> Path:
    """``root/tiny-imagenet-200``, or ``root`` if that is the folder itself."""
    candidates = [root / "tiny-imagenet-200/wnids.txt", root / "wnids.txt"]
    return first_existing(candidates, root, TINY_IMAGENET.layout, "list of classes").parent


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
    train = first_existing(
        [folder / "train"], root, TINY_IMAGENET.layout, "folder of training images"
    )
    check_class_folders(train, class_folders(train), wnids, _ARCHIVE)
    entries: list[Entry] = []
    for label, wnid in enumerate(wnids):
        boxes = first_existing(
            [train / wnid / f"{wnid}_boxes.txt"], root, TINY_IMAGENET.layout, "list of boxes"
        )
        rows = _read_rows(boxes, columns=5)
        entries += [Entry(f"train/{wnid}/images/{row[0]}", label) for row in rows]
    annotations = first_existing(
        [folder / "val/val_annotations.txt"],
        root,
        TINY_IMAGENET.layout,
        "list of validation images",
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
        Split(f"{part}.txt", tuple(found), TINY_IMAGENET_CLASSES * each, per_class=each)
        for (part, each), found in zip(PER_CLASS.items(), (entries, val), strict=True)
    )
    return OfficialLists(
        name="tiny_imagenet",
        splits=splits,
        class_maps=(ClassMap("classes.txt", wnids, TINY_IMAGENET_CLASSES),),
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


SETS = {
    "imagenet": (IMAGENET, read_imagenet),
    "tiny_imagenet": (TINY_IMAGENET, read_tiny_imagenet),
}
