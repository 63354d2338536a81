"""Weighted kNN accuracy of features."""

from __future__ import annotations

from typing import Any

from sce_video.evaluation.functional.accuracy import top_k_hits
from sce_video.evaluation.functional.knn import knn_scores
from sce_video.evaluation.metrics.base import RowMetric, check_comparable
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS


@METRICS.register_module()
class KNN(RowMetric):
    """``knn_top1, knn_top5`` (0 to 1), see :func:`~sce_video.evaluation.functional.knn.knn_scores`.

    Args:
        k: Number of neighbours.
        temperature: Temperature of their weights.

    Raises:
        ValueError: ``k < 1`` or ``temperature <= 0``.
    """

    key = "knn"
    needs_gallery = True
    kinds = ("representation",)

    def __init__(self, k: int = 20, temperature: float = 0.07) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.k = k
        self.temperature = temperature

    def settings(self) -> dict[str, Any]:
        """``k`` and ``temperature``."""
        return {"k": self.k, "temperature": self.temperature}

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class. Groups are excluded by masking, since nothing is fitted on a gallery.

        Raises:
            ValueError: neither gallery nor groups (each query would be its own neighbour), or see
                ``check_comparable``.
        """
        groups = None
        if gallery is not None:
            check_comparable(rows, gallery)
        elif rows.groups is None:
            raise ValueError("kNN needs either a gallery or groups: give one of them")
        else:
            groups = rows.groups.to(self.device)
        other = rows if gallery is None else gallery
        num_classes = int(max(rows.labels.max(), other.labels.max())) + 1
        scores = knn_scores(
            rows.values.to(self.device),
            other.values.to(self.device),
            other.labels.to(self.device),
            num_classes=num_classes,
            query_groups=groups,
            gallery_groups=groups,
            **self.settings(),
        ).cpu()
        return self.means_of({f"knn_top{k}": top_k_hits(scores, rows.labels, k) for k in (1, 5)})
