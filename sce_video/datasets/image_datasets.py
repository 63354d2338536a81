"""The data set of images: a list or a folder of image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.video_dataset import Transform, VideoDataset
from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VideoList
from sce_video.registry import DATASETS
from sce_video.utils.plain_pickle import load_plain_pickle


@DATASETS.register_module()
class ImageDataset(VideoDataset):
    """Images from an annotation list or from a folder; a :class:`VideoDataset` of other files.

    The pipeline begins with :class:`~sce_video.datasets.transforms.LoadImage`; an image is a clip
    of one frame, so crops, packing and collating are those of videos.
    """

    kind = "image"
    extensions = IMAGE_EXTENSIONS


@dataclass(frozen=True)
class ImageArrays:
    """Images that loader workers share: they only read, so forked processes copy no page."""

    #: (n_i, H, W, 3) uint8 each, of any strides, in memory or mapped from a file.
    parts: tuple[np.ndarray, ...]
    #: (N,) int64, the parts one after the other; -1 for an image without a label.
    labels: np.ndarray
    #: Name of each label.
    classes: tuple[str, ...]
    #: Name of each part's file.
    files: tuple[str, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def image(self, index: int) -> np.ndarray:
        """uint8 (H, W, 3), contiguous."""
        for part in self.parts:
            if index < len(part):
                return np.ascontiguousarray(part[index])
            index -= len(part)
        raise IndexError(f"there is no image {index}")

    def names(self) -> list[str]:
        """FILE#NUMBER of every image, the number from 0 within its file."""
        each = zip(self.files, self.parts, strict=True)
        return [f"{file}#{number}" for file, part in each for number in range(len(part))]


def _find_set(
    name: str, split: str, splits: Collection[str], root: str, folder: str, archive: str
) -> str:
    """``root/folder``, or ``root`` itself if that is the folder, of a set with this split."""
    if split not in splits:
        raise ValueError(f"split of {name} must be one of {', '.join(splits)}, got {split!r}")
    root = os.path.expanduser(root)
    if os.path.basename(os.path.normpath(root)) == folder and os.path.isdir(root):
        return root
    path = os.path.join(root, folder)
    if not os.path.isdir(path):
        raise ValueError(f"there is no folder {path!r}: unpack {archive} in {root!r}")
    return path


def _existing(folder: str, name: str, archive: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path!r}: unpack {archive} again")
    return path


def _check_labels(labels: np.ndarray, num_images: int, num_classes: int, path: str) -> None:
    if len(labels) != num_images:
        raise ValueError(f"{path} has {len(labels)} labels for {num_images} images")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ValueError(
            f"{path}: label {wrong[0]} is no class, there are {num_classes} (counted from 0)"
        )


def _check_published(labels: np.ndarray, published: int, num_classes: int, what: str) -> None:
    """ValueError unless there are as many images as published, equally many of each class."""
    labelled = labels[labels >= 0]
    counts = np.bincount(labelled, minlength=num_classes)
    each = len(labelled) // num_classes
    problem = ""
    if len(labels) != published:
        problem = f"{len(labels):,} images, published are {published:,}"
    elif (counts != each).any():
        wrong = np.flatnonzero(counts != each)[0]
        problem = f"{counts[wrong]:,} images of class {wrong}, published are {each:,}"
    if problem:
        raise ValueError(
            f"{what} has {problem}: unpack the official archive again (check_counts=False accepts "
            "other counts)"
        )


CIFAR_SIZE = 32
CIFAR_PUBLISHED = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class CifarFiles:
    """Names of files and keys of one of the two sets."""

    name: str  # of the set, in messages
    folder: str  # that the archive unpacks to
    archive: str
    batches: dict[str, tuple[str, ...]]  # files of each split
    label_key: str  # of the labels in a batch
    meta: str  # file of the class names
    names_key: str  # of the class names in it
    num_classes: int


CIFAR10 = CifarFiles(
    "CIFAR10", "cifar-10-batches-py", "cifar-10-python.tar.gz",
    {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)},
    "labels", "batches.meta", "label_names", 10,
)  # fmt: skip
CIFAR100 = CifarFiles(
    "CIFAR100", "cifar-100-python", "cifar-100-python.tar.gz",
    {"train": ("train",), "test": ("test",)},
    "fine_labels", "meta", "fine_label_names", 100,
)  # fmt: skip


def _read_cifar(files: CifarFiles, root: str, split: str, check_counts: bool) -> ImageArrays:
    """50,000 (``train``) or 10,000 (``test``) images of 32 x 32; of CIFAR100 its fine labels.

    ValueError: A file is missing, damaged, no pickle of plain data, or has other counts.
    """
    folder = _find_set(files.name, split, files.batches, root, files.folder, files.archive)
    path, meta = _load(folder, files.meta, files)
    classes = meta.get(files.names_key)
    if not isinstance(classes, list) or len(classes) != files.num_classes:
        raise ValueError(f"{path} must hold {files.num_classes} class names in {files.names_key!r}")
    batches = [_read_batch(folder, name, files) for name in files.batches[split]]
    labels = np.concatenate([labels for _, labels in batches])
    if check_counts:
        what = f"the {split} split of {files.name} in {folder}"
        _check_published(labels, CIFAR_PUBLISHED[split], files.num_classes, what)
    return ImageArrays(
        parts=tuple(images for images, _ in batches),
        labels=labels,
        classes=tuple(str(name) for name in classes),
        files=tuple(f"{files.folder}/{name}" for name in files.batches[split]),
    )


