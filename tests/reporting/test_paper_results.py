"""The paper's numbers: structure, and values copied from its tables a second time."""

from __future__ import annotations

from collections import Counter

import pytest

from sce_video.data_tools.prepare import actions, ava, kinetics
from sce_video.engine.config.load import recipe_config
from sce_video.engine.recipes import recipe_names
from sce_video.published.paper_results import IMAGE_RESULTS, MEAN_OF_SPLITS, PAPER_RESULTS
from sce_video.published.sets import TEST_SETS, TRAINING_SETS, PublishedSize
from sce_video.reporting.comparability import setting_of

K2, K4 = "kinetics200", "kinetics400"


def value(*wanted, source=K4, pretraining="sce", table=None):
    """The one number of (protocol, dataset, split, metric, network, frames, size)."""
    found = [
        p
        for p in PAPER_RESULTS
        if (p.protocol, p.dataset, p.split, p.metric, p.network, p.frames, p.size) == wanted
        and (p.pretrained_on, p.pretraining) == (source, pretraining)
        and table in (None, p.table)
    ]
    assert len(found) == 1, wanted
    return found[0].value


@pytest.mark.parametrize(
    ("network", "frames", "size", "k400", "ucf", "hmdb"),
    [
        ("r3d18", 16, 112, 56.6, 89.1, 66.6),
        ("r3d18", 8, 224, 59.8, 90.9, 65.7),
        ("r3d50", 8, 224, 67.6, 94.1, 70.5),
        ("r3d50", 16, 224, 69.6, 95.3, 74.7),
    ],
)
def test_action_recognition(network, frames, size, k400, ucf, hmdb):
    setting, table = (network, frames, size), "tab:video-sota-action"
    assert value("linear", K4, "val", "top1", *setting, table=table) == k400
    assert value("finetune", "ucf101", MEAN_OF_SPLITS, "top1", *setting, table=table) == ucf
    assert value("finetune", "hmdb51", MEAN_OF_SPLITS, "top1", *setting, table=table) == hmdb


@pytest.mark.parametrize(
    ("network", "frames", "size", "dataset", "recalls"),
    [
        ("r3d18", 16, 112, "ucf101", (74.5, 85.9, 90.5)),
        ("r3d18", 16, 112, "hmdb51", (37.8, 62.1, 73.8)),
        ("r3d18", 8, 224, "ucf101", (74.4, 85.6, 90.0)),
        ("r3d18", 8, 224, "hmdb51", (40.1, 63.3, 75.4)),
        ("r3d50", 8, 224, "ucf101", (81.5, 89.7, 92.8)),
        ("r3d50", 8, 224, "hmdb51", (43.0, 67.0, 79.0)),
        ("r3d50", 16, 224, "ucf101", (83.9, 92.2, 94.9)),
        ("r3d50", 16, 224, "hmdb51", (45.9, 69.9, 80.5)),
    ],
)
def test_retrieval(network, frames, size, dataset, recalls):
    setting = (network, frames, size)
    for k, recall in zip((1, 5, 10), recalls, strict=True):
        assert value("retrieval", dataset, 1, f"retrieval_r{k}", *setting) == recall


@pytest.mark.parametrize(
    ("frames", "ucf", "ava", "ssv2"), [(8, 94.1, 20.3, 53.9), (16, 95.5, 21.6, 57.2)]
)
def test_generalization(frames, ucf, ava, ssv2):
    """Split 1 of UCF101 here (caption), the mean of three in the other table: 95.5 and 95.3."""
    setting = ("r3d50", frames, 224)
    assert value("finetune", "ucf101", 1, "top1", *setting) == ucf
    assert value("detection", "ava", "val", "mAP", *setting) == ava
    assert value("finetune", "ssv2", "val", "top1", *setting) == ssv2


@pytest.mark.parametrize(
    ("pretraining", "k200", "ucf", "hmdb"),
    [
        ("sce", 66.0, 88.4, 62.0),
        ("sce_baseline", 63.9, 86.3, 57.0),
        ("supervised", None, 87.5, 60.1),
    ],
)
def test_ablation(pretraining, k200, ucf, hmdb):
    chosen = {"source": K2, "pretraining": pretraining}
    setting = ("r3d18", 8, 224)
    if k200 is not None:
        assert value("linear", K2, "val", "top1", *setting, **chosen) == k200
    assert value("finetune", "ucf101", 1, "top1", *setting, **chosen) == ucf
    assert value("finetune", "hmdb51", 1, "top1", *setting, **chosen) == hmdb


