"""Which results on images stand beside the paper: the right one, and every wrong setting apart."""

from __future__ import annotations

import pytest
from helpers.image_results import (
    DATA,
    R50,
    WNIDS,
    lars_record,
    linear,
    multicrop_record,
    pretrained,
    pretraining_record,
)

from sce_video.reporting.comparability import compare
from sce_video.reporting.report import build_report
from sce_video.reporting.result_files import Collection, parse_result


def found(content):
    return compare(parse_result("x/results.json", content))


def beside(content):
    """The numbers of the paper that a result stands beside."""
    report = build_report(Collection([parse_result("x/results.json", content)]))
    return [(c.papers[0].table, c.papers[0].value) for c in report.images if c.measurements]


NOTE = "paper: best epoch on the test split"


@pytest.mark.parametrize(
    ("content", "cell"),
    [
        (linear("cifar10"), ("tab:temperature-small", 90.34)),
        (linear("stl10"), ("tab:temperature-small", 89.94)),
        (linear("imagenet100"), ("tab:loss", 83.37)),
        (linear("imagenet"), ("tab:baselines", 70.5)),
    ],
)
def test_a_right_result_is_beside_its_number_with_the_note_on_the_epoch(content, cell):
    compared = found(content)
    assert (compared.obstacles, compared.deviations) == ((), ())
    assert compared.notes == (NOTE,)
    assert beside(content) == [cell]


LARS_LINEAR = {"max_epochs": 90, "batch_size": 1024, "optimizer": {"type": "SGD", "lr": 0.1}}


def lars(epochs, record=None, **changes):
    origin = pretrained("imagenet", record or lars_record(epochs), "sce_images_lars", epochs)
    return linear("imagenet", origin, training={**LARS_LINEAR, **changes})


@pytest.mark.parametrize(("epochs", "value"), [(100, 72.1), (200, 72.7), (300, 73.3), (1000, 74.1)])
def test_every_schedule_of_lars_has_its_own_number(epochs, value):
    assert found(lars(epochs)).deviations == () == found(lars(epochs)).obstacles
    assert beside(lars(epochs)) == [("tab:sota", value)]


def test_lars_for_other_epochs_and_by_the_other_linear_evaluation():
    (obstacle,) = found(lars(150)).obstacles
    assert obstacle == (
        "pretrained for 150 epochs, the paper's network for 100 or 200 or 300 or 1000"
    )
    other = found(lars(100, max_epochs=100, batch_size=512, optimizer={"lr": 30}))
    assert other.obstacles == () and other.deviations == (
        "a learning rate of 30 instead of 0.1",
        "100 epochs instead of 90",
        "trained with a batch of 512 instead of 1024",
    )
    late = lars_record(1000)
    late["schedules"]["model"]["momentum"]["start"] = 0.99
    assert (
        "momentum=0.99, sce_images_lars has momentum=0.996" in found(lars(1000, late)).obstacles[0]
    )


def test_multi_crop():
    origin = pretrained("imagenet", multicrop_record(), "sce_images_multicrop")
    content = linear("imagenet", origin, training=LARS_LINEAR)
    assert beside(content) == [("tab:sota-multi-crop", 75.4)] and found(content).deviations == ()
    record = multicrop_record()
    record["pipeline"][1]["local_size"] = 96
    origin = pretrained("imagenet", record, "sce_images_multicrop")
    (obstacle,) = found(linear("imagenet", origin)).obstacles
    assert (
        "local_sizes=(96, 96, 96, 96), sce_images_multicrop has local_sizes=(192, 160" in obstacle
    )


def of_model(dataset="cifar10", **model):
    return pretrained(dataset, pretraining_record(dataset, model))


def of_record(dataset="cifar10", **changes):
    return pretrained(dataset, pretraining_record(dataset, **changes))


def of_momentum(value):
    record = pretraining_record()
    record["schedules"]["model"]["momentum"] = value
    return pretrained("cifar10", record)


STRONG, WEAK = {"name": "strong", "strength": 0.5}, {"name": "weak"}
STL10 = DATA["stl10"][0]
IN100 = DATA["imagenet100"][0]
RENAMED = [*WNIDS[:99], "n99999999"]
OLD = {
    name: value
    for name, value in pretraining_record().items()
    if name not in ("model_parts", "model_defaults", "schedules", "optimizer")
}


