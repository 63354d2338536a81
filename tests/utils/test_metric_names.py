"""Metrics that say nothing for so few classes."""

from __future__ import annotations

import pytest

from sce_video.evaluation.metrics.base import format_metrics, telling
from sce_video.utils.metric_names import is_trivial


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("top5", 2, True),
        ("one_view_top5", 5, True),
        ("knn_top5", 6, False),
        ("top1", 2, False),
        ("top1", 1, False),
        ("top5", None, False),
        ("retrieval_r5", 2, False),
        ("top5_error", 2, False),
    ],
)
def test_top_k_of_k_classes_or_fewer(name, num_classes, expected):
    assert is_trivial(name, num_classes) is expected


def test_they_are_left_out_of_tables():
    metrics = {"top1": 0.5, "top5": 1.0, "one_view_top1": 0.5, "one_view_top5": 1.0}
    assert telling(metrics, 2) == {"top1": 0.5, "one_view_top1": 0.5}
    assert telling({"top5": 1.0}, 2) == {"top5": 1.0}, "something is shown"
    stated = {"checkpoint": {"path": "a"}, "videos": 2, "failures": 0, "views": 3}
    assert "top5" in format_metrics(metrics, stated)
    assert "top5" not in format_metrics(metrics, {**stated, "num_classes": 2})
    assert "top5" not in format_metrics(metrics, {**stated, "test": {"num_classes": 4}})
