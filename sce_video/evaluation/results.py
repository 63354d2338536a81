"""Results of metrics on some samples, and ``results.json``, the file that stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.evaluator import BaseMetric

from sce_video.evaluation.metrics.base import (
    Outcomes,
    RowMetric,
    compute_metrics,
    outcomes_of,
    outcomes_path,
    save_outcomes,
)
from sce_video.evaluation.rows import Rows
from sce_video.utils.files import write_json


@dataclass(frozen=True)
class Results:
    """Content of ``results.json``.

    Attributes:
        metrics: Values by name.
        protocol: Everything on which the metrics depend.
        failures: Path and reason of every sample that could not be read.
        intervals: 95 % intervals by metric; None if there is only one video or group to draw.
        details: Additional entries in the file, by name.
        outcomes: Contributions of the samples, which are written to a separate file.
    """

    metrics: dict[str, float]
    protocol: dict[str, Any]
    failures: Sequence[tuple[str, str]] = ()
    intervals: dict[str, list[float] | None] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    outcomes: Outcomes | None = None

    @property
    def drawn(self) -> list[str]:
        """Line for the log about the units that the intervals draw; none without outcomes."""
        return [f"  95 % intervals over {self.outcomes.drawn}"] if self.outcomes else []

    def write(self, path: str | Path) -> None:
        """Write the file, and ``*_outcomes.npz`` next to it if there are outcomes.

        Raises:
            WriteError: If a file cannot be written.
        """
        content: dict[str, object] = {"metrics": self.metrics}
        if self.intervals:
            content["intervals"] = self.intervals
        if self.outcomes is not None:
            save_outcomes(outcomes_path(path), self.outcomes)
            content["intervals_over"] = self.outcomes.drawn
        failures = [list(pair) for pair in self.failures]
        write_json(
            path, {**content, **self.details, "protocol": self.protocol, "failures": failures}
        )


def compute_results(
    metrics: Sequence[BaseMetric],
    rows: Rows,
    gallery: Rows | None,
    protocol: dict[str, Any],
    failures: Sequence[tuple[str, str]] | None = None,
) -> Results:
    """Compute metrics with their intervals, outcomes, details and settings.

    Args:
        metrics: Metrics to compute. mmengine and mmaction2 metrics return values only.
        rows: Samples to evaluate.
        gallery: Samples to compare them with; None if the metrics need none.
        protocol: Settings on which the metrics depend. Metrics add the settings that they choose.
        failures: Path and reason of samples that could not be read; None uses both sets' failures.
    """
    values = compute_metrics(metrics, rows, gallery)
    outcomes = outcomes_of(metrics, rows)
    if failures is None:
        failures = rows.failures + ([] if gallery is None else gallery.failures)
    intervals = {} if outcomes is None else outcomes.intervals()
    found = Results(values, {**protocol}, failures, intervals, {}, outcomes)
    for metric in metrics:
        if isinstance(metric, RowMetric):
            found.details.update(metric.details)
            found.protocol.update(metric.provenance)
            found.intervals.update(metric.intervals)
    return found