@pytest.mark.parametrize(
    ("dataset", "origin", "reason"),
    [
        ("cifar10", of_model(tau=0.1), "trained with tau=0.1, sce_images_tau_0.2_tau_m_0.1 has"),
        ("cifar10", of_model(tau_m=0.05), "trained with tau_m=0.05"),
        ("cifar10", of_model(lambda_=0.4), "trained with lambda_=0.4"),
        ("cifar10", of_model(lambda_=[0.5, 0.5, 0.0]), "lambda_=(0.5, 0.5, 0.0)"),
        ("cifar10", of_model(symmetric=True), "symmetric=True, target_views=(0, 1)"),
        ("cifar10", of_model(target_views=[0]), "trained with target_views=(0,)"),
        ("cifar10", of_model(predictor={"type": "MLP"}), "trained with predictor=True"),
        ("cifar10", of_model(queue_size=65536), "trained with queue_size=65536"),
        ("cifar10", of_model(type="MoCo"), "trained with type=MoCo"),
        ("cifar10", of_record(views=[WEAK, STRONG]), "trained with views=('weak', 'strong')"),
        ("cifar10", of_record(views=[STRONG, STRONG]), "views=('strong', 'strong')"),
        ("cifar10", of_record(views=[{**STRONG, "strength": 1.0}, WEAK]), "strong strength=1.0"),
        ("cifar10", of_record(views=[{**STRONG, "blur_prob": 0.0}, WEAK]), "strong blur_prob=0.0"),
        ("cifar10", of_record(views=[STRONG, WEAK, WEAK]), "target_views=(2,), views=("),
        ("cifar10", of_record(optimizer={"type": "LARS"}), "trained with optimizer=LARS"),
        ("cifar10", of_momentum({"name": "cosine", "start": 0.99, "end": 1.0}), "momentum=0.99"),
        ("cifar10", of_momentum(0.99), "trained with momentum=0.99"),
        ("cifar10", of_momentum({"name": "linear", "start": 0.9, "end": 1.0}), "'name': 'linear'"),
        ("cifar10", of_record(data=DATA["stl10"][0]), "100,000 images, split unlabeled; cifar10"),
        (
            "cifar10",
            of_record(data={**DATA["cifar10"][0], "num_classes": 100}),
            "trained on 50,000 images in 100 classes; cifar10 has 50,000 in 10 classes",
        ),
        ("cifar10", of_record(data={**DATA["cifar10"][0], "name": "mine"}), "cifar10 has 50,000"),
        (
            "stl10",
            of_record("stl10", data={**STL10, "samples": 105_000, "split": "train+unlabeled"}),
            "trained on 105,000 images, split train+unlabeled; stl10 has 100,000",
        ),
        ("stl10", of_record("stl10", data=DATA["stl10"][1]), "5,000 images in 10 classes; stl10"),
        (
            "imagenet100",
            of_record("imagenet100", data={**IN100, "classes": RENAMED}),
            "other classes than those of imagenet100",
        ),
        (
            "imagenet100",
            of_record("imagenet100", data={**IN100, "classes": None}),
            "the classes are not known, imagenet100 is a choice of them",
        ),
        ("imagenet100", of_record("imagenet100", data=DATA["imagenet"][0]), "1,281,167 images"),
        ("cifar10", of_record(max_epochs=400), "pretraining epochs: pretrained for 200 of 400"),
        ("cifar10", of_record(network=R50), "pretraining network: ResNet2d of 23,508,032"),
        ("cifar10", of_record(changed=["model_parts"]), "model_parts changed when the training"),
        ("cifar10", {**pretrained(), "epoch": 100}, "pretrained for 100 of 200 epochs"),
        ("cifar10", {**pretrained(), "benchmark": None}, "its recipe names no method"),
        ("cifar10", {"path": "theirs.pth", "epoch": 200}, "theirs.pth has no record"),
        ("cifar10", pretrained(record=OLD), "target_views=unknown, predictor=unknown"),
    ],
)
def test_wrong_or_unknown_pretrainings_stand_apart_with_the_reason(dataset, origin, reason):
    content = linear(dataset, origin)
    assert beside(content) == []
    obstacles = found(content).obstacles
    assert any(reason in text for text in obstacles), obstacles


