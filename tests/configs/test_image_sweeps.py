"""The image sweeps: every cell of the tables, the settings behind it, the recipe of each."""

from __future__ import annotations

import re

import pytest

from sce_video.engine.config.differences import differences
from sce_video.engine.config.load import load_config, recipe_config
from sce_video.engine.config.snapshot import resolved_config
from sce_video.published.paper_results import Setting, pretraining_recipe
from sce_video.runs.sweep_plan import option_texts, read_sweep

# The tables as they are printed.
LAMBDA = """
0.   0.1  0.2  0.3  0.4  0.5  0.6  0.7  0.8  0.9  1.0
81.5 81.8 82.5 82.8 82.9 82.9 82.2 81.6 81.8 81.8 81.1
"""
AUGMENTATION = """
strong       weak        no  82.9
strong-gamma weak        no  83.0
weak         strong      no  73.4
strong       strong      no  80.5
strong-alpha strong-beta no  80.7
strong       weak        yes 83.7
strong       strong      yes 83.0
strong-alpha strong-beta yes 84.2
"""
SETS = {  # column: data set, linear recipe
    "ImageNet": ("imagenet", "r50_8xb64-224-100e_imagenet"),
    "IN100": ("imagenet100", "r50_8xb64-224-100e_imagenet100"),
    "CIFAR10": ("cifar10", "r18_1xb256-32-100e_cifar10"),
    "CIFAR100": ("cifar100", "r18_1xb256-32-100e_cifar100"),
    "STL10": ("stl10", "r18_1xb256-96-100e_stl10"),
    "Tiny-IN": ("tiny_imagenet", "r18_1xb256-64-100e_tiny_imagenet"),
}
NAMES = ("lambda", "loss", "augmentation", "temperature", "temperature_small", "baselines")


def rows(table):
    return [line.split() for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def sweeps(repo):
    return {name: read_sweep(repo / f"configs/sweeps/image_{name}.py") for name in NAMES}


@pytest.fixture(scope="module")
def configs(sweeps, repo):
    """By sweep, the resolved pretraining of every point."""
    found = {}
    for name, sweep in sweeps.items():
        found[name] = []
        for point in sweep.points:
            path, options = (
                repo / (point.config or sweep.pretrain.config),
                {**sweep.pretrain.options, **point.options},
            )
            found[name].append(load_config(path, option_texts(options)))
    return found


def settings(cfg):
    """lambda, tau, tau_m, views, symmetric; free coefficients as a tuple."""
    model = cfg.model
    weight = model.lambda_ if isinstance(model.lambda_, float) else tuple(model.lambda_)
    names = tuple(view["name"] for view in cfg.data_preprocessor.views)
    assert all(view.get("strength", 0.5) == 0.5 for view in cfg.data_preprocessor.views)
    return (weight, model.tau, model.tau_m, names, model.symmetric)


STRONG_WEAK = ("strong", "weak")


def numbers(sweep):
    """(column, published number) of every point."""
    found = [tuple(point.published.items()) for point in sweep.points]
    assert all(len(published) == 1 for published in found)
    return [published[0] for published in found]


def test_lambda(sweeps, configs):
    weights, top1 = ([float(text) for text in row] for row in rows(LAMBDA))
    assert numbers(sweeps["lambda"]) == [("IN100", value) for value in top1]
    expected = [(weight, 0.1, 0.05, STRONG_WEAK, False) for weight in weights]
    assert [settings(cfg) for cfg in configs["lambda"]] == expected


def test_augmentation(sweeps, configs):
    """The first view is the query, of the online branch; the last the key, of the target."""
    table = rows(AUGMENTATION)
    assert numbers(sweeps["augmentation"]) == [("IN100", float(row[3])) for row in table]
    expected = [(0.5, 0.1, 0.05, (row[0], row[1]), row[2] == "yes") for row in table]
    assert [settings(cfg) for cfg in configs["augmentation"]] == expected


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_the_linear_protocol_of_the_set(sweeps, repo, name):
    """Needs the recipes of configs/downstream/linear; the network is that of the pretraining."""
    sweep = sweeps[name]
    assert {(column.training, column.metric) for column in sweep.columns} == {("one", "top1")}
    for column in sweep.columns:
        dataset, recipe = SETS[column.name]
        assert column.config == f"configs/downstream/linear/{recipe}.py" and not column.options
        benchmark = load_config(repo / column.config).benchmark
        assert (benchmark.protocol, benchmark.dataset) == ("linear", dataset)
        assert benchmark.pretrained_on == dataset
        recipes = {
            point.config or sweep.pretrain.config for point in sweep.points if point.has(column)
        }
        assert recipes
        for trained in (load_config(repo / recipe).benchmark for recipe in recipes):
            same = ("network", "frames", "size", "dataset")
            assert [benchmark[key] for key in same] == [trained[key] for key in same]


@pytest.mark.parametrize("name", NAMES)
def test_every_point_is_the_recipe_of_its_number(configs, name):
    for cfg in configs[name]:
        trained = {
            "pretrained_on": cfg.benchmark.dataset,
            "pretraining_epochs": cfg.train_cfg.max_epochs,
        }
        recipe = pretraining_recipe(Setting.stated({**cfg.benchmark, **trained}))
        ranks = int(re.search(r"_(\d+)xb", recipe[0])[1])
        config = resolved_config(cfg, ranks * cfg.train_dataloader.batch_size)
        assert differences(config, recipe_config(*recipe)) == []
