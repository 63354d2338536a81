"""The paper's numbers: every value, what is listed once, the recipes and the sizes of the sets.

The tables were compared number by number with the paper when they were entered; a digest notices
any change since.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from statistics import fmean

import pytest

from sce_video.data_tools.prepare import action_sets, ava_lists, imagenet, kinetics
from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.data_tools.prepare.transfer_sets import TRANSFER_SETS
from sce_video.datasets import image_datasets
from sce_video.engine.config.load import recipe_config
from sce_video.engine.recipes import recipe_names
from sce_video.evaluation.transfer import LOW_SHOT_PUBLISHED, MANY_SHOT_SETS
from sce_video.published.paper_results import (
    CLASS_LISTS,
    IMAGE_RESULTS,
    MEAN_OF_SPLITS,
    PAPER_RESULTS,
    PRETRAININGS,
    SIZES,
    Setting,
    class_list_problem,
    evaluation_recipes,
    pretraining_recipe,
)

K2, K4, IN100 = "kinetics200", "kinetics400", "imagenet100"
EVERYTHING = (*PAPER_RESULTS, *IMAGE_RESULTS)


def test_every_value_is_that_of_the_tables():
    lines = sorted(
        f"{p.key} {p.split} {p.metric} {p.pretraining_epochs} {p.table} {p.row} {p.value} {p.also}"
        for p in EVERYTHING
    )
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "6620116ee35e7e04dde7bac68b9ffe5d2d14c1343f0b06e665ccba68069b951c"


@pytest.mark.parametrize("table", ["tab:video-time", "tab:video-best"])
def test_recipes_of_the_ablations_have_the_settings_of_their_rows(table):
    """The row's name has the values; the rest are the baseline's, or the best row's."""
    keys = {
        "tab:video-time": ("duration_jitter", "reverse_prob", "diff_prob"),
        "tab:video-best": ("lambda_", "tau_m", "diff_prob", "strength"),
    }[table]
    base = {"lambda_": 0.5, "tau_m": 0.07, "strength": 0.5, "diff_prob": 0.0}
    base |= {"duration_jitter": 0.0, "reverse_prob": 0.0}
    for row, recipe in {p.row: p.origin for p in EVERYTHING if p.table == table}.items():
        config = recipe_config(*recipe)
        (clips,) = (
            step
            for step in config["train_dataloader"]["dataset"]["pipeline"]
            if step["type"] == "RandomClips"
        )
        view, other = config["data_preprocessor"]["views"]
        assert view["strength"] == other["strength"]
        found = {key: clips.get(key, 0.0) for key in base if "_prob" in key or "jitter" in key}
        found |= {key: config["model"][key] for key in ("lambda_", "tau_m")}
        printed = dict(zip(keys, map(float, row.split(", ")), strict=True))
        assert {**found, "strength": view["strength"]} == {**base, **printed}, row


def test_every_number_is_listed_once_and_names_the_other_tables():
    keys = Counter((*p.key, p.split, p.metric, p.pretraining_epochs) for p in EVERYTHING)
    assert max(keys.values()) == 1
    name = "sce_images_tau_0.1_tau_m_0.05"
    (shared,) = (p for p in EVERYTHING if (p.pretraining, p.dataset) == (name, IN100))
    assert shared.remark == "also in tab:lambda (82.9), tab:aug (82.9), tab:temperature (82.9)"


def test_every_number_names_recipes_that_are_shipped():
    names = recipe_names()
    for paper in EVERYTHING:
        if paper.protocol == "instance_segmentation":  # of detectron2
            assert paper.recipe is None
            continue
        assert paper.recipe in names, paper
        assert paper.pretraining is None or paper.origin.name in names, paper
        assert (paper.pretraining is None) is (paper.origin is None)
        # A result that states this setting leads to the same recipes.
        assert evaluation_recipes(paper)[0] == paper.recipe, paper
        assert pretraining_recipe(paper) == paper.origin, paper
        split = 1 if paper.split == MEAN_OF_SPLITS else paper.split
        if paper.frames > 1:
            assert all((part, paper.dataset, split) in SIZES for part in ("test", "training"))
    different = {str(p.origin) for p in EVERYTHING}
    methods = {
        (p.pretraining, p.pretrained_on, p.network, p.frames, p.pretraining_epochs)
        for p in EVERYTHING
    }
    assert len(different) == len(methods)


