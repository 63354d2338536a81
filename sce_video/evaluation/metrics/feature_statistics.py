"""Collapse metrics: spread and effective rank of features."""

from __future__ import annotations

from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.rows import Rows
from sce_video.models.losses import effective_rank, feature_std
from sce_video.registry import METRICS


@METRICS.register_module()
class FeatureStatistics(RowMetric):
    """``feature_std`` (0 when collapsed, about 1 when well spread), ``effective_rank`` (1 to C)."""

    kinds = ("representation",)

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See :func:`~sce_video.models.losses.feature_std` and ``effective_rank``."""
        return {
            "feature_std": float(feature_std(rows.values)),
            "effective_rank": float(effective_rank(rows.values)),
        }
