"""Small trees of exactly the official layouts of CIFAR10/100, STL10, Tiny-ImageNet and ImageNet.

File names, formats, byte orders and lists are as in the official archives, counts are scaled down.
Images of a class share a colour, so that the classes can be learned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

TINY_WNIDS = ("n02124075", "n01443537", "n04067472")  # wnids.txt is not sorted
IMAGENET_WNIDS = ("n01440764", "n01443537", "n01484850")


def colour(label: int) -> np.ndarray:
    """The colour of a class, (3,) from 40 to 215."""
    return np.random.default_rng([label]).uniform(40, 215, 3)


def draw(label: int, number: int, height: int, width: int) -> np.ndarray:
    """(H, W, 3) uint8: the colour of a class, with a pattern of its own for every image."""
    rng = np.random.default_rng([label, number])
    coarse = colour(label) + rng.normal(0, 25, (4, 4, 3))
    image = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.BICUBIC))


# -- pickles of Python 2 ---------------------------------------------------------------------


def python2_pickle(batch: dict) -> bytes:
    """A dict of text, lists and one uint8 array as cPickle of Python 2 wrote it, protocol 2.

    Text is a byte string there (opcode BINSTRING), and so are the bytes of an array.
    """
    return b"\x80\x02" + _encode(batch) + b"."


def _encode(value: object) -> bytes:
    if isinstance(value, dict):
        items = b"".join(_encode(key) + _encode(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_encode, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        return _string(value.encode())
    assert isinstance(value, np.ndarray) and value.dtype == np.uint8
    dtype = (
        b"cnumpy\ndtype\n(" + _string(b"u1") + b"K\x00K\x01tR("
        b"K\x03" + _string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"(" + b"".join(_encode(n) for n in value.shape) + b"t"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t"
        + _string(b"b")
        + b"tR(K\x01"
        + shape
        + dtype
        + b"\x89"  # C order
        + _string(value.tobytes())
        + b"tb"
    )


def _string(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


# -- sets of arrays --------------------------------------------------------------------------


def make_cifar10(root: Path, per_class: int = 2) -> Path:
    """``cifar-10-batches-py`` in ``root``; every batch has ``per_class`` images of every class."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for batch, name in enumerate(names):
        labels = [label for _ in range(per_class) for label in range(10)]
        images = [draw(x, 100 * batch + i, 32, 32).transpose(2, 0, 1) for i, x in enumerate(labels)]
        content = {
            "batch_label": f"batch {batch + 1} of 6",
            "labels": labels,
            "data": np.stack(images).reshape(len(labels), 3072),
            "filenames": [f"thing_s_{batch}{i:05d}.png" for i in range(len(labels))],
        }
        (folder / name).write_bytes(python2_pickle(content))
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship"]
    meta = {"num_cases_per_batch": 10000, "label_names": [*classes, "truck"], "num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))
    return root


def make_cifar100(root: Path, per_class: int = 1) -> Path:
    """``cifar-100-python`` in ``root``."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, name in enumerate(("train", "test")):
        labels = [label for _ in range(per_class) for label in range(99, -1, -1)]
        images = [draw(x, 100 * part + i, 32, 32).transpose(2, 0, 1) for i, x in enumerate(labels)]
        content = {
            "filenames": [f"thing_s_{i:06d}.png" for i in range(len(labels))],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": labels,
            "coarse_labels": [label // 5 for label in labels],
            "data": np.stack(images).reshape(len(labels), 3072),
        }
        (folder / name).write_bytes(python2_pickle(content))
    meta = {
        "fine_label_names": [f"fine_{label:02d}" for label in range(100)],
        "coarse_label_names": [f"coarse_{label:02d}" for label in range(20)],
    }
    (folder / "meta").write_bytes(python2_pickle(meta))
    return root


def make_stl10(root: Path, per_class: int = 1, unlabeled: int = 12) -> Path:
    """``stl10_binary`` in ``root``: planes stored column by column, labels from 1."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for part, first in (("train", 0), ("test", 100)):
        labels = [label for _ in range(per_class) for label in range(10)]
        _write_stl10(folder / f"{part}_X.bin", labels, first)
        (folder / f"{part}_y.bin").write_bytes(bytes(label + 1 for label in labels))
    _write_stl10(folder / "unlabeled_X.bin", [number % 10 for number in range(unlabeled)], 200)
    classes = "airplane bird car cat deer dog horse monkey ship truck".split()
    (folder / "class_names.txt").write_text("\n".join(classes))
    return root


def _write_stl10(path: Path, labels: Sequence[int], first: int) -> None:
    with open(path, "wb") as file:
        for number, label in enumerate(labels):
            image = draw(label, first + number, 96, 96)
            for channel in range(3):
                file.write(image[:, :, channel].tobytes(order="F"))


# -- trees of files --------------------------------------------------------------------------


def write_jpeg(path: Path, image: np.ndarray, mode: str = "RGB") -> Path:
    """Write a JPEG file, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).convert(mode).save(path, "JPEG", quality=90)
    return path


def make_tiny_imagenet(root: Path, train: int = 3, val: int = 2) -> Path:
    """``tiny-imagenet-200`` in ``root``, with three classes; the first image of each is grey."""
    folder = root / "tiny-imagenet-200"
    for label, wnid in enumerate(sorted(TINY_WNIDS)):
        lines = []
        for i in range(train):
            path = folder / f"train/{wnid}/images/{wnid}_{i}.JPEG"
            write_jpeg(path, draw(label, i, 64, 64), "RGB" if i else "L")
            lines.append(f"{path.name}\t0\t10\t63\t58\n")
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text("".join(lines))
    annotations = []
    for number in range(val * len(TINY_WNIDS)):
        label = number % len(TINY_WNIDS)
        name = f"val_{number}.JPEG"
        write_jpeg(folder / "val/images" / name, draw(label, 100 + number, 64, 64))
        annotations.append(f"{name}\t{sorted(TINY_WNIDS)[label]}\t0\t32\t44\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(annotations))
    write_jpeg(folder / "test/images/test_0.JPEG", draw(0, 200, 64, 64))
    (folder / "wnids.txt").write_text("\n".join(TINY_WNIDS))
    return root


def make_imagenet(
    root: Path,
    wnids: Sequence[str] = IMAGENET_WNIDS,
    train: int = 2,
    val: int = 1,
    flat_val: bool = True,
    size: tuple[int, int] = (60, 80),
) -> Path:
    """``train/<wnid>``, and ``val`` flat with the devkit, or in folders without it."""
    for label, wnid in enumerate(sorted(wnids)):
        for i in range(train):
            write_jpeg(root / f"train/{wnid}/{wnid}_{10 + i}.JPEG", draw(label, i, *size))
    devkit_ids = sorted(wnids, reverse=True)  # an order of its own
    truth = []
    for number in range(val * len(wnids)):
        label = (number * 2) % len(wnids) if len(wnids) % 2 else number % len(wnids)
        wnid = sorted(wnids)[label]
        truth.append(devkit_ids.index(wnid) + 1)
        name = f"ILSVRC2012_val_{number + 1:08d}.JPEG"
        folder = root / "val" if flat_val else root / "val" / wnid
        write_jpeg(folder / name, draw(label, 100 + number, *size))
    if flat_val:
        write_devkit(root, devkit_ids, truth, train)
    return root


def write_devkit(root: Path, wnids: Sequence[str], truth: Sequence[int], train: int) -> None:
    """``ILSVRC2012_devkit_t12/data``: meta.mat with an inner synset too, and the ground truth."""
    from scipy.io import savemat

    folder = root / "ILSVRC2012_devkit_t12/data"
    folder.mkdir(parents=True)
    fields = [
        ("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("gloss", object),
        ("num_children", object), ("children", object), ("wordnet_height", object),
        ("num_train_images", object),
    ]  # fmt: skip
    rows = [
        (float(i), wnid, f"thing {wnid}, stuff", "a thing", 0.0, np.zeros((1, 0)), 0.0, train)
        for i, wnid in enumerate(wnids, 1)
    ]
    inner = float(len(wnids) + 1)
    rows.append((inner, "n00001740", "entity", "all", 3.0, np.array([[1.0, 2.0, 3.0]]), 3.0, 0))
    synsets = np.array(rows, dtype=fields).reshape(-1, 1)
    savemat(folder / "meta.mat", {"synsets": synsets})
    text = "".join(f"{number}\n" for number in truth)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(text)
