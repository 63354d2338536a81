"""Datasets of images: files in a list or a folder, CIFAR and STL10, and tables of labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.pipeline import PipelineResults, Steps
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import IMAGE_EXTENSIONS, VideoList
from sce_video.registry import DATASETS
from sce_video.utils.files import read_text, regular_file
from sce_video.utils.plain_pickle import load_plain_pickle


@DATASETS.register_module()
class ImageDataset(VideoDataset):
    """Images from an annotation list or from a folder, used like a :class:`VideoDataset`.

    The pipeline begins with :class:`~sce_video.datasets.transforms.LoadImage`. An image is cropped,
    packed and collated like a clip of one frame.
    """

    kind = "image"
    extensions = IMAGE_EXTENSIONS


@dataclass(frozen=True)
class ImageArrays:
    """Images in memory that loader workers share."""

    #: Images of each part, uint8 (n_i, H, W, 3) with any strides, in memory or mapped from a file.
    parts: tuple[np.ndarray, ...]
    #: Labels of all parts, one part after another, (N,) int64. An image without a label has -1.
    labels: np.ndarray
    #: Name of each label.
    classes: tuple[str, ...]
    #: File name of each part.
    files: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> np.ndarray:
        """Return an image, uint8 (H, W, 3), contiguous."""
        for part in self.parts:
            if index < len(part):
                return np.ascontiguousarray(part[index])
            index -= len(part)
        raise IndexError(f"there is no image {index}")

    def names(self) -> list[str]:
        """Return FILE#NUMBER for every image, with the number in the file, counted from 0."""
        each = zip(self.files, self.parts, strict=True)
        return [f"{file}#{number}" for file, part in each for number in range(len(part))]


@dataclass(frozen=True)
class PublishedSet:
    """Description of a dataset's official archive."""

    name: str  # name for messages
    folder: str  # folder inside the archive
    archive: str
    num_classes: int
    counts: dict[str, int]  # number of images in each part
    splits: dict[str, tuple[str, ...]]  # files of each CIFAR split, or parts of each STL10 split
    meta: str  # file that contains the class names
    names_key: str = ""  # key of the class names in ``meta``
    label_key: str = ""  # key of the labels in a batch of CIFAR

    def find(self, root: str, split: str) -> str:
        """Return ``root/folder``, or ``root`` if it is the folder; ValueError if neither exists."""
        if split not in self.splits:
            known = ", ".join(self.splits)
            raise ValueError(f"split of {self.name} must be one of {known}, got {split!r}")
        root = os.path.expanduser(root)
        if os.path.basename(os.path.normpath(root)) == self.folder and os.path.isdir(root):
            return root
        path = os.path.join(root, self.folder)
        if not os.path.isdir(path):
            raise ValueError(f"there is no folder {path!r}. Unpack {self.archive} in {root!r}")
        return path

    def file(self, folder: str, name: str) -> str:
        """Return the path of a file in the folder; ValueError if it does not exist."""
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise ValueError(f"there is no file {path!r}. Unpack {self.archive} again")
        return path

    def check_labels(self, labels: np.ndarray, num_images: int, path: str) -> None:
        """Raise ValueError unless a file contains a valid label for each image."""
        if len(labels) != num_images:
            raise ValueError(f"{path} contains {len(labels)} labels for {num_images} images")
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(wrong):
            raise ValueError(
                f"{path}: label {wrong[0]} is out of range. There are {self.num_classes} classes, "
                "counted from 0"
            )

    def check_counts(self, labels: np.ndarray, part: str, what: str) -> None:
        """Raise ValueError unless each class has the published number of images."""
        published, labelled = self.counts[part], labels[labels >= 0]
        counts, each = np.bincount(labelled, minlength=self.num_classes), len(labelled)
        uneven = np.flatnonzero(counts != each // self.num_classes)
        if len(labels) != published:
            problem = f"{len(labels):,} images instead of {published:,}"
        elif len(uneven):
            few, each = counts[uneven[0]], each // self.num_classes
            problem = f"{few:,} images of class {uneven[0]} instead of {each:,}"
        else:
            return
        raise ValueError(
            f"{what} contains {problem}. Unpack the official archive again, or accept other "
            "counts with check_counts=False"
        )


#: Height and width of CIFAR10 and CIFAR100 images in pixels.
CIFAR_SIZE = 32
#: Height and width of STL10 images in pixels.
STL10_SIZE = 96
_CIFAR_COUNTS = {"train": 50_000, "test": 10_000}
CIFAR10 = PublishedSet(
    "CIFAR10", "cifar-10-batches-py", "cifar-10-python.tar.gz", 10, _CIFAR_COUNTS,
    {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)},
    "batches.meta", "label_names", "labels",
)  # fmt: skip
CIFAR100 = PublishedSet(
    "CIFAR100", "cifar-100-python", "cifar-100-python.tar.gz", 100, _CIFAR_COUNTS,
    {"train": ("train",), "test": ("test",)},
    "meta", "fine_label_names", "fine_labels",
)  # fmt: skip
#: Pretraining uses the ``unlabeled`` part, or in some code ``train+unlabeled``.
STL10 = PublishedSet(
    "STL10", "stl10_binary", "stl10_binary.tar.gz", 10,
    {"train": 5_000, "test": 8_000, "unlabeled": 100_000},
    {**{part: (part,) for part in ("train", "test", "unlabeled")},
     "train+unlabeled": ("train", "unlabeled")},
    "class_names.txt",
)  # fmt: skip


