"""Linear evaluation of image networks: the recipes against their names and the paper's protocol.

The paper, appendices D.1 (steps) and D.2 (cosine), and the authors' code: juliendenize/SCE,
juliendenize/eztorch (transforms/utils.py for the normalisation).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sce_video.engine.config.load import load_config
from sce_video.registry import MODELS

REPO = Path(__file__).resolve().parents[2]
RECIPES = sorted((REPO / "configs/downstream/linear").glob("r[15][80]_*.py"))
#: mean, standard deviation, classes, parts to train and test on
FACTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 10, "train", "test"),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2009, 0.1984, 0.2023), 100, "train", "test"),
    "stl10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616), 10, "train", "test"),
    "tiny_imagenet": (
        (0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262), 200, "train.txt", "val.txt"),
    "imagenet100": (
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 100,
        "imagenet100_train.txt", "imagenet100_val.txt"),
    "imagenet": (
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1000,
        "imagenet_train.txt", "imagenet_val.txt"),
}  # fmt: skip


def parts(path: Path) -> tuple[str, int, int, int, int, str]:
    """network, ranks, batch, size, epochs, data of ``r50_8xb64-224-100e_imagenet``."""
    network, *numbers, data = re.fullmatch(
        r"(r18|r50)_(\d+)xb(\d+)-(\d+)-(\d+)e_(\w+)", path.stem
    ).groups()
    return network, *map(int, numbers), data


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_settings_match_the_name(path):
    network, ranks, batch, size, epochs, data = parts(path)
    cfg = load_config(path)
    mean, std, classes, train_part, test_part = FACTS[data]
    assert cfg.train_dataloader.batch_size == batch and cfg.train_cfg.max_epochs == epochs
    assert ranks * batch == {100: 512 if network == "r50" else 256, 90: 1024}[epochs]
    assert cfg.benchmark == dict(
        protocol="linear",
        dataset=data,
        network={"r18": "r18_small", "r50": "r50_2d"}[network],
        frames=1,
        size=size,
        pretrained_on=data,
    )
    backbone, head = cfg.model.backbone, cfg.model.cls_head
    assert backbone == dict(
        type="ResNet2d", depth=int(network[1:]), frozen_stages=4,
        **({"stem": "small"} if network == "r18" else {}),
    )  # fmt: skip
    assert (head.num_classes, head.in_channels, head.dropout_ratio) == (
        classes, {"r18": 512, "r50": 2048}[network], 0
    )  # fmt: skip
    assert "pretrained" in cfg and cfg.pretrained is None
    assert cfg.optim_wrapper.dtype == "float32" and cfg.get("sync_bn") is None
    assert (cfg.data_preprocessor.mean, cfg.data_preprocessor.std) == (mean, std)
    root = f"data/{'imagenet' if data.startswith('imagenet') else data}"
    for name, part in (("train", train_part), ("val", test_part), ("test", test_part)):
        dataset = cfg[f"{name}_dataloader"].dataset
        assert dataset.data_root == root
        if dataset.type == "ImageArrayDataset":
            assert (dataset.name, dataset.split) == (data, part)
        else:
            assert dataset.ann_file == part
            assert dataset.class_file.endswith("classes.txt")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_views(path):
    """Appendix D.1; CIFAR's crop as in juliendenize/SCE."""
    *_, size, _, data = parts(path)
    cfg = load_config(path)
    (_, crop, _) = cfg.train_dataloader.dataset.pipeline
    if data.startswith("cifar"):
        assert crop == dict(type="RandomCropClips", size=32, padding=4)
    else:
        assert crop == dict(type="RandomResizedCropClips", size=size, area=(0.08, 1.0))
    tested = [step["type"] for step in cfg.test_dataloader.dataset.pipeline]
    if size == 224:
        assert tested == ["LoadImage", "ResizeShortSide", "CenterCropClips", "PackClips"]
        assert [step.get("size") for step in cfg.test_dataloader.dataset.pipeline[1:3]] == [
            256, 224
        ]  # fmt: skip
    else:
        assert tested == ["LoadImage", "PackClips"]
    assert cfg.val_dataloader.dataset.pipeline == cfg.test_dataloader.dataset.pipeline
    (view,) = MODELS.build(cfg.data_preprocessor).views
    assert view.flip_prob == 0.5
    others = ("jitter_prob", "grey_prob", "blur_prob", "solarise_prob")
    assert all(getattr(view, name) == 0 for name in others)
