"""The paper's numbers on images, against its tables copied row by row."""

from __future__ import annotations

import hashlib
from collections import Counter
from statistics import fmean

from sce_video.data_tools.prepare import imagenet
from sce_video.data_tools.prepare.imagenet import IMAGENET100_CLASSES
from sce_video.data_tools.prepare.transfer_sets import TRANSFER_SETS
from sce_video.datasets import image_datasets as cifar
from sce_video.datasets import image_datasets as stl10
from sce_video.evaluation.transfer import LOW_SHOT_PUBLISHED, MANY_SHOT_SETS
from sce_video.published.paper_results import IMAGE_RESULTS
from sce_video.published.sets import (
    CLASS_LISTS,
    IMAGE_TEST_SETS,
    IMAGE_TRAINING_SETS,
    PRETRAINING_SETS,
    class_list_problem,
)

IN100 = "imagenet100"
TAUS_M = "0.03 0.04 0.05 0.06 0.07 0.08 0.09 0.10".split()


def numbers(pretraining, dataset=IN100, protocol="linear"):
    """The numbers of a pretraining with a linear evaluation on its own data."""
    return [
        p
        for p in IMAGE_RESULTS
        if (p.pretraining, p.dataset, p.protocol) == (pretraining, dataset, protocol)
    ]


def check(table, printed, pretraining, dataset=IN100):
    """The one number of a setting is printed so in this table, or rounded from the printed one."""
    (paper,) = numbers(pretraining, dataset)
    values = {paper.table: paper.value, **dict(paper.also)}
    assert values[table] == float(printed), (table, pretraining)
    assert abs(paper.value - float(printed)) <= 0.05 + 1e-9
    if paper.table == table:
        assert f"{paper.value:.{paper.decimals}f}" == printed


def sce(tau, tau_m):
    return f"sce_images_tau_{tau}_tau_m_{float(tau_m)}"


LAMBDA = """
0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.0
81.5 81.8 82.5 82.8 82.9 82.9 82.2 81.6 81.8 81.8 81.1
"""


def test_lambda():
    rows = (line.split() for line in LAMBDA.strip().splitlines())
    for value, printed in zip(*rows, strict=True):
        name = sce(0.1, 0.05) if value == "0.5" else f"sce_images_lambda_{value}"
        check("tab:lambda", printed, name)


LOSS = """
1.0 0.0 0.0 81.11 81.11
0.5 0.5 0.0 82.80 82.49
0.5 0.5 0.5 82.94 83.37
0.0 1.0 0.0 80.79 78.35
0.0 1.0 1.0 81.53 79.64
"""
LOSS_NAMES = (
    ("sce_images_lambda_1.0", "sce_images_lambda_1.0"),
    ("sce_images_free_0.5_0.5_0_tau_m_0.05", "sce_images_free_0.5_0.5_0_tau_m_0.07"),
    (sce(0.1, 0.05), sce(0.1, 0.07)),
    ("sce_images_free_0_1_0_tau_m_0.05", "sce_images_free_0_1_0_tau_m_0.07"),
    ("sce_images_lambda_0.0", "sce_images_lambda_0.0_tau_m_0.07"),
)


def test_loss():
    for line, names in zip(LOSS.strip().splitlines(), LOSS_NAMES, strict=True):
        for name, value in zip(names, line.split()[3:], strict=True):
            check("tab:loss", value, name)


AUG = """
strong weak no 82.9
strong-gamma weak no 83.0
weak strong no 73.4
strong strong no 80.5
strong-alpha strong-beta no 80.7
strong weak yes 83.7
strong strong yes 83.0
strong-alpha strong-beta yes 84.2
"""
AUG_NAMES = (
    *(sce(0.1, 0.05), "sce_images_gamma_weak", "sce_images_weak_strong"),
    *("sce_images_strong_strong", "sce_images_alpha_beta"),
    *("sce_images_symmetric_strong_weak", "sce_images_symmetric_strong_strong"),
    "sce_images_symmetric_alpha_beta",
)


def test_augmentations():
    for line, name in zip(AUG.strip().splitlines(), AUG_NAMES, strict=True):
        check("tab:aug", line.split()[3], name)


def test_temperature():
    printed = {
        0.1: "82.3 82.5 82.9 82.5 83.4 82.7 82.5 82.1",
        0.2: "81.3 81.2 81.2 81.2 81.1 80.9 81.2 81.2",
    }
    for tau, values in printed.items():
        for tau_m, value in zip(TAUS_M, values.split(), strict=True):
            check("tab:temperature", value, sce(tau, tau_m))