def _read_cifar(files: PublishedSet, root: str, split: str, check_counts: bool) -> ImageArrays:
    """Read 50,000 (``train``) or 10,000 (``test``) images of 32 x 32 pixels.

    The labels of CIFAR100 are the fine labels.

    Raises:
        ValueError: If a file is missing, damaged, not a pickle of plain data, or has unexpected
            counts.
    """
    folder = files.find(root, split)

    def load(name: str) -> tuple[str, dict[str, Any]]:  # cannot call functions that a pickle names
        path = files.file(folder, name)
        loaded = load_plain_pickle(Path(path))
        if not isinstance(loaded, dict):
            raise ValueError(f"{path} must contain a dict, not a {type(loaded).__name__}")
        return path, loaded

    path, meta = load(files.meta)
    classes = meta.get(files.names_key)
    if not isinstance(classes, list) or len(classes) != files.num_classes:
        raise ValueError(
            f"{path} must contain {files.num_classes} class names in {files.names_key!r}"
        )
    parts, labels, values = [], [], 3 * CIFAR_SIZE * CIFAR_SIZE
    for path, batch in map(load, files.splits[split]):
        data, found = batch.get("data"), batch.get(files.label_key)
        if not isinstance(data, np.ndarray) or (data.dtype, *data.shape[1:]) != (np.uint8, values):
            raise ValueError(f"{path} must contain an array 'data' (n, {values}) of uint8")
        if not isinstance(found, list) or not all(type(label) is int for label in found):
            raise ValueError(f"{path} must contain a list of whole numbers {files.label_key!r}")
        labels.append(np.array(found, dtype=np.int64))
        files.check_labels(labels[-1], len(data), path)
        # Each row is one image, which is stored as a red, a green and a blue plane, row by row.
        images = data.reshape(-1, 3, CIFAR_SIZE, CIFAR_SIZE).transpose(0, 2, 3, 1)
        parts.append(np.ascontiguousarray(images))
    together = np.concatenate(labels)
    if check_counts:
        files.check_counts(together, split, f"the {split} split of {files.name} in {folder}")
    origins = tuple(f"{files.folder}/{name}" for name in files.splits[split])
    return ImageArrays(tuple(parts), together, tuple(map(str, classes)), origins)