ABLATIONS = {  # K200, UCF101, HMDB51 by row, copied from the tables once more
    "tab:video-lambda-vary": {
        "0.000": ("sce_baseline_lambda_0.0", 64.2, 86.2, 57.5),
        "0.125": ("sce_baseline_lambda_0.125", 64.8, 86.9, 58.2),
        "0.250": ("sce_baseline_lambda_0.25", 64.3, 86.7, 58.2),
        "0.375": ("sce_baseline_lambda_0.375", 64.7, 86.3, 56.8),
        "0.625": ("sce_baseline_lambda_0.625", 63.4, 86.2, 55.7),
        "0.750": ("sce_baseline_lambda_0.75", 63.1, 85.8, 56.2),
        "0.875": ("sce_baseline_lambda_0.875", 62.1, 85.7, 55.3),
        "1.000": ("sce_baseline_lambda_1.0", 61.9, 85.0, 55.4),
    },
    "tab:video-temp": {
        "0.03": ("sce_baseline_tau_m_0.03", 63.4, 86.1, 56.9),
        "0.04": ("sce_baseline_tau_m_0.04", 63.8, 86.6, 56.6),
        "0.05": ("sce_baseline_tau_m_0.05", 64.3, 86.4, 57.1),
        "0.06": ("sce_baseline_tau_m_0.06", 64.1, 86.2, 56.4),
        "0.08": ("sce_baseline_tau_m_0.08", 63.8, 85.9, 55.8),
    },
    "tab:video-color": {
        "0.75": ("sce_baseline_strength_0.75", 64.6, 86.8, 57.8),
        "1.00": ("sce_baseline_strength_1.0", 64.8, 87.0, 58.1),
    },
    "tab:video-time": {
        "0.2, 0.0, 0.0": ("sce_baseline_jitter_0.2", 64.2, 86.4, 56.9),
        "0.0, 0.2, 0.0": ("sce_baseline_reverse_0.2", 64.0, 85.7, 55.4),
        "0.0, 0.0, 0.2": ("sce_baseline_diff_0.2", 65.4, 88.3, 61.4),
        "0.0, 0.0, 0.5": ("sce_baseline_diff_0.5", 64.1, 87.7, 60.8),
    },
    "tab:video-best": {
        "0.125, 0.05, 0.2, 1.0": ("sce_lambda_0.125", 65.0, 87.4, 61.1),
        "0.125, 0.07, 0.2, 1.0": ("sce_lambda_0.125_tau_m_0.07", 64.7, 88.2, 60.6),
        "0.500, 0.07, 0.2, 1.0": ("sce_tau_m_0.07", 65.4, 88.6, 61.0),
    },
}


@pytest.mark.parametrize("table", ABLATIONS)
def test_rows_of_the_ablations(table):
    for row, (pretraining, *values) in ABLATIONS[table].items():
        chosen = {"source": K2, "pretraining": pretraining, "table": table}
        cells = ("linear", K2, "val"), ("finetune", "ucf101", 1), ("finetune", "hmdb51", 1)
        for cell, expected in zip(cells, values, strict=True):
            assert value(*cell, "top1", "r3d18", 8, 224, **chosen) == expected
        assert {p.row for p in PAPER_RESULTS if p.pretraining == pretraining} == {row}


@pytest.mark.parametrize("table", ["tab:video-lambda-vary", "tab:video-time", "tab:video-best"])
def test_recipes_of_the_ablations_have_the_settings_of_their_rows(table):
    """The row's name has the values; the rest are the baseline's, or the best row's."""
    keys = {
        "tab:video-lambda-vary": ("lambda_",),
        "tab:video-time": ("duration_jitter", "reverse_prob", "diff_prob"),
        "tab:video-best": ("lambda_", "tau_m", "diff_prob", "strength"),
    }[table]
    base = {"lambda_": 0.5, "tau_m": 0.07, "strength": 0.5, "diff_prob": 0.0}
    base |= {"duration_jitter": 0.0, "reverse_prob": 0.0}
    for paper in PAPER_RESULTS:
        if paper.table == table:
            config = recipe_config(*paper.pretraining_recipe)
            (clips,) = (
                step
                for step in config["train_dataloader"]["dataset"]["pipeline"]
                if step["type"] == "RandomClips"
            )
            view, other = config["data_preprocessor"]["views"]
            assert view["strength"] == other["strength"]
            found = {key: clips.get(key, 0.0) for key in base if "_prob" in key or "jitter" in key}
            found |= {key: config["model"][key] for key in ("lambda_", "tau_m")}
            printed = dict(zip(keys, map(float, paper.row.split(", ")), strict=True))
            assert {**found, "strength": view["strength"]} == {**base, **printed}, paper.row


