"""Outcomes of single videos: what metrics keep, the file, and its intervals."""

import dataclasses

import numpy as np
import pytest
import torch

from sce_video.evaluation import (
    KNN,
    LinearProbe,
    MeanClassAccuracy,
    Retrieval,
    Rows,
    TopKAccuracy,
    compute_metrics,
)
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.evaluation.metrics.base import (
    format_metric_lines,
    load_outcomes,
    outcomes_of,
    outcomes_path,
    save_outcomes,
)

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


def test_clips_of_one_video_have_no_interval():
    rows = dataclasses.replace(rows_of(2), paths=["one.mp4"] * 21)
    metric = TopKAccuracy((1,))
    found = compute_metrics([metric], rows)
    intervals = outcomes_of([metric], rows).intervals()
    assert intervals == {"top1": None}
    assert "no interval: one video" in format_metric_lines(found, "title", intervals)


def test_a_metric_without_outcomes_and_one_with_too_few():
    metric = TopKAccuracy((1,))
    assert outcomes_of([metric], rows_of(0)) is None
    metric.outcomes = {"top1": torch.ones(3)}
    with pytest.raises(ValueError, match="outcomes of top1 have the shape .3,., there are 21"):
        outcomes_of([metric], rows_of(0))


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "x_outcomes.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"x_outcomes.npz is not a file of outcomes"):
        load_outcomes(path)
    np.savez(path, paths=["a"], labels=[0], names=["top1"], outcomes=[[np.nan]], by_class=[0])
    with pytest.raises(ValueError, match="must be finite"):
        load_outcomes(path)
