"""The paper's numbers: structure, and values copied from its tables a second time."""

from __future__ import annotations

from collections import Counter

import pytest

from sce_video.data_tools.preparation import ava, kinetics, ssv2
from sce_video.published import EPOCHS, METHODS, NETWORKS, TEST_SETS, TRAINING_SETS, PublishedSize
from sce_video.registry import MODELS
from sce_video.reporting.comparability import setting_of
from sce_video.reporting.paper_results import MEAN_OF_SPLITS, PAPER_RESULTS, TEST_CROP, VIEWS

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


def test_supervised():
    wanted = ("supervised", K2, "val", "top1", "r3d18", 8, 224)
    assert value(*wanted, source=None, pretraining=None) == 72.0


def test_every_number_has_its_source_and_is_listed_once():
    assert len(PAPER_RESULTS) == 51
    assert Counter(p.table for p in PAPER_RESULTS) == {
        "tab:video-sota-action": 14,
        "tab:video-sota-retrieval": 24,
        "tab:video-sota-generalization": 6,
        "tab:video-best": 1,
        "tab:video-baseline": 6,
    }
    assert all(p.row and 0 < p.value < 100 for p in PAPER_RESULTS)
    keys = Counter((*setting_of(p), p.split, p.metric) for p in PAPER_RESULTS)
    assert max(keys.values()) == 1
    assert all((p.pretraining is None) == (p.pretrained_on is None) for p in PAPER_RESULTS)
    rows = {p.row for p in PAPER_RESULTS if p.table == "tab:video-sota-action"}
    assert "SCE (Ours), ResNet3D-18, 16 x 112², K400" in rows and len(rows) == 5


def test_protocols_cover_the_numbers():
    for paper in PAPER_RESULTS:
        assert paper.size in TEST_CROP
        if paper.protocol != "retrieval":
            assert EPOCHS[paper.protocol, paper.dataset] > 0
        split = 1 if paper.split == MEAN_OF_SPLITS else paper.split
        assert (paper.dataset, split) in TEST_SETS and (paper.dataset, split) in TRAINING_SETS
        assert paper.pretraining is None or paper.pretraining in METHODS
    assert EPOCHS["linear", K4] == 60 and EPOCHS["finetune", "hmdb51"] == 200
    assert EPOCHS["supervised", K2] == 200 and EPOCHS["detection", "ava"] == 32
    assert EPOCHS["finetune", "ssv2"] == 22 and VIEWS == {"ssv2": (1, 1)}
    assert TEST_CROP == {224: 256, 112: 128}


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
    assert sizes["ssv2", "val"][0] == ssv2.PUBLISHED["train"]
    assert sizes["ava", "val"] == (ava.PUBLISHED_VIDEOS["train"], None)
    assert TEST_SETS["ava", "val"].low == ava.PUBLISHED_VIDEOS["val"]
    assert TRAINING_SETS[K4, "val"].contains(234619) and not TRAINING_SETS[K4, "val"].contains(
        80000
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_number_of_parameters(name):
    kind, depth, parameters = NETWORKS[name]
    options = {"gating": True} if depth is None else {"depth": depth}
    backbone = MODELS.build({"type": kind, **options})
    assert sum(p.numel() for p in backbone.parameters()) == parameters