def test_supervised():
    wanted = ("supervised", K2, "val", "top1", "r3d18", 8, 224)
    assert value(*wanted, source=None, pretraining=None) == 72.0


def test_every_number_has_its_source_and_is_listed_once():
    assert len(PAPER_RESULTS) == 51 + 22 * 3
    assert Counter(p.table for p in PAPER_RESULTS) == {
        "tab:video-sota-action": 14,
        "tab:video-sota-retrieval": 24,
        "tab:video-sota-generalization": 6,
        "tab:video-best": 1 + 9,
        "tab:video-baseline": 6,
        "tab:video-lambda-vary": 24,
        "tab:video-temp": 15,
        "tab:video-color": 6,
        "tab:video-time": 12,
    }
    assert all(p.row and 0 < p.value < 100 for p in PAPER_RESULTS)
    keys = Counter((*setting_of(p), p.split, p.metric) for p in PAPER_RESULTS)
    assert max(keys.values()) == 1
    assert all((p.pretraining is None) == (p.pretrained_on is None) for p in PAPER_RESULTS)
    rows = {p.row for p in PAPER_RESULTS if p.table == "tab:video-sota-action"}
    assert "SCE (Ours), ResNet3D-18, 16 x 112², K400" in rows and len(rows) == 5


def test_every_number_names_recipes_that_are_shipped():
    names = recipe_names()
    for paper in (*PAPER_RESULTS, *IMAGE_RESULTS):
        if paper.protocol == "instance_segmentation":  # of detectron2
            continue
        assert paper.recipe in names, paper
        assert paper.pretraining is None or paper.pretraining_recipe[0] in names, paper
        split = 1 if paper.split == MEAN_OF_SPLITS else paper.split
        if paper.frames > 1:
            assert (paper.dataset, split) in TEST_SETS and (paper.dataset, split) in TRAINING_SETS
    different = {str(p.pretraining_recipe) for p in (*PAPER_RESULTS, *IMAGE_RESULTS)}
    methods = {
        (p.pretraining, p.pretrained_on, p.network, p.frames, p.pretraining_epochs)
        for p in (*PAPER_RESULTS, *IMAGE_RESULTS)
    }
    assert len(different) == len(methods)


def test_published_sizes():
    tests = {key: sizes.low for key, sizes in TEST_SETS.items() if sizes.low == sizes.high}
    assert tests == {
        ("ucf101", 1): 3783, ("ucf101", 2): 3734, ("ucf101", 3): 3696,
        ("hmdb51", 1): 1530, ("hmdb51", 2): 1530, ("hmdb51", 3): 1530, ("ssv2", "val"): 24777,
        ("ava", "val"): 64,
    }  # fmt: skip
    for (dataset, split), gallery in TRAINING_SETS.items():
        total = {"ucf101": 13320, "hmdb51": 70 * 51 + 30 * 51}.get(dataset)
        assert total is None or gallery.low + TEST_SETS[dataset, split].low == total
    for sizes in (*TEST_SETS.values(), *TRAINING_SETS.values()):
        assert sizes.least <= sizes.low <= sizes.high <= sizes.most
    assert TEST_SETS[K4, "val"].low <= 19881 <= TEST_SETS[K4, "val"].high
    assert (
        PublishedSize.exactly(3783).least == 3746
        and PublishedSize.exactly(3783).published() == "3,783"
    )


def test_training_sets_have_the_sizes_that_the_preparation_checks():
    sizes = {key: (size.low, size.classes) for key, size in TRAINING_SETS.items()}
    assert sizes[K4, "val"] == (kinetics.PUBLISHED_FILES["train"], kinetics.PUBLISHED_CLASSES)
    assert TRAINING_SETS[K4, "val"].most == kinetics.PUBLISHED["train"]
    classes = kinetics.K200_PUBLISHED_CLASSES
    assert sizes[K2, "val"] == (classes * kinetics.K200_PER_CLASS["train"], classes)
    assert sizes["ssv2", "val"][0] == actions.SSV2_PUBLISHED["train"]
    assert sizes["ava", "val"] == (ava.PUBLISHED_VIDEOS["train"], None)
    assert TEST_SETS["ava", "val"].low == ava.PUBLISHED_VIDEOS["val"]
    assert TRAINING_SETS[K4, "val"].contains(234619) and not TRAINING_SETS[K4, "val"].contains(
        80000
    )