def _read_stl10(root: str, split: str, check_counts: bool) -> ImageArrays:
    """Map the images of STL10, 96 x 96 pixels, from the file, so that processes share the memory.

    Splits are ``unlabeled`` (100,000), ``train`` (5,000), ``test`` (8,000) and ``train+unlabeled``.

    Raises:
        ValueError: If a file is missing, has a wrong size, or has unexpected counts.
    """
    folder = STL10.find(root, split)
    parts, labels, each = [], [], 3 * STL10_SIZE * STL10_SIZE
    for part in STL10.splits[split]:
        path = STL10.file(folder, f"{part}_X.bin")
        size = os.path.getsize(path)
        if size == 0 or size % each:
            raise ValueError(
                f"{path} has {size:,} bytes, which is not a multiple of an image's {each:,} bytes. "
                f"Unpack {STL10.archive} again"
            )
        # Each image is stored as a red, a green and a blue plane, column by column.
        shape = (size // each, 3, STL10_SIZE, STL10_SIZE)
        images = np.memmap(path, dtype=np.uint8, mode="r", shape=shape).transpose(0, 3, 2, 1)
        found = np.full(len(images), -1, dtype=np.int64)
        if part != "unlabeled":
            path = STL10.file(folder, f"{part}_y.bin")
            found = np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1  # the file counts from 1
            STL10.check_labels(found, len(images), path)
        if check_counts:
            STL10.check_counts(found, part, f"{part}_X.bin in {folder}")
        parts.append(images)
        labels.append(found)
    path = STL10.file(folder, STL10.meta)
    lines = read_text(path, "replace").split("\n")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != STL10.num_classes or len(set(names)) != len(names):
        raise ValueError(f"{path} must name {STL10.num_classes} classes, one per line")
    files = tuple(f"{STL10.folder}/{part}_X.bin" for part in STL10.splits[split])
    return ImageArrays(tuple(parts), np.concatenate(labels), names, files)


#: Function that reads each dataset's images, given its root, split, and whether to check counts.
ARRAY_SETS: dict[str, Callable[[str, str, bool], ImageArrays]] = {
    "cifar10": partial(_read_cifar, CIFAR10),
    "cifar100": partial(_read_cifar, CIFAR100),
    "stl10": _read_stl10,
}


@DATASETS.register_module()
class ImageArrayDataset(VideoDataset):
    """CIFAR10, CIFAR100 or STL10, read from the official archive's folder.

    The images are in memory only once, because forked loader workers share the memory of their
    parent, and STL10 is mapped from its file. The pipeline begins with
    :class:`~sce_video.datasets.transforms.LoadImage`. The path of an image is FILE#NUMBER.

    Args:
        name: ``cifar10``, ``cifar100`` or ``stl10``.
        data_root: Folder in which the archive was unpacked.
        split: ``train`` or ``test``. STL10 also has ``unlabeled`` and ``train+unlabeled``.
        pipeline: Transforms, built or as configs. They also get ``image``, (H, W, 3) uint8.
        check_counts: Whether to refuse numbers of images that differ from the published numbers.
    """

    kind = "image"

    def __init__(
        self,
        name: str,
        data_root: str,
        split: str = "train",
        pipeline: Steps = (),
        check_counts: bool = True,
    ) -> None:
        if name not in ARRAY_SETS:
            raise ValueError(f"name must be one of {', '.join(ARRAY_SETS)}, got {name!r}")
        self.name, self.split, self.check_counts = name, split, check_counts
        super().__init__(data_root, None, pipeline, on_error="raise", timeout=None)

    def list_videos(self) -> VideoList:
        self._arrays = ARRAY_SETS[self.name](self.data_root, self.split, self.check_counts)
        labels, classes = self._arrays.labels.tolist(), self._arrays.classes
        return VideoList.from_paths(self._arrays.names(), labels, classes)

    def inputs(self, index: int, seed: int) -> PipelineResults:
        return {**super().inputs(index, seed), "image": self._arrays.image(index)}


_VALUES = {"-1": -1, "0": 0, "1": 1}


@dataclass(frozen=True)
class LabelTable:
    """Labels of N images for C classes, of which an image may show several.

    Attributes:
        paths: N paths, relative to the dataset's folder.
        labels: (N, C) int8, 1 if an image shows a class, -1 if not, 0 if it is "difficult" (VOC).
        source: File from which the labels were read, for messages.
    """

    paths: tuple[str, ...]
    labels: np.ndarray
    source: str = ""

    def to_text(self) -> str:
        """Return lines ``path<TAB>1 -1 0 ...``."""
        rows = zip(self.paths, self.labels.tolist(), strict=True)
        return "".join(f"{path}\t{' '.join(map(str, row))}\n" for path, row in rows)

    def rows_of(self, paths: Sequence[str]) -> np.ndarray:
        """Return the labels (len(paths), C) of images, whose paths may begin with a common folder.

        Raises:
            ValueError: If an image is not in the table, or images lie in different folders.
        """
        number = {path: i for i, path in enumerate(self.paths)}
        root = ""
        if paths:  # the given paths may have a folder in front of the table's paths
            parts = paths[0].split(os.sep)
            ends = (os.sep.join(parts[start:]) for start in range(len(parts)))
            root = paths[0].removesuffix(next((end for end in ends if end in number), paths[0]))
        missing = [path for path in paths if path.removeprefix(root) not in number]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(paths)} images are not in {self.source or 'the table'}, "
                f"the first is {missing[0]}"
            )
        rows = [number[path.removeprefix(root)] for path in paths]
        return self.labels[np.array(rows, dtype=np.int64)]


def read_label_table(path: str | Path) -> LabelTable:
    """Read a file that :meth:`LabelTable.to_text` wrote.

    Raises:
        ValueError: If the file is empty or malformed.
    """
    names: list[str] = []
    rows: list[list[int]] = []
    with open(path, encoding="utf-8-sig", errors="surrogateescape", opener=regular_file) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            name, tab, values = line.rstrip("\n").partition("\t")
            words = values.split()
            same = not rows or len(words) == len(rows[0])
            if not tab or not words or not same or not set(words) <= _VALUES.keys():
                raise ValueError(
                    f"{path}, line {number}: {line.strip()!r:.200} must be 'path<TAB>labels', with "
                    "1, -1 or 0 for each class, and as many labels as on the other lines"
                )
            names.append(name)
            rows.append([_VALUES[word] for word in words])
    if not rows:
        raise ValueError(f"{path} is empty, but must have a line for each image")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: {twice!r} is listed twice")
    return LabelTable(tuple(names), np.array(rows, dtype=np.int8), str(path))