SMALL = """
cifar10 0.1 89.93 90.03 90.06 90.20 90.16 90.06 89.67 88.97
cifar10 0.2 89.98 90.12 90.12 90.05 90.13 90.09 90.22 90.34
cifar100 0.1 64.49 64.90 65.19 65.33 65.27 65.45 64.89 63.87
cifar100 0.2 63.71 63.74 63.89 64.05 64.24 64.23 64.10 64.30
stl10 0.1 89.34 89.94 89.87 89.84 89.72 89.52 88.99 88.41
stl10 0.2 88.4 88.23 88.4 88.35 87.54 88.32 88.80 88.59
tiny_imagenet 0.1 50.23 51.12 51.41 51.66 51.90 51.58 51.37 50.46
tiny_imagenet 0.2 48.56 48.85 48.35 48.98 49.06 49.15 49.66 49.64
"""


def test_temperature_small():
    for line in SMALL.strip().splitlines():
        dataset, tau, *values = line.split()
        for tau_m, value in zip(TAUS_M, values, strict=True):
            check("tab:temperature-small", value, sce(tau, tau_m), dataset)


BASELINES = """
moco_images 68.8 80.5 87.6 61.0 86.5 45.9
ressl_images 70.2 81.6 90.2 64.0 89.1 49.5
sce_images 70.5 83.4 90.3 65.5 89.9 51.9
"""
DATASETS = ("imagenet", IN100, "cifar10", "cifar100", "stl10", "tiny_imagenet")
#: Temperatures of the row SCE: section 4.1.1 and appendix E.
BEST = {
    "imagenet": sce(0.1, 0.07),
    IN100: sce(0.1, 0.07),
    "cifar10": sce(0.2, 0.1),
    "cifar100": sce(0.1, 0.08),
    "stl10": sce(0.1, 0.04),
    "tiny_imagenet": sce(0.1, 0.07),
}


def test_baselines():
    for line in BASELINES.strip().splitlines():
        name, *values = line.split()
        for dataset, value in zip(DATASETS, values, strict=True):
            method = BEST[dataset] if name == "sce_images" else name
            check("tab:baselines", value, method, dataset)
    notes = {d: numbers("ressl_images", d)[0].note for d in DATASETS}
    assert all(("tau_m" in note) == (d not in DATASETS[:2]) for d, note in notes.items())
    assert {
        p.note for name in ("moco_images", sce(0.1, 0.07)) for p in numbers(name, "imagenet")
    } == {"linear evaluation of 100 epochs at a rate of 30"}
    sizes = {d: (p.network, p.size) for d in DATASETS for p in numbers("moco_images", d)}
    assert sizes == {
        **dict.fromkeys(("imagenet", IN100), ("r50_2d", 224)),
        **dict.fromkeys(("cifar10", "cifar100"), ("r18_small", 32)),
        "stl10": ("r18_small", 96),
        "tiny_imagenet": ("r18_small", 64),
    }


def test_imagenet():
    found = {p.pretraining_epochs: p.value for p in numbers("sce_images_lars", "imagenet")}
    assert found == {100: 72.1, 200: 72.7, 300: 73.3, 1000: 74.1}
    check("tab:sota-multi-crop", "75.4", "sce_images_multicrop", "imagenet")
    assert {p.note for p in numbers("sce_images_lars", "imagenet")} == {
        "linear evaluation of 90 epochs at 0.1 x batch/256"
    }


MANY_SHOT = {
    "food101": 77.7, "cifar10": 94.8, "cifar100": 80.4, "sun397": 65.3, "cars": 65.7,
    "aircraft": 59.6, "voc2007": 84.0, "dtd": 77.1, "pets": 90.9, "caltech101": 92.7,
    "flowers": 96.1,
}  # fmt: skip


def test_transfer():
    found = {p.dataset: p for p in IMAGE_RESULTS if p.table == "tab:many-shot"}
    mean = found.pop("many_shot_mean")
    assert {name: p.value for name, p in found.items()} == MANY_SHOT
    assert mean.value == 80.4 == round(fmean(MANY_SHOT.values()), 1)
    for name, (metric, _, published) in MANY_SHOT_SETS.items():
        assert (found[name].metric, found[name].value) == (f"many_shot_{metric}", published)
    shots = {p.metric: p.value for p in IMAGE_RESULTS if p.table == "tab:low-shot-voc"}
    names = ("low_shot_map_16", "low_shot_map_32", "low_shot_map_64", "low_shot_map_full")
    assert shots == dict(zip(names, (79.5, 83.1, 85.5, 88.2), strict=True))
    for value, more_decimals in zip(shots.values(), LOW_SHOT_PUBLISHED.values(), strict=True):
        assert abs(value - more_decimals) < 0.0501
    coco = {p.metric: p.value for p in IMAGE_RESULTS if p.table == "tab:object-detection"}
    assert coco == {"box_AP": 41.6, "mask_AP": 36.0}
    transfer = [p for p in IMAGE_RESULTS if p.protocol != "linear"]
    assert {(p.network, p.size, p.pretrained_on, p.pretraining) for p in transfer} == {
        ("r50_2d", 224, "imagenet", "sce_images_multicrop")
    }


