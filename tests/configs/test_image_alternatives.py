"""Where paper and authors' code differ, a recipe's header has the options for the other one."""

from __future__ import annotations

import re

import pytest
from helpers.image_pretraining import (
    CONFIGS,
    HEADS,
    MULTI_CROP,
    VIEWS,
    described,
    path_of,
    views_of,
)

from sce_video.engine.config.load import check_config, load_config


def values(cfg, *paths):
    found = []
    for path in paths:
        node = cfg
        for part in path.split("."):
            node = node[int(part) if part.isdecimal() else part]
        found.append(node)
    return found


# What the paper and the authors' code state differently: the recipe, the options of its header that
# choose the other one, the settings that they change.
ALTERNATIVES = [
    (
        "sce_r18_1xb256-32-200e_cifar10",
        "custom_hooks.ScheduleHook.model=None model.momentum=0.99",
        {"model.momentum": 0.99, "custom_hooks.0.model": None},
    ),
    (
        "sce_r18_1xb256-32-200e_cifar100",
        "custom_hooks.ScheduleHook.model=None model.momentum=0.99",
        {"model.momentum": 0.99, "custom_hooks.0.model": None},
    ),
    (
        "sce_r18_1xb256-32-200e_cifar10",
        "model.tau=0.1 model.tau_m=0.05",
        {"model.tau": 0.1, "model.tau_m": 0.05},
    ),
    (
        "sce_r18_1xb256-32-200e_cifar10",
        "model.mask_positive=False",
        {"model.mask_positive": False},
    ),
    (
        "sce_r18_1xb256-96-200e_stl10",
        "train_dataloader.dataset.split=train+unlabeled "
        "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=64",
        {
            "train_dataloader.dataset.split": "train+unlabeled",
            "train_dataloader.dataset.pipeline.1.size": 64,
        },
    ),
    (
        "sce_r50_8xb64-224-200e_imagenet100",
        "custom_hooks.ScheduleHook.base_batch_size=512",
        {"custom_hooks.0.base_batch_size": 512},
    ),
    (
        "sce_r50_8xb64-224-200e_imagenet",
        "custom_hooks.ScheduleHook.base_batch_size=512",
        {"custom_hooks.0.base_batch_size": 512},
    ),
    (
        "sce_r50_8xb64-224-200e_imagenet100",
        "sync_bn=torch model.shuffle_bn_splits=None",
        {"sync_bn": "torch", "model.shuffle_bn_splits": None},
    ),
    (
        "sce_r50_8xb512-224-200e_imagenet",
        "model.projector.hidden_channels=2048",
        {"model.projector.hidden_channels": 2048, "model.predictor.hidden_channels": 4096},
    ),
    (
        "sce_r50_8xb512-224-200e_imagenet",
        "model.projector.num_layers=2",
        {"model.projector.num_layers": 2, "model.projector.hidden_channels": 4096},
    ),
    (
        "sce_r50_8xb512-224-100e_imagenet",
        "optim_wrapper.optimizer.lr=0.5",
        {"optim_wrapper.optimizer.lr": 0.5},
    ),
    (
        "sce_r50_8xb512-224-1000e_imagenet",
        "model.momentum=0.99 custom_hooks.ScheduleHook.model.momentum.start=0.99",
        {"model.momentum": 0.99, "custom_hooks.0.model.momentum.start": 0.99},
    ),
    (
        MULTI_CROP,
        "model.backward_per_query=True optim_wrapper.dtype=bfloat16",
        {"model.backward_per_query": True, "optim_wrapper.dtype": "bfloat16"},
    ),
]


@pytest.mark.parametrize(("name", "options", "expected"), ALTERNATIVES)
def test_alternatives_are_options_of_the_header(name, options, expected):
    path = CONFIGS / f"sce/{name}.py"
    header = re.sub(r"\n#\s+", " ", path.read_text().split("_base_ =")[0])
    assert options in header
    plain, changed = load_config(path), load_config(path, options.split())
    check_config(changed)
    assert values(changed, *expected) == list(expected.values())
    assert plain.to_dict() != changed.to_dict()


def test_options_of_the_projector_make_imagenet100s():
    path = path_of("sce", "imagenet")
    header = re.sub(r"\n#\s+", " ", path.read_text().split("_base_ =")[0])
    options = re.findall(r"model\.projector\.\w+=\w+", header)
    cfg = load_config(path, options)
    assert described(cfg.model.projector, 2048) == HEADS["imagenet100"]


def test_a_child_recipe_changes_the_saturation(tmp_path):
    parent = path_of("sce", "imagenet100")
    view = re.search(r"dict\(name=.*?\)", parent.read_text().split("_base_ =")[0])[0]
    child = tmp_path / "child.py"
    child.write_text(
        f"_base_ = {str(parent)!r}\ndata_preprocessor = dict(views=[{view}, dict(name='weak')])\n"
    )
    strong = list(VIEWS["strong"])
    strong[4] = 0.2
    assert views_of(load_config(child)) == [pytest.approx(strong), VIEWS["weak"]]
