"""What became of each video in a test: kept beside the results, for intervals and paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.evaluator import BaseMetric

from sce_video.evaluation.functional.intervals import bootstrap_intervals
from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.npz_files import as_integers, as_matrix, as_strings, read_npz, write_npz
from sce_video.evaluation.rows import Rows

_ENDING = "_outcomes.npz"


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of N samples for M metrics.

    Attributes:
        paths: N paths; samples of one path are one video.
        labels: (N,) int64.
        names: M names of metrics, as in results.json.
        values: (N, M) float32. The metric is the mean of its column over the samples, or, of those
            ``by_class``, the mean of the class means.
        by_class: (M,) bool.
    """

    paths: list[str]
    labels: np.ndarray
    names: list[str]
    values: np.ndarray
    by_class: np.ndarray

    def intervals(self) -> dict[str, list[float] | None]:
        """95 % intervals by metric, see ``bootstrap_intervals``; None where there is one video."""
        units = np.unique(self.paths, return_inverse=True)[1]
        found: dict[str, list[float] | None] = {}
        for classes in (None, self.labels):
            columns = np.nonzero(self.by_class == (classes is not None))[0]
            if len(columns):
                ends = bootstrap_intervals(self.values[:, columns], units, classes)
                for slot, column in enumerate(columns):
                    found[self.names[column]] = None if ends is None else ends[slot].tolist()
        return {name: found[name] for name in self.names}


def outcomes_of(metrics: Sequence[BaseMetric], rows: Rows) -> Outcomes | None:
    """The outcomes that the metrics have kept in ``compute(rows)``; None if none has.

    Raises:
        ValueError: a metric has kept another number of outcomes than there are rows.
    """
    kept = [metric for metric in metrics if isinstance(metric, RowMetric)]
    columns = {name: values for metric in kept for name, values in metric.outcomes.items()}
    for name, values in columns.items():
        if values.shape != (len(rows),):
            raise ValueError(
                f"the outcomes of {name} have the shape {tuple(values.shape)}, there are "
                f"{len(rows)} samples"
            )
    if not columns:
        return None
    by_class = {name for metric in kept for name in metric.class_means}
    return Outcomes(
        paths=rows.paths,
        labels=rows.labels.numpy(),
        names=list(columns),
        values=np.stack([v.cpu().numpy().astype(np.float32) for v in columns.values()], axis=1),
        by_class=np.array([name in by_class for name in columns]),
    )


def outcomes_path(results: str | Path) -> str:
    """The file of the outcomes beside a file of results: ``results_outcomes.npz``."""
    return str(results).removesuffix(".json") + _ENDING


def save_outcomes(path: str | Path, outcomes: Outcomes) -> None:
    """Write ``paths, labels, names, outcomes, by_class`` to an .npz file, atomically."""
    arrays = {
        "paths": np.array(outcomes.paths),
        "labels": outcomes.labels,
        "names": np.array(outcomes.names),
        "outcomes": outcomes.values,
        "by_class": outcomes.by_class.astype(np.int64),
    }
    write_npz(path, arrays, {"kind": "outcomes"})


def load_outcomes(path: str | Path) -> Outcomes:
    """Read a file of :func:`save_outcomes`; nothing is unpickled.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, damaged, or sizes that differ.
    """
    required = ("paths", "labels", "names", "outcomes", "by_class")
    arrays, _ = read_npz(path, "a file of outcomes", required)
    values = as_matrix(path, arrays["outcomes"], "outcomes")
    count, metrics = values.shape
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"{path}: outcomes must be finite numbers of one sample or more")
    return Outcomes(
        paths=as_strings(path, arrays["paths"], "paths", count),
        labels=as_integers(path, arrays["labels"], "labels", count),
        names=as_strings(path, arrays["names"], "names", metrics),
        values=values,
        by_class=as_integers(path, arrays["by_class"], "by_class", metrics) > 0,
    )
