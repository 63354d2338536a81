"""The image recipes on small generated data: archives, trees, and options that shrink a recipe."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers import image_trees

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.engine.config.load import load_config

#: ImageNet has classes of ImageNet100 and others.
OTHER_WNIDS = ("n01440764", "n01443537")
EPOCHS = 1
BATCH = 4
_SHRINK = 7  # 224 becomes 32 and 256 becomes 36
#: Native sizes of the small sets, whose images are tested as they are.
_NATIVE = (32, 64, 96)
_LOADERS = (
    ("train_dataloader",),
    ("val_dataloader",),
    ("test_dataloader",),
    ("test_cfg", "gallery_dataloader"),
)


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


def small(config: Path, epochs: int = EPOCHS) -> list[str]:
    """``--cfg-options`` that make a pretraining or linear recipe of images small."""
    cfg = load_config(config)
    model = cfg.model
    options: dict[str, Any] = {"visualizer": None, "run_page": None}
    options["model.backbone.base_channels"] = 4
    if model.type == "Recognizer3D":
        options["model.cls_head.in_channels"] = 32 * (4 if model.backbone.depth == 50 else 1)
    else:
        heads = [name for name in ("projector", "predictor") if name in model]
        options |= {f"model.{name}.hidden_channels": 16 for name in heads}
        options |= {"model.projector.out_channels": 8, "model.queue_size": 16}
        if "online_evaluation" in cfg.default_hooks:
            options["default_hooks.online_evaluation"] = None
        if model.get("shuffle_bn_splits") is not None:
            options["model.shuffle_bn_splits"] = 2
    for path in _LOADERS:
        loader = cfg
        for key in path:
            loader = (loader or {}).get(key)
        if loader is not None:
            options |= dict(_small_loader(".".join(path), loader))
    options |= {"train_dataloader.batch_size": BATCH, "train_cfg.max_epochs": epochs}
    options |= {"train_dataloader.persistent_workers": False}
    if "min_samples" in cfg.train_dataloader.sampler:
        options["train_dataloader.sampler.min_samples"] = 0
    return [f"{key}={str(value).replace(' ', '')}" for key, value in options.items()]


def _small_loader(name: str, loader: Any) -> Iterator[tuple[str, Any]]:
    yield f"{name}.num_workers", 0
    if loader.dataset.type == "ImageArrayDataset":
        yield f"{name}.dataset.check_counts", False
    sizes = [step.size for step in loader.dataset.pipeline if "size" in step]
    if not sizes or sizes[0] in _NATIVE:
        return
    for step in loader.dataset.pipeline:
        for key in ("size", "local_size"):
            if key in step:
                yield f"{name}.dataset.pipeline.{step.type}.{key}", _shrunk(step[key])


def _shrunk(size: Any) -> Any:
    return [_shrunk(one) for one in size] if isinstance(size, list | tuple) else size // _SHRINK
