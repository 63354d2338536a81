"""The official archives of the image sets on small generated data."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from helpers import image_trees

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES

#: ImageNet has classes of ImageNet100 and others.
OTHER_WNIDS = ("n01440764", "n01443537")


def make_data(root: Path) -> Path:
    """``cifar10``, ``cifar100``, ``stl10``, ``tiny_imagenet``, ``imagenet`` as they unpack."""
    image_trees.make_cifar10(root / "cifar10", per_class=1)
    image_trees.make_cifar100(root / "cifar100")
    image_trees.make_stl10(root / "stl10")
    image_trees.make_tiny_imagenet(root / "tiny_imagenet")
    wnids = sorted({*IMAGENET100_CLASSES, *OTHER_WNIDS})
    image_trees.make_imagenet(root / "imagenet", wnids, train=1, size=(48, 64))
    return root


def make_archives(data: Path, folder: Path) -> None:
    """The official archives, by their names, of the trees of :func:`make_data`."""
    for name, source in (
        ("cifar-10-python.tar.gz", "cifar10/cifar-10-batches-py"),
        ("cifar-100-python.tar.gz", "cifar100/cifar-100-python"),
        ("stl10_binary.tar.gz", "stl10/stl10_binary"),
        ("ILSVRC2012_devkit_t12.tar.gz", "imagenet/ILSVRC2012_devkit_t12"),
    ):
        with tarfile.open(folder / name, "w:gz") as archive:
            archive.add(data / source, Path(source).name)
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted((data / "tiny_imagenet").rglob("*")):
            archive.write(path, path.relative_to(data / "tiny_imagenet"))
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:  # flat
        for path in sorted((data / "imagenet/val").iterdir()):
            archive.add(path, path.name)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as archive:  # a tar of each class
        for of_class in sorted((data / "imagenet/train").iterdir()):
            inner = folder / f"{of_class.name}.tar"
            with tarfile.open(inner, "w") as images:
                for path in sorted(of_class.iterdir()):
                    images.add(path, path.name)
            archive.add(inner, inner.name)
            inner.unlink()
