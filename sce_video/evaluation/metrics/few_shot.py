"""Accuracy from a few labelled samples of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sce_video.evaluation.functional.few_shot import CLASSIFIERS, few_shot_hits, interval_of_mean
from sce_video.evaluation.metrics.base import RowMetric, fit_progress, for_each_group
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS


@METRICS.register_module()
class FewShot(RowMetric):
    """``few_shot_linear_1, ..., few_shot_class_mean_1, ...``: accuracy (0 to 1) from 1, ... labels.

    The mean over the draws; results.json has their 95 % confidence intervals under ``few_shot``.
    An interval is that of the draw of the labelled samples, with the queries as they are. See
    :func:`~sce_video.evaluation.functional.few_shot.few_shot_hits`.

    Args:
        shots: Labelled samples of each class.
        draws: How often they are drawn, at least 2.
        l2: Weight decay of the linear classifier.
        seed: Of the first draw.

    Raises:
        ValueError: no shots or one below 1, fewer than two draws, ``l2`` not above 0.
    """

    key = "few_shot"
    needs_gallery = True
    kinds = ("representation",)

    def __init__(
        self,
        shots: Sequence[int] = (1, 2, 5, 10, 20, 50),
        draws: int = 5,
        l2: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not shots or min(shots) < 1 or len(set(shots)) < len(shots):
            raise ValueError(f"shots must be different numbers of 1 or more, got {tuple(shots)}")
        if draws < 2:
            raise ValueError(f"an interval needs two draws or more, got draws={draws}")
        if l2 <= 0:
            raise ValueError(f"l2 must be above 0, got {l2}")
        self.shots, self.draws, self.l2, self.seed = tuple(shots), draws, l2, seed

    def settings(self) -> dict[str, Any]:
        """The arguments."""
        return {"shots": self.shots, "draws": self.draws, "l2": self.l2, "seed": self.seed}

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class."""

        fits = self.draws * len(self.shots)
        with fit_progress("few-shot classifiers:", fits, rows, gallery) as on_fit:

            def hits(queries: Rows, training: Rows, num_classes: int) -> Tensor:
                return few_shot_hits(
                    queries.values,
                    queries.labels,
                    training.values,
                    training.labels,
                    **self.settings(),
                    device=self.device,
                    on_fit=on_fit,
                )

            accuracy = for_each_group(rows, gallery, hits).double().mean(dim=0)
        # (draws, shots, 2)
        metrics: dict[str, float] = {}
        table = []
        for kind, name in enumerate(CLASSIFIERS):
            for column, shots in enumerate(self.shots):
                mean, half = interval_of_mean(accuracy[:, column, kind])
                metrics[f"few_shot_{name}_{shots}"] = mean
                table.append(
                    {
                        "classifier": name,
                        "shots": shots,
                        "mean": mean,
                        "interval": [mean - half, mean + half],
                        "draws": accuracy[:, column, kind].tolist(),
                    }
                )
        self.details = {"few_shot": table}
        return metrics
