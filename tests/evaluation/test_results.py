"""The file of results: its entries, and the outcomes next to it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from mmengine.evaluator import BaseMetric

from sce_video.evaluation import RowMetric, Rows
from sce_video.evaluation.metrics.base import Outcomes, load_outcomes, outcomes_path
from sce_video.evaluation.results import Results, compute_results


class Hits(RowMetric):
    """A metric with everything that a result can have."""

    key = "hits"

    def compute(self, rows, gallery=None):
        hits = (rows.labels == 1).float()
        self.outcomes = {"hits": hits}
        self.details = {"confusion": [[1, 0], [0, 2]]}
        self.provenance = {"chosen": 7}
        self.intervals = {"other": [0.1, 0.2]}
        return {"hits": float(hits.mean()), "other": 0.15}


class Plain(BaseMetric):
    """A metric of mmengine, which has a value only."""

    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        return {"count": float(len(results))}


def rows_of(labels, failures=()):
    count = len(labels)
    return Rows(
        values=torch.eye(count, 2, dtype=torch.float64),
        labels=torch.tensor(labels),
        indices=torch.arange(count),
        paths=[f"{i}.mp4" for i in range(count)],
        failures=list(failures),
    )


def test_what_metrics_find_is_one_object_and_one_file(tmp_path):
    rows = rows_of([1, 0, 1, 1], [("bad.mp4", "cannot be opened")])
    gallery = rows_of([0, 1], [("other.mp4", "is empty")])
    protocol = {"kind": "representation"}
    found = compute_results([Hits(), Plain()], rows, gallery, protocol)
    assert found.metrics == {"hits": 0.75, "other": 0.15, "count": 4.0}
    assert found.protocol == {"kind": "representation", "chosen": 7}
    assert protocol == {"kind": "representation"}  # the caller's stays as it is
    assert found.intervals["other"] == [0.1, 0.2]
    low, high = found.intervals["hits"]
    assert low <= 0.75 <= high
    file = tmp_path / "results.json"
    found.write(file)
    content = json.loads(file.read_text())
    names = ["metrics", "intervals", "intervals_over", "confusion", "protocol", "failures"]
    assert list(content) == names and content["intervals_over"] == "4 videos"
    assert content["metrics"] == found.metrics and content["confusion"] == [[1, 0], [0, 2]]
    assert content["failures"] == [["bad.mp4", "cannot be opened"], ["other.mp4", "is empty"]]
    outcomes = load_outcomes(outcomes_path(file))
    assert outcomes.values[:, 0].tolist() == [1.0, 0.0, 1.0, 1.0]


def test_intervals_draw_whole_groups(tmp_path):
    """All videos of a group have the same outcome, so few groups say less than many videos."""
    random = np.random.default_rng(3)
    groups = np.repeat([7, 2, 5, 9, 0, 4, 3, 8, 11, 6], [3, 9, 4, 6, 5, 8, 2, 7, 6, 10])
    shuffled = random.permutation(len(groups))
    groups = groups[shuffled]
    rows = replace(rows_of((groups % 2).tolist()), groups=torch.from_numpy(groups))
    found = compute_results([Hits()], rows, None, {})
    names, means = np.unique(groups), []
    draws = np.random.default_rng(0).integers(len(names), size=(2000, len(names)))
    for draw in draws:
        outcomes = [value % 2 for unit in draw for value in groups[groups == names[unit]]]
        means.append(sum(outcomes) / len(outcomes))
    assert found.intervals["hits"] == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist())
    file = tmp_path / "results.json"
    found.write(file)
    assert json.loads(file.read_text())["intervals_over"] == "10 groups"
    assert found.drawn == ["  95 % intervals over 10 groups"]
    stored = load_outcomes(outcomes_path(file))
    assert stored.groups.tolist() == groups.tolist() and stored.drawn == "10 groups"
    assert stored.intervals()["hits"] == found.intervals["hits"]
    low, high = compute_results([Hits()], replace(rows, groups=None), None, {}).intervals["hits"]
    assert 2 * (high - low) < np.ptp(found.intervals["hits"])
    one = compute_results(
        [Hits()], replace(rows, groups=torch.zeros(len(groups), dtype=torch.int64)), None, {}
    )
    assert one.intervals["hits"] is None and one.drawn == ["  95 % intervals over 1 group"]


def test_results_without_outcomes_are_one_file(tmp_path):
    Results({"top1": 0.5}, {}).write(tmp_path / "results.json")
    content = json.loads((tmp_path / "results.json").read_text())
    assert content == {"metrics": {"top1": 0.5}, "protocol": {}, "failures": []}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_segments_of_a_video_are_drawn_together():
    """An interval over 40 segments of 4 recordings is one over 4 recordings."""
    paths = [f"{number}.mp4@{start}-{start + 1}" for number in range(4) for start in range(10)]
    values = np.arange(40)[:, None] // 10 % 2
    found = Outcomes(paths, np.zeros(40, int), ["top1"], np.float32(values), np.array([False]))
    assert found.units.tolist() == [number // 10 for number in range(40)]
    assert found.drawn == "4 videos"
    low, high = found.intervals()["top1"]
    assert low <= 0.01 and high >= 0.99