def _read_batch(folder: str, name: str, files: CifarFiles) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) uint8 and labels (n,) int64 of one batch file."""
    path, batch = _load(folder, name, files)
    data, labels = batch.get("data"), batch.get(files.label_key)
    values = 3 * CIFAR_SIZE * CIFAR_SIZE
    if not isinstance(data, np.ndarray) or (data.dtype, *data.shape[1:]) != (np.uint8, values):
        raise ValueError(f"{path} must hold an array 'data' (n, {values}) of uint8")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"{path} must hold a list of whole numbers {files.label_key!r}")
    found = np.array(labels, dtype=np.int64)
    _check_labels(found, len(data), files.num_classes, path)
    # A row is one image: its red, its green, its blue plane, each row by row.
    images = data.reshape(-1, 3, CIFAR_SIZE, CIFAR_SIZE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), found


def _load(folder: str, name: str, files: CifarFiles) -> tuple[str, dict[str, Any]]:
    """Path and dict of a pickle; nothing that the file names is called."""
    path = _existing(folder, name, files.archive)
    loaded = load_plain_pickle(Path(path))
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} must hold a dict, not a {type(loaded).__name__}")
    return path, loaded


STL10_SIZE = 96
NUM_CLASSES = 10
FOLDER = "stl10_binary"
ARCHIVE = "stl10_binary.tar.gz"
STL10_PUBLISHED = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}
#: Parts of each split; STL10 is pretrained on ``unlabeled``, by some codes on both.
SPLITS = {**{part: (part,) for part in STL10_PUBLISHED}, "train+unlabeled": ("train", "unlabeled")}


def _read_stl10(root: str, split: str, check_counts: bool) -> ImageArrays:
    """STL10, images of 96 x 96, mapped into memory: all processes share the system's file cache.

    Splits are ``unlabeled`` (100,000), ``train`` (5,000), ``test`` (8,000) and ``train+unlabeled``.
    ValueError: A file is missing, of a wrong size, or has other counts.
    """
    folder = _find_set("STL10", split, SPLITS, root, FOLDER, ARCHIVE)
    parts, labels = [], []
    for part in SPLITS[split]:
        images = _map_images(_existing(folder, f"{part}_X.bin", ARCHIVE))
        found = np.full(len(images), -1, dtype=np.int64)
        if part != "unlabeled":
            path = _existing(folder, f"{part}_y.bin", ARCHIVE)
            found = np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1  # stored as 1 to 10
            _check_labels(found, len(images), NUM_CLASSES, path)
        if check_counts:
            _check_published(found, STL10_PUBLISHED[part], NUM_CLASSES, f"{part}_X.bin in {folder}")
        parts.append(images)
        labels.append(found)
    path = _existing(folder, "class_names.txt", ARCHIVE)
    lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != NUM_CLASSES or len(set(names)) != NUM_CLASSES:
        raise ValueError(f"{path} must name {NUM_CLASSES} classes, one per line")
    files = tuple(f"{FOLDER}/{part}_X.bin" for part in SPLITS[split])
    return ImageArrays(tuple(parts), np.concatenate(labels), names, files)


def _map_images(path: str) -> np.ndarray:
    """(n, 96, 96, 3) uint8, a view of the file: a plane per colour, each column by column."""
    size, each = os.path.getsize(path), 3 * STL10_SIZE * STL10_SIZE
    if size == 0 or size % each:
        raise ValueError(
            f"{path} has {size:,} bytes, no multiple of the {each:,} of an image: unpack "
            f"{ARCHIVE} again"
        )
    shape = (size // each, 3, STL10_SIZE, STL10_SIZE)
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape).transpose(0, 3, 2, 1)


#: Reader of each set by name: (root, split, whether to check counts) -> images.
ARRAY_SETS: dict[str, Callable[[str, str, bool], ImageArrays]] = {
    "cifar10": partial(_read_cifar, CIFAR10),
    "cifar100": partial(_read_cifar, CIFAR100),
    "stl10": _read_stl10,
}


@DATASETS.register_module()
class ImageArrayDataset(VideoDataset):
    """CIFAR10, CIFAR100 or STL10 from the folder that the official archive unpacks to.

    The images are held in memory once: forked loader workers share the memory of their parent, and
    STL10 is mapped from its file. The pipeline begins with
    :class:`~sce_video.datasets.transforms.LoadImage`. The path of an image is FILE#NUMBER.

    Args:
        name: ``cifar10``, ``cifar100`` or ``stl10``.
        data_root: Folder in which the archive was unpacked.
        split: ``train`` or ``test``; of STL10 also ``unlabeled`` and ``train+unlabeled``.
        pipeline: Transforms, built or as configs; they also get ``image``, (H, W, 3) uint8.
        check_counts: Refuse other numbers of images than the published ones.
    """

    kind = "image"

    def __init__(
        self,
        name: str,
        data_root: str,
        split: str = "train",
        pipeline: Sequence[Transform | dict[str, Any]] = (),
        check_counts: bool = True,
    ) -> None:
        if name not in ARRAY_SETS:
            raise ValueError(f"name must be one of {', '.join(ARRAY_SETS)}, got {name!r}")
        self.name, self.split, self.check_counts = name, split, check_counts
        super().__init__(data_root, None, pipeline, on_error="raise", timeout=None)

    def _list_videos(self) -> VideoList:
        arrays = ARRAY_SETS[self.name](self.data_root, self.split, self.check_counts)
        self._arrays = arrays
        return VideoList.from_paths(arrays.names(), arrays.labels.tolist(), arrays.classes)

    def _inputs(self, index: int, seed: int) -> dict[str, Any]:
        return {**super()._inputs(index, seed), "image": self._arrays.image(index)}
