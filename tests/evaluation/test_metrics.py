"""Metrics: against a gallery, leaving groups out, in the loops of others, and invalid input."""

import dataclasses

import numpy as np
import pytest
import torch
from mmaction.evaluation import AccMetric
from mmengine.evaluator import Evaluator

from sce_video.evaluation import (
    KNN,
    FeatureStatistics,
    FewShot,
    LiDAR,
    LinearProbe,
    MeanClassAccuracy,
    RankMe,
    Retrieval,
    Rows,
    TopKAccuracy,
    compute_metrics,
    fit_linear_probe,
    group_ids,
    knn_scores,
    top_k_accuracy,
)
from sce_video.evaluation.functional import linear_probe
from sce_video.evaluation.functional.few_shot import few_shot_hits
from sce_video.evaluation.functional.neighbours import rank
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.evaluation.metrics import feature_metrics
from sce_video.evaluation.metrics.base import (
    format_metric_lines,
    load_outcomes,
    outcomes_of,
    outcomes_path,
    save_outcomes,
)
from sce_video.models.losses import effective_rank

CLASSES = 6


def features(count, seed, groups=3, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, 5, generator=generator)
    paths = [f"class{i % CLASSES}/person{i // CLASSES % groups}_{i}.mp4" for i in range(count)]
    return Rows(centres[labels] + spread * noise, labels, torch.arange(count), paths)