def test_only_the_recipes_of_numbers_are_found():
    """A file of results may state any setting: it can only lead to a recipe of the table."""
    assert set(PRETRAININGS) == {p.pretraining for p in EVERYTHING if p.pretraining is not None}
    setting = {"protocol": "linear", "dataset": K4, "frames": 8, "size": 224, "network": "r3d18"}
    setting |= {"pretrained_on": K2, "pretraining": "sce_tau_m_0.07"}
    assert evaluation_recipes(Setting.stated({**setting, "network": "../evil"})) == []
    assert pretraining_recipe(Setting.stated(setting)) is not None
    for other in ({"pretraining": "sce_tau_m_0.09"}, {"pretrained_on": K4}):
        assert pretraining_recipe(Setting.stated({**setting, **other})) is None
    lars = {"protocol": "linear", "dataset": "imagenet", "network": "r50_2d", "frames": 1}
    lars |= {"size": 224, "pretrained_on": "imagenet", "pretraining": "sce_images_lars"}
    first, second = evaluation_recipes(Setting.stated({**lars, "pretraining_epochs": 100}))
    assert "90e" in first and "100e" in second
    assert evaluation_recipes(Setting.stated({**lars, "pretraining": "other"})) == [second, first]


def test_the_transfer_tables_agree_with_the_tool():
    found = {p.dataset: p for p in IMAGE_RESULTS if p.table == "tab:many-shot"}
    mean = found.pop("many_shot_mean")
    assert mean.value == 80.4 == round(fmean(p.value for p in found.values()), 1)
    shots = [p.value for p in IMAGE_RESULTS if p.table == "tab:low-shot-voc"]
    for value, more_decimals in zip(shots, LOW_SHOT_PUBLISHED.values(), strict=True):
        assert abs(value - more_decimals) < 0.0501


def test_sets_have_the_sizes_that_the_preparation_checks():
    training = {key[1:]: size for key, size in SIZES.items() if key[0] == "training"}
    sizes = {key: (size.low, size.classes) for key, size in training.items()}
    assert sizes[K4, "val"] == (kinetics.PUBLISHED_FILES["train"], kinetics.PUBLISHED_CLASSES)
    assert training[K4, "val"].most == kinetics.PUBLISHED["train"]
    classes = kinetics.K200_PUBLISHED_CLASSES
    assert sizes[K2, "val"] == (classes * kinetics.K200_PER_CLASS["train"], classes)
    assert sizes["ssv2", "val"][0] == action_sets.SSV2_PUBLISHED["train"]
    assert sizes["ava", "val"] == (ava_lists.PUBLISHED_VIDEOS["train"], None)
    assert SIZES["test", "ava", "val"].low == ava_lists.PUBLISHED_VIDEOS["val"]
    for name, count in (("cifar10", 10), ("cifar100", 100)):
        assert training[name, None].low == image_datasets.CIFAR10.counts["train"]
        assert SIZES["test", name, None].low == image_datasets.CIFAR10.counts["test"]
        assert SIZES["test", name, None].classes == count == training[name, None].classes
    found = (
        training["stl10", None],
        SIZES["test", "stl10", None],
        SIZES["pretraining", "stl10", None],
    )
    parts = [image_datasets.STL10.counts[part] for part in ("train", "test", "unlabeled")]
    assert [size.low for size in found] == parts == [5_000, 8_000, 100_000]
    assert training["imagenet", None].low == imagenet.PUBLISHED_TRAIN
    assert training[IN100, None].low == imagenet.PUBLISHED_TRAIN_100
    for name in ("voc2007", "dtd"):
        prepared = TRANSFER_SETS[name].published
        assert training[name, None].low == prepared["train"] + prepared["val"]
    for name in MANY_SHOT_SETS:
        assert {("training", name, None), ("test", name, None)} <= set(SIZES)


def test_the_classes_of_imagenet100_count_in_their_order():
    joined = "\n".join(IMAGENET100_CLASSES).encode()
    assert {IN100: hashlib.sha256(joined).hexdigest()} == CLASS_LISTS
    assert class_list_problem(IN100, IMAGENET100_CLASSES) is None
    other = [*IMAGENET100_CLASSES[1:], IMAGENET100_CLASSES[0]]
    assert class_list_problem(IN100, other) == "its classes differ from the classes of imagenet100"
    assert all("not known" in class_list_problem(IN100, names) for names in (None, [], 5, "n01"))
    assert class_list_problem("cifar10", None) is None
