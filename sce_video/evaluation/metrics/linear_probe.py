"""Accuracy of a linear probe on frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sce_video.evaluation.functional.accuracy import mean_class_accuracy, top_k_hits
from sce_video.evaluation.functional.linear_probe import L2_GRID, fit_linear_probe, num_fits
from sce_video.evaluation.metrics.base import RowMetric, fit_progress, for_each_group
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS


@METRICS.register_module()
class LinearProbe(RowMetric):
    """``linear_top1, linear_top5, linear_mean_class`` (0 to 1) of a probe fitted on the gallery.

    See :func:`~sce_video.evaluation.functional.linear_probe.fit_linear_probe`.

    Args:
        l2_grid: Candidate weight decays.
        val_fraction: Fraction of the gallery, or of its groups, held out to select one.
        seed: Seed of that split.
        max_iter: Maximum number of L-BFGS iterations per fit.
    """

    key = "linear"
    needs_gallery = True
    kinds = ("representation",)
    class_means = frozenset({"linear_mean_class"})

    def __init__(
        self,
        l2_grid: Sequence[float] = L2_GRID,
        val_fraction: float = 0.2,
        seed: int = 0,
        max_iter: int = 1000,
    ) -> None:
        super().__init__()
        self.l2_grid = tuple(l2_grid)
        self.val_fraction = val_fraction
        self.seed = seed
        self.max_iter = max_iter

    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "l2_grid": self.l2_grid,
            "val_fraction": self.val_fraction,
            "seed": self.seed,
            "max_iter": self.max_iter,
        }

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class."""

        with fit_progress("linear probe:", num_fits(self.l2_grid), rows, gallery) as on_fit:

            def score(queries: Rows, training: Rows, num_classes: int) -> Tensor:
                probe = fit_linear_probe(
                    training.values,
                    training.labels,
                    groups=training.groups,
                    on_fit=on_fit,
                    **self.settings(),
                )
                return probe.scores(queries.values, num_classes)

            scores = for_each_group(rows, gallery, score)
        hits = {k: top_k_hits(scores, rows.labels, k) for k in (1, 5)}
        metrics = self.means_of({f"linear_top{k}": values for k, values in hits.items()})
        self.outcomes["linear_mean_class"] = hits[1]
        return {**metrics, "linear_mean_class": mean_class_accuracy(scores, rows.labels)}