def test_pretraining_for_other_epochs():
    origin = pretrained(record=pretraining_record(max_epochs=800), epochs=800)
    assert found(linear(origin=origin)).obstacles == (
        "pretrained for 800 epochs, the paper's network for 200",
    )


def test_equal_settings_in_other_words():
    """Coefficients of eq. 10 with mu = eta = 1 - lambda are SCE; (1,) is the last of two views."""
    for model in ({"lambda_": [0.5, 0.5, 0.5]}, {"target_views": [1]}):
        assert beside(linear(origin=of_model(**model))) == [("tab:temperature-small", 90.34)]
    constant = pretraining_record()
    constant["model"]["momentum"] = 0.9
    constant["schedules"] = {}
    assert found(linear(origin=pretrained(record=constant))).obstacles == ()


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        ("cifar10", {"test": {"samples": 50_000}}, "50,000 images, published 10,000"),
        ("cifar10", {"test": {"num_classes": 100}}, "tested on 100 classes, cifar10 has 10"),
        ("cifar10", {"test": {"name": "cifar100"}}, "tested on cifar100, its benchmark is cifar10"),
        ("imagenet100", {"test": {"classes": RENAMED}}, "test set: other classes than those of"),
        ("imagenet100", {"test": {"classes": None}}, "test set: the classes are not known"),
        ("stl10", {"training": {"data": STL10}}, "stl10 has 5,000 in 10 classes"),
        ("cifar10", {"training": {"network": {"frozen_stages": -1}}}, "frozen_stages=-1"),
        ("cifar10", {"failures": 200}, "200 of 10,200 images failed"),
        ("cifar10", {"benchmark_problems": None}, "does not state what is known of its training"),
    ],
)
def test_wrong_evaluations_stand_apart(dataset, options, reason):
    content = linear(dataset, **options)
    assert beside(content) == []
    assert any(reason in text for text in found(content).obstacles), found(content).obstacles


RESIZED = [{"type": "ResizeShortSide", "size": 224}, {"type": "CenterCropClips", "size": 224}]
SELECTED = {"metric": "top1", "data_root": "data/cifar10"}


@pytest.mark.parametrize(
    ("dataset", "options", "deviation"),
    [
        ("cifar10", {"views": 5}, "views not stated"),
        ("cifar10", {"views": 5, "clips": 1}, "1 x 5 views"),
        ("cifar10", {"training": {"max_epochs": 60}}, "60 epochs instead of 100"),
        ("cifar10", {"training": {"batch_size": 64}}, "a batch of 64 instead of 256"),
        (
            "cifar10",
            {"training": {"optimizer": {"lr": 0.1}}},
            "a learning rate of 0.1 instead of 30",
        ),
        ("cifar10", {"test": {"pipeline": RESIZED}}, "resized to 224, cropped to 224 instead of"),
        ("cifar10", {"test": {"pipeline": None}}, "the size of the test images is not stated"),
        (
            "imagenet100",
            {"test": {"pipeline": RESIZED}},
            "test images resized to 224, cropped to 224 instead of resized to 256, cropped to 224",
        ),
        ("imagenet100", {"test": {"pipeline": []}}, "test images not resized, not cropped"),
        ("cifar10", {"origin": of_record(batch_size=1024)}, "a batch of 1024 instead of 256"),
        ("imagenet100", {"failures": 2, "videos": 4998}, "2 images failed"),
    ],
)
def test_deviations(dataset, options, deviation):
    compared = found(linear(dataset, **options))
    assert compared.obstacles == ()
    assert any(deviation in text for text in compared.deviations), compared.deviations


def test_a_best_epoch_is_marked_as_chosen_on_the_test_set():
    content = linear(test={"data_root": "data/cifar10"})
    content["protocol"]["checkpoint"]["selected"] = SELECTED
    compared = found(content)
    (deviation,) = compared.deviations
    assert deviation.startswith("best epoch on the test") and compared.notes == ()


def test_the_note_is_on_linear_numbers_of_the_image_tables_only():
    content = linear()
    content["protocol"]["benchmark"]["pretraining"] = "mine"
    assert found(content).notes == ()