@pytest.mark.parametrize("metric", [FeatureStatistics(), RankMe(), LiDAR()])
def test_matrices_are_decomposed_on_the_device_of_the_metric(metric, monkeypatch):
    rows, given = features(24, seed=0), []
    rows = dataclasses.replace(rows, clips=dataclasses.replace(rows, groups=torch.arange(24) // 2))
    metric.device = torch.device("cuda:1")
    monkeypatch.setattr(feature_metrics, "float64_device", lambda d: given.append(d) or "cpu")
    assert all(np.isfinite(value) for value in metric.compute(rows).values())
    assert given == [torch.device("cuda:1")]


def test_a_probe_is_fitted_on_the_device_of_the_metric(monkeypatch):
    metric, given = LinearProbe(l2_grid=(0.1,)), []
    metric.device = torch.device("cuda:1")
    monkeypatch.setattr(linear_probe, "float64_device", lambda d: given.append(d) or "cpu")
    metric.compute(features(24, seed=0), features(24, seed=1))
    assert given == [torch.device("cuda:1")]


def all_metrics():
    return [KNN(), LinearProbe(), Retrieval()]


def test_against_a_gallery_metrics_equal_their_functions():
    queries, gallery = features(36, 0), features(60, 1)
    metrics = compute_metrics(
        [KNN(k=7), LinearProbe(), Retrieval(), FeatureStatistics()], queries, gallery
    )
    q, b = queries.features, gallery.features
    knn = top_k_accuracy(knn_scores(q, b, gallery.labels, k=7), queries.labels)
    linear = top_k_accuracy(fit_linear_probe(b, gallery.labels).scores(q), queries.labels)
    expected = {"knn_top1": knn[1], "knn_top5": knn[5]}
    expected |= {"linear_top1": linear[1], "linear_top5": linear[5]}
    for name, centred in (("retrieval", True), ("retrieval_plain", False)):
        hits = rank(q, b, queries.labels, gallery.labels, centred=centred).hits
        expected |= {f"{name}_r{k}": hits[:, :k].any(1).double().mean().item() for k in (1, 5, 10)}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["linear_mean_class"] == pytest.approx(linear[1])  # classes of equal size
    assert metrics["effective_rank"] == pytest.approx(float(effective_rank(q)))
    assert set(metrics) == {*expected, "linear_mean_class", "feature_std", "effective_rank"}
    assert all(0 <= metrics[name] <= 1 for name in expected)
    assert 1 / CLASSES < metrics["knn_top1"] < 1


def test_leaving_groups_out_equals_the_pooled_mean_over_groups():
    mixed = torch.randperm(54, generator=torch.Generator().manual_seed(3))
    data = features(54, 2).subset(mixed)  # groups and classes in no order
    groups, names = group_ids(data.paths, r"person(\d+)")
    assert names == ["0", "1", "2"]
    pooled = compute_metrics(all_metrics(), dataclasses.replace(data, groups=groups))

    def rest(group):  # the probe chooses its weight decay on whole groups of it
        training = data.subset(groups != group)
        return dataclasses.replace(training, groups=groups[groups != group])

    parts = [compute_metrics(all_metrics(), data.subset(groups == g), rest(g)) for g in range(3)]
    for name in ("knn_top1", "linear_top1", "retrieval_r1", "retrieval_plain_r5"):
        assert pooled[name] == pytest.approx(sum(part[name] for part in parts) / 3), name


def test_group_patterns_are_checked():
    assert group_ids(["b1", "a2", "b1"], r"([ab])\d")[0].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="must contain one group, but contains 0"):
        group_ids(["a"], "a")
    with pytest.raises(ValueError, match="1 of 2 paths, the first is 'x'"):
        group_ids(["a1", "x"], r"a(\d)")
    with pytest.raises(ValueError, match="only the group"):
        group_ids(["a1", "a1"], r"a(\d)")


def test_invalid_rows_raise():
    queries, gallery = features(12, 0), features(12, 1)
    for metric in all_metrics():
        with pytest.raises(ValueError, match="either a gallery or groups"):
            compute_metrics([metric], queries)
    with pytest.raises(ValueError, match=r"classes \[5\].*not in the gallery"):
        compute_metrics([KNN(), Retrieval()], queries, gallery.subset(gallery.labels < 5))
    unlabelled = Rows(gallery.features, gallery.labels - 1, gallery.indices, gallery.paths)
    message = r"the gallery: evaluation needs labels, but 2 of 12 .*class0/person0_0\.mp4"
    with pytest.raises(ValueError, match=message):
        compute_metrics([KNN(), Retrieval()], queries, unlabelled)
    other = Rows(torch.randn(12, 9), gallery.labels, gallery.indices, gallery.paths)
    with pytest.raises(ValueError, match="features have different sizes: 5 in the queries, 9"):
        compute_metrics([KNN(), Retrieval()], queries, other)


# -- metrics of mmaction2 in our loop, ours in other loops ---------------------------------------


def scores(count=40, classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, classes, generator=generator).softmax(dim=1)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return Rows(values, labels, torch.arange(count), [f"{i}.mp4" for i in range(count)])


def test_accuracy_equals_that_of_mmaction2():
    rows = scores()
    numbers = compute_metrics([TopKAccuracy(), MeanClassAccuracy(), AccMetric()], rows)
    assert numbers["acc/top1"] == pytest.approx(numbers["top1"])
    assert numbers["acc/top5"] == pytest.approx(numbers["top5"])
    assert numbers["acc/mean1"] == pytest.approx(numbers["mean_class_accuracy"])
    assert 0 < numbers["top1"] < numbers["top5"] < 1


def test_row_metrics_work_in_a_plain_mmengine_evaluator():
    """As in a test loop of mmaction2: batches of data samples, then evaluate(size)."""
    rows = scores()
    evaluator = Evaluator([TopKAccuracy(ks=(1, 3)), AccMetric()])
    for start in range(0, len(rows), 16):
        part = slice(start, start + 16)
        evaluator.process(
            [
                {"pred_scores": {"item": value}, "gt_labels": {"item": label.reshape(1)}}
                for value, label in zip(rows.values[part], rows.labels[part], strict=True)
            ]
        )
    numbers = evaluator.evaluate(len(rows))
    ranked = np.argsort(-rows.values.numpy(), axis=1)
    for k in (1, 3):
        hits = (ranked[:, :k] == rows.labels.numpy()[:, None]).any(axis=1)
        assert numbers[f"top{k}"] == pytest.approx(hits.mean())
    assert numbers["acc/top1"] == pytest.approx(numbers["top1"])
    later = TopKAccuracy()  # the keys of mmaction2 1.2
    later.process({}, [{"pred_score": torch.eye(3)[1], "gt_label": torch.tensor([1])}])
    assert later.evaluate(1) == {"top1": 1.0, "top5": 1.0}
    with pytest.raises(ValueError, match="MultiViewTestLoop"):
        KNN().compute_metrics([(torch.ones(3), 0)])
    with pytest.raises(ValueError, match=r"one of pred_score, .* got \['pred_label'\]"):
        TopKAccuracy().process({}, [{"pred_label": torch.tensor([1])}])


def test_few_shot_draws_within_each_gallery_and_reports_its_intervals():
    rows = features(90, 0)
    metric = FewShot(shots=(1, 4), draws=3, seed=2)
    groups, _ = group_ids(rows.paths, r"person(\d+)")
    numbers = compute_metrics([metric], dataclasses.replace(rows, groups=groups))
    hits = []
    for group in range(3):
        inside = groups == group
        queries, training = rows.subset(inside), rows.subset(~inside)
        given = (queries.values, queries.labels, training.values, training.labels)
        hits.append(few_shot_hits(*given, **metric.settings()))
    accuracy = torch.cat(hits).double().mean(dim=0)  # (draws, shots, classifiers)
    table = metric.details["few_shot"]
    assert len(table) == len(numbers) == 4
    for entry in table:
        kind = ["linear", "class_mean"].index(entry["classifier"])
        values = accuracy[:, [1, 4].index(entry["shots"]), kind]
        assert entry["draws"] == pytest.approx(values.tolist())
        assert numbers[f"few_shot_{entry['classifier']}_{entry['shots']}"] == entry["mean"]
        assert entry["interval"][0] <= float(values.mean()) <= entry["interval"][1]


def test_a_probe_chooses_its_decay_on_whole_folds_if_only_they_are_known():
    torch.manual_seed(3)
    labels, folds = torch.arange(48) % 3, torch.arange(48) // 12
    # Features of each class within a fold help only a split that does not keep folds together.
    within = 3 * torch.eye(12)[3 * folds + labels]
    values = torch.cat([torch.eye(3)[labels] + torch.randn(48, 3), within], dim=1)
    rows = Rows(values, labels, torch.arange(48), [f"{i}.mp4" for i in range(48)])
    probe = LinearProbe(l2_grid=(1e-6, 1e-3, 1.0))
    grouped = probe.compute(dataclasses.replace(rows, groups=folds))
    assert probe.compute(dataclasses.replace(rows, folds=folds)) == grouped
    assert probe.compute(dataclasses.replace(rows, folds=folds, groups=torch.arange(48))) != grouped


LABELS = torch.tensor([0] * 12 + [1] * 6 + [2] * 3)


def rows_of(seed, central=False):
    random = torch.Generator().manual_seed(seed)
    values = torch.eye(3)[LABELS] + torch.randn(21, 3, generator=random)
    paths = [f"{i}.mp4" for i in range(21)]
    other = torch.randn(21, 3, generator=random) if central else None
    return Rows(values, LABELS, torch.arange(21), paths, central=other)


def mean_of(outcomes, name):
    column = outcomes.values[:, outcomes.names.index(name)]
    if not outcomes.by_class[outcomes.names.index(name)]:
        return column.mean()
    return np.mean([column[outcomes.labels == c].mean() for c in range(3)])


@pytest.mark.parametrize(
    ("metrics", "rows", "gallery"),
    [
        ([KNN(k=3), LinearProbe(l2_grid=(0.1,)), Retrieval()], rows_of(0), rows_of(1)),
        ([TopKAccuracy((1, 2)), MeanClassAccuracy()], rows_of(2, central=True), None),
    ],
)
def test_metrics_are_the_means_of_their_outcomes(metrics, rows, gallery, tmp_path):
    found = compute_metrics(metrics, rows, gallery)
    outcomes = outcomes_of(metrics, rows)
    assert set(outcomes.names) == set(found)
    for name, value in found.items():
        assert mean_of(outcomes, name) == pytest.approx(value)
    path = outcomes_path(tmp_path / "results.json")
    assert path.endswith("results_outcomes.npz")
    save_outcomes(path, outcomes)
    stored = load_outcomes(path)
    assert (stored.paths, stored.names) == (outcomes.paths, outcomes.names)
    assert (stored.values == outcomes.values).all() and (stored.by_class == outcomes.by_class).all()
    intervals = stored.intervals()
    assert list(intervals) == outcomes.names
    for slot, name in enumerate(stored.names):
        classes = stored.labels if stored.by_class[slot] else None
        # drawn in the order of the paths
        ends = bootstrap_intervals(stored.values[:, [slot]], np.array(stored.paths), classes)[0]
        assert intervals[name][0] <= found[name] <= intervals[name][1]
        assert intervals[name] == pytest.approx(ends.tolist())
    first = outcomes.names[0]
    low, high = intervals[first]
    shown = f"[{100 * low:.2f}, {100 * high:.2f}]"
    assert shown in format_metric_lines(found, "title", intervals)