def test_every_number_is_listed_once():
    """By table, without what is printed in another table, too."""
    assert Counter(p.table for p in IMAGE_RESULTS) == {
        "tab:baselines": 6 + 6 + 1,  # of SCE, five are in tab:loss and tab:temperature-small
        "tab:temperature-small": 8 * 8,
        "tab:loss": 2 * 5 - 1,  # InfoNCE has no tau_m
        "tab:lambda": 11 - 3,
        "tab:aug": 8 - 1,
        "tab:temperature": 2 * 8 - 2,
        "tab:sota": 4,
        "tab:sota-multi-crop": 1,
        "tab:many-shot": 11 + 1,
        "tab:low-shot-voc": 4,
        "tab:object-detection": 2,
    }
    elsewhere = Counter(table for p in IMAGE_RESULTS for table, _ in p.also)
    assert elsewhere == {
        "tab:baselines": 5,
        "tab:lambda": 3,
        "tab:aug": 1,
        "tab:temperature": 2,
    }
    keys = [
        (p.protocol, p.dataset, p.metric, p.pretraining, p.pretraining_epochs, p.pretrained_on)
        for p in IMAGE_RESULTS
    ]
    assert len(set(keys)) == len(keys)
    (shared,) = numbers(sce(0.1, 0.05))
    assert shared.remark == "also in tab:lambda (82.9), tab:aug (82.9), tab:temperature (82.9)"


def test_sizes_are_those_of_the_tools_that_prepare_the_sets():
    """Of the data sets' pages, and of the tools, which print the official counts."""
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        assert IMAGE_TRAINING_SETS[name].low == cifar.CIFAR_PUBLISHED["train"] == 50_000
        assert IMAGE_TEST_SETS[name].low == cifar.CIFAR_PUBLISHED["test"] == 10_000
        assert IMAGE_TEST_SETS[name].classes == classes == IMAGE_TRAINING_SETS[name].classes
    parts = {part: stl10.STL10_PUBLISHED[part] for part in ("train", "test", "unlabeled")}
    found = (IMAGE_TRAINING_SETS["stl10"], IMAGE_TEST_SETS["stl10"], PRETRAINING_SETS["stl10"])
    assert [size.low for size in found] == list(parts.values()) == [5_000, 8_000, 100_000]
    assert PRETRAINING_SETS["stl10"].classes is None and found[0].classes == 10
    assert not PRETRAINING_SETS["stl10"].contains(105_000)
    assert IMAGE_TRAINING_SETS["imagenet"].low == imagenet.PUBLISHED_TRAIN == 1_281_167
    assert IMAGE_TRAINING_SETS[IN100].low == imagenet.PUBLISHED_TRAIN_100 == 126_689
    assert (IMAGE_TEST_SETS["imagenet"].low, IMAGE_TEST_SETS[IN100].low) == (50_000, 5_000)
    tiny = IMAGE_TRAINING_SETS["tiny_imagenet"], IMAGE_TEST_SETS["tiny_imagenet"]
    assert [(s.low, s.classes) for s in tiny] == [(100_000, 200), (10_000, 200)]
    voc = TRANSFER_SETS["voc2007"].published
    assert IMAGE_TRAINING_SETS["voc2007"].low == voc["train"] + voc["val"] == 5_011
    assert IMAGE_TEST_SETS["voc2007"].low == voc["test"] == 4_952
    dtd = TRANSFER_SETS["dtd"].published
    assert IMAGE_TRAINING_SETS["dtd"].low == dtd["train"] + dtd["val"] == 3_760
    assert set(MANY_SHOT_SETS) <= set(IMAGE_TRAINING_SETS) & set(IMAGE_TEST_SETS)


def test_the_classes_of_imagenet100_count_in_their_order():
    joined = "\n".join(IMAGENET100_CLASSES).encode()
    assert CLASS_LISTS == {IN100: hashlib.sha256(joined).hexdigest()}
    assert class_list_problem(IN100, IMAGENET100_CLASSES) is None
    other = [*IMAGENET100_CLASSES[1:], IMAGENET100_CLASSES[0]]
    assert class_list_problem(IN100, other) == "other classes than those of imagenet100"
    assert all("not known" in class_list_problem(IN100, names) for names in (None, [], 5, "n01"))
    assert class_list_problem("cifar10", None) is None
