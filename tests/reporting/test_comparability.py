"""Obstacles and deviations: which results may be compared with the paper's numbers."""

from __future__ import annotations

import json

import pytest
from helpers.results_files import K400, results, write

from sce_video.reporting.comparability import (
    compare,
    percentage_problem,
    setting_of_result,
    views_of,
)
from sce_video.reporting.result_files import Result, collect_results, parse_result


def result_of(content):
    """The result of one file's content."""
    return parse_result("x/results.json", content)


def compared(protocol="linear", dataset=K400, metrics=None, **options):
    return compare(result_of(results(metrics or {"top1": 0.5}, protocol, dataset, **options)))


def test_a_faithful_result_has_neither_obstacles_nor_deviations():
    for options in (
        {},
        {"protocol": "finetune", "dataset": "ucf101", "split": 2},
        {"protocol": "retrieval", "dataset": "hmdb51", "split": 1},
        {"protocol": "finetune", "dataset": "ssv2"},
        {"dataset": "kinetics200", "source": "kinetics200"},
        {"protocol": "supervised", "dataset": "kinetics200", "source": None},
        {"protocol": "detection", "dataset": "ava", "network": "r3d50"},
        {"changes": {"crop_size": 256, "epochs": 60, "pretrained": "a.pth"}},
        {"size": 112, "changes": {"test_size": 128}},
        {"changes": {"videos": 19801}},
    ):
        assert compared(**options) == compare(result_of(results({"a": 1.0}, "linear", K400))), (
            options
        )
        assert compared(**options).obstacles == compared(**options).deviations == ()


UCF = {"protocol": "finetune", "dataset": "ucf101", "split": 1}
RETRIEVAL = {"protocol": "retrieval", "dataset": "ucf101", "split": 1}
SUPERVISED = {"protocol": "supervised", "dataset": "kinetics200", "source": None}
AVA = {"protocol": "detection", "dataset": "ava", "network": "r3d50"}
SCHEDULE = {"path": "a.pth", "training": {"max_epochs": 300}}
CLIPS = {"path": "a.pth", "training": {"pipeline": [{"type": "RandomClips", "num_frames": 4}]}}
CROPS = {"path": "a.pth", "training": {"pipeline": [{"type": "RandomCropClips", "size": 112}]}}
BATCH = {"path": "a.pth", "training": {"batch_size": 64}}


def chosen(on_test, epoch):
    """Changes for a checkpoint that is the best on the test set or on a validation list."""
    selected = {"metric": "top1", "ann_sha256": "abc"}
    checkpoint = {"path": f"best_top1_epoch_{epoch}.pth", "epoch": epoch, "selected": selected}
    return {"checkpoint": checkpoint, "epochs": epoch, "chosen_on_test": on_test}


def problem(**reasons):
    return {"changes": {"benchmark_problems": reasons}}


