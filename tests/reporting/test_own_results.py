"""Results on one's own videos: their names, random weights beside them, what is shown of them."""

from __future__ import annotations

import pytest
from helpers.results_files import results

from sce_video.reporting.report_content import (
    assign_results,
    describe_test_set,
    describe_weights,
    group_results,
)
from sce_video.reporting.result_files import Collection, parse_result
from sce_video.runs.report import render_html, render_markdown

SCE = {
    "path": "epoch_100.pth",
    "epoch": 100,
    "training": {
        "config": {"model": {"type": "SCE"}},
        "data": {"type": "VideoDataset", "samples": 480},
    },
}
RANDOM = {"path": None, "source": "random initialisation, seed 0"}
WALK = {"data_root": "/data/test", "classes": ["run", "walk"], "num_classes": 2}


def representation(name, checkpoint, metrics=None, width=16, **changes):
    """A result of tools/test.py with the folder recipe, which has no benchmark."""
    protocol = {
        "kind": "representation",
        "benchmark": None,
        "checkpoint": checkpoint,
        "network": {"depth": 18, "base_channels": width},
        "videos": 36,
        "test": WALK,
        "bank": {"data_root": "/data/train"},
        "bank_videos": 50,
        **changes,
    }
    metrics = metrics or {"knn_top1": 0.5, "linear_top1": 0.6, "effective_rank": 9.0}
    return parse_result(name, {"metrics": metrics, "protocol": protocol})


def finetuned(name, pretrained, top1):
    """A result of the recipe of UCF101 on own videos of two classes."""
    content = results(
        {"top1": top1, "top5": 1.0, "one_view_top1": top1}, "finetune", "ucf101", split=1,
        benchmark={"pretrained_on": "unknown"},
        changes={"videos": 36, "pretrained": pretrained, "test": WALK, "num_classes": 2},
    )  # fmt: skip
    content["protocol"] |= {"network": {"depth": 18}, "kind": "recognition"}
    return parse_result(name, content)


def grouped(*found):
    return group_results([(result, ("why",)) for result in found])


def test_own_videos_are_named_by_their_classes_not_by_the_recipe():
    result = finetuned("a.json", SCE, 0.8)
    assert describe_test_set(result) == "run, walk"
    text = render_markdown(assign_results(Collection([result])))
    own = text.partition("## Own results")[2].partition("## Not run")[0]
    assert "### run, walk" in own and "36 videos, 2 classes, /data/test" in own
    assert "top-5" not in own, "top-5 of two classes"
    page = render_html(assign_results(Collection([result])))
    assert "<h3>run, walk</h3>" in page and "top-5" not in page.partition("Own results")[2]
    published = results({"top1": 0.8}, "finetune", "ucf101", split=1)
    assert describe_test_set(parse_result("b.json", published)) == "UCF101, finetuned, split 1"


def test_names_of_test_sets():
    for test, words in (
        ({"classes": [f"c{i}" for i in range(10)]}, "c0, c1, c2, c3, c4, c5, c6, c7 and 2 more"),
        ({"ann_file": "mine/test.txt", "num_classes": 3}, "3 classes of mine/test.txt"),
        (None, "own videos"),
    ):
        assert describe_test_set(representation("a.json", SCE, test=test)).startswith(words)


def test_random_weights_stand_beside_what_was_pretrained():
    random = representation("r.json", RANDOM, {"knn_top1": 0.25, "linear_top1": 0.5})
    (group,) = grouped(representation("s.json", SCE), random)
    first, second = group.results
    assert (first.random, first.weights) == (True, "random weights")
    assert second.weights == "SCE, 100 epochs on 480 videos"
    assert second.gain("knn_top1") == pytest.approx(25) and first.gain("knn_top1") is None
    assert second.gain("effective_rank") is None
    assert group.main_metrics == ("linear_top1", "knn_top1"), "the most telling first"
    assert group.metrics[-1] == "effective_rank"
    page = render_html(assign_results(Collection([second.result, random])))
    assert '<span class="gain">+25.0</span>' in page and 'class="line random"' in page


@pytest.mark.parametrize("changes", [{"width": 64}, {"bank": {"data_root": "/other"}}])
def test_random_weights_of_another_network_or_test_set_are_no_baseline(changes):
    random = representation("r.json", RANDOM, **changes)
    groups = grouped(representation("s.json", SCE), random)
    assert all(own.baseline is None for group in groups for own in group.results)


def test_training_from_random_weights_is_the_baseline_of_finetuning():
    (group,) = grouped(finetuned("a.json", SCE, 0.8), finetuned("b.json", "random", 0.6))
    scratch, tuned = group.results
    assert scratch.weights == "trained from random weights"
    assert tuned.weights == "SCE, 100 epochs on 480 videos; trained for 200 epochs"
    assert tuned.gain("top1") == pytest.approx(20)
    assert not group.published and tuned.reasons == ("why",)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ({"path": "a.pth"}, "unknown pretraining"),
        ({"path": "a.pth", "training": 5}, "unknown pretraining"),
        ({"path": None, "source": "trained in this run, 5 iterations"}, "trained in this run"),
        (None, "unknown weights"),
        ({**SCE, "selected": {"data_root": "/data/test"}}, "(best epoch on the test set"),
        ({**SCE, "other_weights": True}, "not the weights that the training wrote"),
    ],
)
def test_what_was_evaluated(checkpoint, words):
    assert words in describe_weights(representation("a.json", checkpoint))
