"""Metrics that say nothing for so few classes."""

from __future__ import annotations

import pytest

from sce_video.utils.metric_names import is_trivial


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("top5", 2, True),
        ("knn_top5", 6, False),
        ("top1", 1, False),
        ("top5", None, False),
        ("top5_error", 2, False),
    ],
)
def test_top_k_of_k_classes_or_fewer(name, num_classes, expected):
    assert is_trivial(name, num_classes) is expected
