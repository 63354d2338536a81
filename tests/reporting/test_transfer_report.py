"""Results of tools/transfer.py beside tab:many-shot and tab:low-shot-voc."""

from __future__ import annotations

from statistics import fmean

import pytest
from helpers.results_files import MANY_SHOT, transferred

from sce_video.evaluation.transfer import on_dataset
from sce_video.reporting.comparability import compare
from sce_video.reporting.paper_cells import assign_results
from sce_video.reporting.result_files import Collection, parse_result


def report_of(*contents):
    results = [parse_result(f"r{i}/results.json", c) for i, c in enumerate(contents)]
    return assign_results(Collection(results))


def measured(report):
    """(data set, metric) -> paper's number and measured values, where there are any."""
    return {
        (c.papers[0].dataset, c.papers[0].metric): (
            c.papers[0].value,
            [round(m.values[0], 6) for m in c.measurements],
        )
        for c in report.images
        if c.measurements
    }


def many_shot(dataset, value=0.8, **changes):
    metrics = {f"many_shot_{MANY_SHOT[dataset][2]}": value}
    return transferred("many_shot", dataset, metrics, changes)


def test_the_mean_is_that_of_all_eleven_sets_of_one_checkpoint():
    values = {name: 0.5 + 0.01 * i for i, name in enumerate(MANY_SHOT)}
    contents = [many_shot(name, value) for name, value in values.items()]
    found = measured(report_of(*contents))
    assert len(found) == 12 and found["dtd", "many_shot_top1"] == (77.1, [57.0])
    mean = round(100 * fmean(values.values()), 6)
    assert found["many_shot_mean", "many_shot_mean"] == (80.4, [mean])
    assert len(measured(report_of(*contents[1:]))) == 10, "ten sets have no mean"
    contents[0] = many_shot("food101", 0.5)
    contents[0]["protocol"]["checkpoint"]["sha256"] = "ef" * 32
    assert len(measured(report_of(*contents))) == 11, "of two checkpoints"


def test_low_shot_fills_a_cell_for_each_number_of_images():
    metrics = {"low_shot_map_16": 0.79, "low_shot_map_full": 0.88, "low_shot_map_1": 0.5}
    found = measured(report_of(transferred("low_shot_svm", "voc2007", metrics)))
    assert found == {
        ("voc2007", "low_shot_map_16"): (79.5, [79.0]),
        ("voc2007", "low_shot_map_full"): (88.2, [88.0]),
    }


OTHER = {"protocol": {"checkpoint": {"sha256": "ef" * 32}}}
SAME = {"protocol": {"checkpoint": {"sha256": "ab" * 32}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"images": {"train": 1_880, "test": 1_880}}, "1,880 training images, published 3,760"),
        ({"images": None}, "the number of training images is not stated"),
        ({"files": {"train": OTHER, "test": SAME}}, "by different checkpoints"),
        ({"checkpoint": {"path": None, "source": "random initialisation"}}, "weights: random"),
    ],
)
def test_other_results_stand_apart(changes, reason):
    report = report_of(many_shot("dtd", **changes))
    assert measured(report) == {}
    (other,) = report.others
    assert any(reason in text for text in other.reasons), other.reasons


def test_deviations():
    few = many_shot("dtd", validation={"1": 0.5})
    drawn = transferred("low_shot_svm", "voc2007", {"low_shot_map_16": 0.5}, {"draws": 2})
    found = [compare(parse_result("x.json", content)).deviations for content in (few, drawn)]
    assert found[0] == ("C chosen among 1 values, the paper's chosen among 45",)
    assert found[1] == ("2 draws instead of 5",)


def test_the_set_completes_the_benchmark_of_the_features():
    content = {
        "metrics": {},
        "protocol": {"protocol_name": "many_shot", "benchmark": {"size": 224}},
    }
    named = on_dataset(content, "dtd")["protocol"]
    assert named["benchmark"] == {"size": 224, "protocol": "many_shot", "dataset": "dtd"}
    assert on_dataset(content, None)["protocol"]["benchmark"] is None, "a set of one's own"
    nothing = {"metrics": {}, "protocol": {"protocol_name": "many_shot", "benchmark": None}}
    assert on_dataset(nothing, "dtd")["protocol"]["benchmark"] is None
