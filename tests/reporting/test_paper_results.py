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
from sce_video.published import read_published
from sce_video.published.paper_recipes import evaluation_recipe, pretraining_recipe
from sce_video.published.paper_results import IMAGE_RESULTS, MEAN_OF_SPLITS, PAPER_RESULTS
from sce_video.published.sets import CLASS_LISTS, SIZES, class_list_problem

K2, K4, IN100 = "kinetics200", "kinetics400", "imagenet100"
EVERYTHING = (*PAPER_RESULTS, *IMAGE_RESULTS)


def recipes_of(paper):
    """Name of the recipe of the evaluation; name and options of that of the pretraining."""
    clip, method = (paper.network, paper.frames, paper.size), paper.pretraining
    origin = pretraining_recipe(method, paper.pretrained_on, *clip, paper.pretraining_epochs)
    return evaluation_recipe(paper.protocol, paper.dataset, *clip, method), origin


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
    for row, recipe in {p.row: recipes_of(p)[1] for p in EVERYTHING if p.table == table}.items():
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
            continue
        recipe, pretraining = recipes_of(paper)
        assert recipe in names, paper
        assert paper.pretraining is None or pretraining[0] in names, paper
        split = 1 if paper.split == MEAN_OF_SPLITS else paper.split
        if paper.frames > 1:
            assert all((part, paper.dataset, split) in SIZES for part in ("test", "training"))
    different = {str(recipes_of(p)[1]) for p in EVERYTHING}
    methods = {
        (p.pretraining, p.pretrained_on, p.network, p.frames, p.pretraining_epochs)
        for p in EVERYTHING
    }
    assert len(different) == len(methods)


def test_every_row_of_the_tables_of_recipes_is_shipped_and_used():
    """A file of results may state any setting: it can only lead to a recipe of the table."""
    rows = read_published("recipes.csv")
    assert {row["recipe"] for row in rows} <= set(recipe_names())
    methods = {row["method"] for row in read_published("pretrainings.csv")}
    assert methods == {row["method"] for row in rows if row["protocol"] == "pretraining"}
    assert evaluation_recipe("linear", K4, "../evil", 8, 224) is None
    assert pretraining_recipe("sce_tau_m_0.09", K2, "r3d18", 8, 224) is None
    assert pretraining_recipe("sce_lambda_0.125", K4, "r3d18", 8, 224) is None


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
        assert training[name, ""].low == image_datasets.CIFAR10.counts["train"]
        assert SIZES["test", name, ""].low == image_datasets.CIFAR10.counts["test"]
        assert SIZES["test", name, ""].classes == count == training[name, ""].classes
    found = (training["stl10", ""], SIZES["test", "stl10", ""], SIZES["pretraining", "stl10", ""])
    parts = [image_datasets.STL10.counts[part] for part in ("train", "test", "unlabeled")]
    assert [size.low for size in found] == parts == [5_000, 8_000, 100_000]
    assert training["imagenet", ""].low == imagenet.PUBLISHED_TRAIN
    assert training[IN100, ""].low == imagenet.PUBLISHED_TRAIN_100
    for name in ("voc2007", "dtd"):
        prepared = TRANSFER_SETS[name].published
        assert training[name, ""].low == prepared["train"] + prepared["val"]
    for name in MANY_SHOT_SETS:
        assert {("training", name, ""), ("test", name, "")} <= set(SIZES)


def test_the_classes_of_imagenet100_count_in_their_order():
    joined = "\n".join(IMAGENET100_CLASSES).encode()
    assert {IN100: hashlib.sha256(joined).hexdigest()} == CLASS_LISTS
    assert class_list_problem(IN100, IMAGENET100_CLASSES) is None
    other = [*IMAGENET100_CLASSES[1:], IMAGENET100_CLASSES[0]]
    assert class_list_problem(IN100, other) == "other classes than those of imagenet100"
    assert all("not known" in class_list_problem(IN100, names) for names in (None, [], 5, "n01"))
    assert class_list_problem("cifar10", None) is None
