"""The recipes and sweeps on images: their settings are those by which a result is confirmed."""

from __future__ import annotations

import pytest
from helpers.training import REPO

from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.engine.config.load import load_config
from sce_video.engine.training_record import record_settings
from sce_video.evaluation.origin import confirmed_benchmark
from sce_video.published import (
    IMAGE_METHODS,
    IMAGE_TRAINING_SETS,
    NETWORKS,
    PRETRAINING_SETS,
    image_batch,
)
from sce_video.published.paper_results import IMAGE_RESULTS
from sce_video.runs.sweep import read_sweep

RECIPES = sorted(
    path
    for name in IMAGE_TRAINING_SETS
    for path in (REPO / "configs").glob(f"*/*e_{name}.py")
    if path.parent.name != "sweeps"
)
SWEEPS = sorted((REPO / "configs/sweeps").glob("image_*.py"))


def confirmed(cfg):
    """What is known of a linear evaluation after a recipe's pretraining, and the problems."""
    claim, epochs = cfg.benchmark, cfg.train_cfg.max_epochs
    data = claim.dataset
    size = PRETRAINING_SETS.get(data, IMAGE_TRAINING_SETS[data])
    network = {**cfg.model.backbone, "parameters": NETWORKS[claim.network][2]}
    classes = {"classes": list(IMAGENET100_CLASSES)} if data == "imagenet100" else {}
    samples = {"samples": size.low, "num_classes": size.classes, **classes}
    record = {
        **record_settings(cfg),
        "network": network,
        "data": samples,
        "max_epochs": epochs,
        "changed": [],
    }
    origin = {"path": "p.pth", "epoch": epochs, "benchmark": claim.to_dict(), "training": record}
    labelled = IMAGE_TRAINING_SETS[data]
    training = {
        **record,
        "network": {**network, "frozen_stages": 4},
        "data": {**samples, "samples": labelled.low, "num_classes": labelled.classes},
    }
    checkpoint = {"path": "l.pth", "epoch": 100, "training": training, "pretrained": origin}
    setting = {name: claim[name] for name in ("dataset", "network", "frames", "size")}
    setting |= {"protocol": "linear", "pretrained_on": data}
    return confirmed_benchmark(setting, None, checkpoint, network)


def number_of(cfg):
    """The number of the paper for a recipe."""
    claim = cfg.benchmark
    (paper,) = (
        p
        for p in IMAGE_RESULTS
        if (p.protocol, p.pretraining, p.dataset) == ("linear", claim.pretraining, claim.dataset)
        and p.pretraining_epochs in (None, cfg.train_cfg.max_epochs)
    )
    assert (paper.network, paper.frames, paper.size) == (claim.network, claim.frames, claim.size)
    return paper


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_confirms_its_claim(path):
    cfg = load_config(path)
    known, problems = confirmed(cfg)
    assert problems == {} and known["pretraining"] == cfg.benchmark.pretraining
    assert known["pretraining"] in IMAGE_METHODS
    assert number_of(cfg).value > 0
    ranks = int(path.stem.partition("xb")[0].rpartition("_")[2])
    batch = ranks * cfg.train_dataloader.batch_size
    assert batch == image_batch(cfg.benchmark.pretraining, cfg.benchmark.dataset)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_point_of_a_sweep_confirms_its_claim_and_its_number(path):
    sweep = read_sweep(path)
    for point in sweep.points:
        options = [f"{key}={value}" for key, value in point.options.items()]
        cfg = load_config(REPO / (point.config or sweep.config), options)
        assert confirmed(cfg)[1] == {}, point.name
        values = number_of(cfg).printed_values
        assert point.published and set(point.published.values()) <= set(values), point.name
