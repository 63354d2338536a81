"""Accuracy of class scores, over all views of a video and for the central view alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sce_video.evaluation.functional.accuracy import mean_class_accuracy, top_k_hits
from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS


@METRICS.register_module()
class TopKAccuracy(RowMetric):
    """``top1, top5`` (0 to 1) and, of samples with several views, ``one_view_top1, one_view_top5``.

    With k classes or fewer the top-k accuracy is 1.

    Args:
        ks: Values of k.

    Raises:
        ValueError: no k, or one below 1.
    """

    kinds = ("recognition",)

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        super().__init__()
        if not ks or min(ks) < 1:
            raise ValueError(f"ks must be ranks of 1 or more, got {tuple(ks)}")
        self.ks = tuple(ks)

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class."""
        return self.means_of(
            {
                f"{prefix}top{k}": top_k_hits(scores, rows.labels, k)
                for prefix, scores in _all_and_one_view(rows)
                for k in self.ks
            }
        )


@METRICS.register_module()
class MeanClassAccuracy(RowMetric):
    """``mean_class_accuracy``: top-1 accuracy per class, averaged over the classes that occur.

    With one-view scores also ``one_view_mean_class_accuracy``.
    """

    kinds = ("recognition",)
    class_means = frozenset({"mean_class_accuracy", "one_view_mean_class_accuracy"})

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class."""
        metrics = {}
        for prefix, scores in _all_and_one_view(rows):
            name = f"{prefix}mean_class_accuracy"
            self.outcomes[name] = top_k_hits(scores, rows.labels, 1)
            metrics[name] = mean_class_accuracy(scores, rows.labels)
        return metrics


def _all_and_one_view(rows: Rows) -> Iterator[tuple[str, Tensor]]:
    """Yield prefix and scores (N, C) of all views, then of the central view if kept.

    Raises:
        ValueError: no videos, or a label out of range; the message names the first video.
    """
    if len(rows) == 0:
        raise ValueError(f"{rows.name}: no videos to compute an accuracy of")
    wrong = torch.nonzero((rows.labels < 0) | (rows.labels >= rows.num_classes)).flatten()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{rows.name}: accuracy needs labels from 0 to {rows.num_classes - 1}: {len(wrong)} of "
            f"{len(rows)} videos, the first is row {row}, {rows.paths[row]} "
            f"(label {int(rows.labels[row])})"
        )
    yield "", rows.values
    if rows.central is not None:
        yield "one_view_", rows.central