RECORDLESS = "a.pth has no record of its training"


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        ({"changes": {"videos": 24}}, "24 videos, published 19,800 to 20,000"),
        ({"changes": {"videos": 20001}}, "20,001 videos"),
        ({"changes": {"videos": None}}, "the number of videos is not stated"),
        ({"changes": {"videos": True}}, "the number of videos is not stated"),
        ({**UCF, "changes": {"videos": 3745}}, "3,745 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3784}}, "3,784 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3734}}, "3,734 videos, published 3,783"),  # split 2's
        ({**UCF, "changes": {"videos": 3743, "failures": 40}}, "40 of 3,783 videos failed"),
        ({**UCF, "changes": {"dataset": "hmdb51"}}, "measured on hmdb51, its benchmark is ucf101"),
        ({**RETRIEVAL, "changes": {"bank_videos": None}}, "gallery videos is not stated"),
        ({**RETRIEVAL, "changes": {"bank_videos": 3783}}, "3,783 gallery videos"),
        (
            {**RETRIEVAL, "changes": {"checkpoint": {"path": None, "source": "random init"}}},
            "weights: random init",
        ),
        (
            {
                **RETRIEVAL,
                "changes": {
                    name: {"protocol": {"checkpoint": {"sha256": name}}}
                    for name in ("query", "bank")
                },
            },
            "different checkpoints",
        ),
        ({**UCF, "changes": {"pretrained": "random"}}, "random weights"),
        ({**RETRIEVAL, "changes": {"group_pattern": "g(.*)"}}, "own group"),
        ({"changes": {"fusion": [{}, {}]}}, "fuses the scores of 2 models"),
        ({"changes": {"benchmark": None}}, "no benchmark"),
        ({"changes": {"benchmark_problems": None}}, "does not state what is known of its training"),
        (problem(network="wide"), "network: wide"),
        (
            problem(pretrained_on=RECORDLESS, pretraining=RECORDLESS),
            f"pretraining data, pretraining method: {RECORDLESS}",
        ),
        ({"benchmark": {"pretraining_epochs": 100}}, "pretrained for 100 epochs, the paper's"),
        (problem(pretraining_schedule="150 of 200"), "pretraining epochs: 150 of 200"),
        ({**RETRIEVAL, "benchmark": {"pretraining_epochs": 100}}, "pretrained for 100 epochs"),
        ({**UCF, "changes": {"epochs": None}}, "the epochs of the training are not stated"),
        ({**AVA, "changes": {"test": {"films": 63}}}, "63 films, published 64"),
        ({**AVA, "changes": {"test": None}}, "the number of films is not stated"),
        ({"changes": {"benchmark": {"protocol": "linear"}}}, "does not state dataset, network"),
    ],
)
def test_obstacles(options, obstacle):
    found = compared(**options)
    assert len(found.obstacles) == 1 and obstacle in found.obstacles[0]


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({"changes": {"clips": 1, "crops": 1}}, "1 x 1 views"),
        ({"changes": {"clips": 3, "crops": 10}}, "3 x 10 views"),
        ({"protocol": "finetune", "dataset": "ssv2", "changes": {"clips": 10}}, "10 x 1 views"),
        ({"changes": {"clips": None}}, "views not stated"),
        ({"changes": {"crop_size": 224}}, "test crop 224"),
        ({"size": 112, "changes": {"crop_size": 256}}, "test crop 256"),
        ({"changes": {"epochs": 5}}, "5 epochs instead of 60"),
        ({**UCF, "changes": {"epochs": 60}}, "60 epochs instead of 200"),
        ({**SUPERVISED, "changes": {"epochs": 100}}, "100 epochs instead of 200"),
        ({**AVA, "changes": {"epochs": 20}}, "20 epochs instead of 32"),
        ({**UCF, "changes": {"checkpoint": SCHEDULE}}, "epoch 200 of a schedule of 300"),
        ({**UCF, "changes": {"checkpoint": CLIPS}}, "trained on 4 frames"),
        ({**UCF, "changes": {"checkpoint": CROPS}}, "trained on 112 pixels"),
        ({**UCF, "changes": {"pretrained": BATCH}}, "a batch of 64 instead of 512"),
        ({"changes": {"checkpoint": BATCH}}, "trained with a batch of 64 instead of 512"),
        ({"changes": {"test": {"pipeline": [{"type": "x", "num_frames": 4}]}}}, "on 4 frames"),
        (
            {**UCF, "changes": chosen(True, 150)},
            "best epoch on the test set; the result",
        ),
        ({**UCF, "changes": chosen(False, 150)}, "best epoch on a validation list"),
        ({"changes": {"epochs": 300}}, "300 epochs instead of 60"),
        ({**UCF, "changes": {"videos": 3750}}, "3,750 videos, published 3,783"),
        ({**UCF, "changes": {"videos": 3771, "failures": 12}}, "12 videos failed"),
        ({**UCF, "changes": {"videos": 3782, "failures": [["a", "b"]]}}, "1 video failed"),
        ({**UCF, "changes": {"split": None}}, "split not stated"),
        ({"changes": {"videos": 18500}}, "18,500 videos, published 19,800 to 20,000"),
        ({"dataset": "kinetics200", "changes": {"videos": 9950}}, "9,950 videos, published 4,900"),
        ({**RETRIEVAL, "changes": {"bank_videos": 9500}}, "9,500 gallery videos, published 9,537"),
        (
            {**RETRIEVAL, "changes": {"bank_videos": 9535, "bank_failures": 2}},
            "2 gallery videos failed",
        ),
    ],
)
def test_deviations(options, deviation):
    if options.get("changes", {}).get("split", 0) is None:  # the count is split 1's
        options = {**options, "changes": {**options["changes"], "videos": 3783}}
    found = compared(**options)
    assert found.obstacles == () and len(found.deviations) == 1 and deviation in found.deviations[0]


def test_the_supervised_row_is_a_run_that_was_not_pretrained():
    options = {"protocol": "supervised", "dataset": "kinetics200", "source": None}
    assert compared(**options, changes={"pretrained": "random"}).obstacles == ()


def test_settings():
    content = results(
        {"top1": 0.5}, "finetune", "ucf101", benchmark={"pretraining": "sce_baseline"}
    )
    assert setting_of_result(result_of(content))[-1] == "sce_baseline"
    content = results({"top1": 0.5}, "supervised", "kinetics200", source=None)
    assert setting_of_result(result_of(content))[-2:] == (None, None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (0.5, None),
        (0, None),
        (1, None),
        (59.8, "59.8"),
        (-0.1, "not a fraction"),
        (float("nan"), "nan"),
    ],
)
def test_percentages(value, problem):
    found = percentage_problem(Result("x", {"top1": value}, {}), ["top1"])
    assert found is None if problem is None else problem in found
    assert percentage_problem(Result("x", {"top5": 0.5}, {}), ["top1"]) == "has no top1"


def test_views_may_be_stated_with_the_data_set():
    assert views_of({"test": {"clips": 10, "crops": 3}}) == (10, 3)
    assert views_of({"views": 30}) is None
    # features: the crops are known only once a video was decoded
    assert views_of({"views": 30, "clips": 10, "crops": 0, "test": {"clips": 10}}) == (10, 3)
    assert views_of({"clips": 10, "crops": 0}) is None


def test_nan_in_a_file_is_read_and_not_compared(tmp_path):
    text = json.dumps(results({"top1": float("nan")}, "linear", K400))
    (found,) = collect_results([write(tmp_path / "results.json", text)]).results
    assert "nan" in percentage_problem(found, ["top1"])
