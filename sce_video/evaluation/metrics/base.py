"""Metrics, which compute named numbers from a dataset's rows, their outcomes, and tables.

A custom metric is one class in one file::

    @METRICS.register_module()
    class Confidence(RowMetric):
        def compute(self, rows, gallery=None):
            return {"confidence": float(rows.scores.max(dim=1).values.mean())}

which a config uses as ``dict(type="Confidence")``, and the command line with ``--import MODULE``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor, nn

from sce_video.datasets.video_list import video_of
from sce_video.evaluation.functional.statistics import bootstrap_intervals
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size
from sce_video.inference.npz_files import as_integers, as_matrix, as_strings, read_npz, write_npz
from sce_video.utils.command import Progress
from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial
from sce_video.utils.records import at

#: Keys of a data sample in mmaction2 1.2, in mmaction2 1.1 (whose entries are ``{"item":
#: tensor}``), and in plain dicts
_VALUE_KEYS = ("pred_score", "pred_scores", "feature")
_LABEL_KEYS = ("gt_label", "gt_labels", "label")


class RowMetric(BaseMetric):
    """Metric that computes named numbers from the rows of a dataset.

    Loops of this package call :meth:`compute` once, on rank 0, with the rows of all ranks. In a
    plain mmengine test loop, the metric collects ``pred_score`` (or ``feature``) and ``gt_label``
    of the data samples.

    Attributes:
        key: Name of its settings under ``protocols`` in results.json; empty if it has none.
        options: Names of the attributes that :meth:`settings` returns.
        kinds: Kinds of rows that it accepts: "recognition" (class scores), "representation"
            (features), "detection" (scores of boxes); empty for any.
        needs_gallery: Whether queries are compared with a gallery or with other groups.
        alterations: Clip alterations whose values it also needs (``rows.altered``), from
            :data:`~sce_video.evaluation.alterations.ALTERATIONS`.
        needs_clips: Whether it needs single-clip representations (``rows.clips``).
        class_means: Names of the metrics in ``outcomes`` that are averaged per class first.
        device: Device for large tensors in :meth:`compute`. Loops set it to the model's device.
        folder: Folder for files that the metric writes. Loops set it to the work folder.

    In addition to the numbers that it returns, :meth:`compute` may set:

    Attributes:
        details: Entries to add to results.json. ``provenance`` is added to its ``protocol``.
        text: Text for the log, printed after the metrics, which then omit those ``in_text``.
        outcomes: Values (N,) of each metric that is a mean over samples, 0 or 1 for an accuracy.
            They are used for its confidence interval and for paired tests.
        intervals: 95 % intervals of metrics that are not means over samples, or None.
    """

    default_prefix = ""  # not None, because mmengine would print a warning
    key = ""
    options: tuple[str, ...] = ()
    needs_gallery = False
    needs_clips = False
    kinds: tuple[str, ...] = ()
    class_means: frozenset[str] = frozenset()
    alterations: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(collect_device="cpu")
        self.device = torch.device("cpu")
        self.folder = Path(".")
        self.details: dict[str, object] = {}
        self.provenance: dict[str, object] = {}
        self.text = ""
        self.outcomes: dict[str, Tensor] = {}
        self.intervals: dict[str, list[float] | None] = {}
        self.in_text: frozenset[str] = frozenset()

    def means_of(self, outcomes: dict[str, Tensor]) -> dict[str, float]:
        """Keep the outcomes (N,) of each metric and return their means."""
        self.outcomes |= outcomes
        return {name: float(values.double().mean()) for name, values in outcomes.items()}

    def settings(self) -> dict[str, Any]:
        """Return the options on which the metric depends, as plain data for the provenance."""
        return {name: getattr(self, name) for name in self.options}

    @abstractmethod
    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute metric names and values for N samples.

        The samples are compared with the labelled samples of a gallery. Without a gallery, they are
        compared with each other, except within a fold (``rows.tested_together``).
        """

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Collect values and labels of a batch. mmengine's own test loop calls this."""
        for sample in data_samples:
            value = next((sample[key] for key in _VALUE_KEYS if key in sample), None)
            label = next((sample[key] for key in _LABEL_KEYS if key in sample), -1)
            if value is None:
                raise ValueError(
                    f"a data sample must have one of {', '.join(_VALUE_KEYS)}, got {sorted(sample)}"
                )
            value, label = (
                torch.as_tensor(v["item"] if isinstance(v, dict) else v) for v in (value, label)
            )
            self.results.append((value.detach().cpu().float(), int(label.reshape(-1)[0])))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Compute the metrics of all collected samples. mmengine's own test loop calls this."""
        # mmengine passes only the test samples to a metric, so there is no gallery.
        if self.needs_gallery:
            raise ValueError(
                f"{type(self).__name__} needs a gallery, which a plain test loop does not have. "
                "Set test_cfg = dict(type='MultiViewTestLoop', gallery_dataloader=...)"
            )
        if not results:
            raise ValueError(f"{type(self).__name__}: no data samples to evaluate")
        values, labels = zip(*results, strict=True)
        indices = torch.arange(len(results))
        paths = [f"#{i}" for i in range(len(results))]
        return self.compute(Rows(torch.stack(values), torch.tensor(labels), indices, paths))


def compute_metrics(
    metrics: Sequence[BaseMetric], rows: Rows, gallery: Rows | None = None
) -> dict[str, float]:
    """Compute names and values of all metrics (see :meth:`RowMetric.compute`).

    An mmengine or mmaction2 metric (``AccMetric``) receives the rows as data samples with
    ``pred_score`` and ``gt_label``. ValueError is raised if two metrics return the same name.
    """
    numbers: dict[str, float] = {}
    for metric in metrics:
        if isinstance(metric, RowMetric):
            metric.outcomes = {}
            new = metric.compute(rows, gallery)
        else:
            # This metric accumulates results over batches, so remove the results of an earlier set.
            metric.results.clear()
            for value, label in zip(rows.values, rows.labels.reshape(-1, 1), strict=True):
                of_1_2 = {"pred_score": value, "gt_label": label}
                of_1_1 = {"pred_scores": {"item": value}, "gt_labels": {"item": label}}
                metric.process({}, [of_1_2 | of_1_1])
            prefix = f"{metric.prefix}/" if metric.prefix else ""
            found = metric.compute_metrics(metric.results)
            new = {f"{prefix}{name}": float(value) for name, value in found.items()}
            metric.results.clear()
        if twice := sorted(set(new) & set(numbers)):
            raise ValueError(
                f"two metrics of the evaluator return the same values: {', '.join(twice)}"
            )
        numbers.update(new)
    return numbers


@dataclass(frozen=True)
class Outcomes:
    """Outcomes (N, M) float32 of N samples for M metrics, with the names in results.json.

    A metric is the mean of its column over the samples or, if ``by_class`` (M,) bool is True, the
    mean of the class means. Samples with equal paths, and segments of one file, belong to one
    video. Samples with equal ``groups`` (N,) int64 belong to one group, such as a person.
    ``groups`` is None if no groups are known.
    """

    paths: list[str]
    labels: np.ndarray
    names: list[str]
    values: np.ndarray
    by_class: np.ndarray
    groups: np.ndarray | None = None

    @property
    def units(self) -> np.ndarray:
        """Number (N,) of each sample's group, or of its video if there are no groups.

        Intervals and tests draw whole units, because samples of one unit are not independent.
        """
        groups = [*map(video_of, self.paths)] if self.groups is None else self.groups
        return np.unique(groups, return_inverse=True)[1]

    @property
    def drawn(self) -> str:
        """Number and kind of the units: ``336 groups``."""
        count, kind = int(self.units.max()) + 1, "video" if self.groups is None else "group"
        return f"{count} {kind}{'s' * (count != 1)}"

    def means(self) -> dict[str, float]:
        """Compute the metrics themselves, by name."""
        values = self.values.astype(np.float64)
        classes = [self.labels == label for label in np.unique(self.labels)]
        of_classes = np.mean([values[members].mean(axis=0) for members in classes], axis=0)
        numbers = np.where(self.by_class, of_classes, values.mean(axis=0))
        return dict(zip(self.names, numbers.tolist(), strict=True))

    def intervals(self) -> dict[str, list[float] | None]:
        """Compute 95 % intervals by metric (``bootstrap_intervals``); None with only one unit."""
        found: dict[str, list[float] | None] = dict.fromkeys(self.names)
        for classes in (None, self.labels):
            columns = np.nonzero(self.by_class == (classes is not None))[0]
            if not len(columns):
                continue
            ends = bootstrap_intervals(self.values[:, columns], self.units, classes)
            if ends is not None:
                found |= zip([self.names[i] for i in columns], ends.tolist(), strict=True)
        return found


def outcomes_of(metrics: Sequence[BaseMetric], rows: Rows) -> Outcomes | None:
    """Collect the outcomes that metrics have kept of these rows; None if there are none."""
    kept = [metric for metric in metrics if isinstance(metric, RowMetric)]
    columns = {name: values for metric in kept for name, values in metric.outcomes.items()}
    for name, values in columns.items():
        shape = tuple(values.shape)
        if shape != (len(rows),):
            raise ValueError(
                f"the outcomes of {name} have the shape {shape}, but there are {len(rows)} samples"
            )
    if not columns:
        return None
    means = {name for metric in kept for name in metric.class_means}
    table = np.stack([v.cpu().numpy().astype(np.float32) for v in columns.values()], axis=1)
    by_class = np.array([name in means for name in columns])
    groups = None if rows.groups is None else rows.groups.numpy()
    return Outcomes(rows.paths, rows.labels.numpy(), list(columns), table, by_class, groups)


def outcomes_path(results: str | Path) -> str:
    """Return the file of outcomes next to a results file: ``results_outcomes.npz``."""
    return str(results).removesuffix(".json") + "_outcomes.npz"


def save_outcomes(path: str | Path, outcomes: Outcomes) -> None:
    """Write ``paths, labels, names, outcomes, by_class`` and any ``groups`` to an .npz file."""
    arrays = {
        "paths": np.array(outcomes.paths),
        "labels": outcomes.labels,
        "names": np.array(outcomes.names),
        "outcomes": outcomes.values,
        "by_class": outcomes.by_class.astype(np.int64),
    }
    if outcomes.groups is not None:
        arrays["groups"] = outcomes.groups
    write_npz(path, arrays, {"kind": "outcomes"})


def load_outcomes(path: str | Path) -> Outcomes:
    """Read a file of :func:`save_outcomes`; raise FileNotFoundError or ValueError otherwise."""
    required = ("paths", "labels", "names", "outcomes", "by_class")
    arrays, _ = read_npz(path, "a file of outcomes", required)
    values = as_matrix(path, arrays["outcomes"], "outcomes")
    count, metrics = values.shape
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"{path}: outcomes must be finite and contain at least one sample")
    return Outcomes(
        paths=as_strings(path, arrays["paths"], "paths", count),
        labels=as_integers(path, arrays["labels"], "labels", count),
        names=as_strings(path, arrays["names"], "names", metrics),
        values=values,
        by_class=as_integers(path, arrays["by_class"], "by_class", metrics) > 0,
        groups=as_integers(path, arrays["groups"], "groups", count) if "groups" in arrays else None,
    )


def place_metrics(metrics: Sequence[BaseMetric], model: nn.Module, folder: str | Path) -> None:
    """Set the device of row metrics to the model's device, and the folder of their files."""
    parameter = next(model.parameters(), None)
    for metric in metrics:
        if isinstance(metric, RowMetric):
            metric.device = torch.device("cpu") if parameter is None else parameter.device
            metric.folder = Path(folder)


def needs_gallery(metrics: Sequence[BaseMetric]) -> bool:
    """Return whether one of the metrics compares with a gallery or with other groups."""
    return any(getattr(metric, "needs_gallery", False) for metric in metrics)


def listed_metrics(
    metrics: Sequence[BaseMetric], numbers: dict[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Return the metrics to list in the log, and paragraphs about all other metrics."""
    texts = [metric.text for metric in metrics if getattr(metric, "text", "")]
    shown = {name for metric in metrics for name in getattr(metric, "in_text", ())}
    return {name: value for name, value in numbers.items() if name not in shown}, texts


def metric_settings(metrics: Sequence[BaseMetric]) -> dict[str, dict[str, object]]:
    """Return the settings of the metrics that have any, by key."""
    own = (metric for metric in metrics if isinstance(metric, RowMetric))
    return {metric.key: metric.settings() for metric in own if metric.settings()}


def for_each_group(
    rows: Rows, gallery: Rows | None, function: Callable[[Rows, Rows, int], Tensor]
) -> Tensor:
    """Compute results of all queries against the gallery, or of each fold against all others.

    Without a gallery, every fold of ``rows`` is the test set once, with all other folds as its
    gallery. Fitting or centring is repeated for each fold. The function maps queries (n samples),
    gallery and number of classes to results (n, ...). All results are (N, ...) in the order of
    ``rows``. ValueError is raised by :func:`check_comparable`.
    """
    check_comparable(rows, gallery)
    if gallery is not None:
        num_classes = int(torch.cat([rows.labels, gallery.labels]).max()) + 1
        return function(rows, gallery, num_classes)
    folds = rows.tested_together
    assert folds is not None
    num_classes = int(rows.labels.max()) + 1
    masks = [folds == fold for fold in folds.unique()]
    parts = [function(rows.subset(mask), rows.subset(~mask), num_classes) for mask in masks]
    # The results are sorted by fold, so restore the order of the rows.
    return torch.cat(parts)[folds.argsort(stable=True).argsort()]


@contextmanager
def fit_progress(
    name: str, fits: int, rows: Rows, gallery: Rows | None
) -> Iterator[Callable[[], None]]:
    """Show progress over the fits for the gallery or each fold; yield a callback for each fit."""
    if gallery is None and rows.tested_together is not None:
        fits *= len(rows.tested_together.unique())
    progress = Progress(fits, name, unit="fits", quiet=True)
    yield progress.advance
    progress.advance(count=fits - progress.count)  # if nothing was selected, there were fewer fits
    progress.finish()


def check_comparable(rows: Rows, gallery: Rows | None) -> None:
    """Raise ValueError unless queries and gallery have labels, equal sizes, and the same classes.

    Without a gallery, each class must be in at least two folds. The message names the first video.
    """
    folds = rows.tested_together
    if (gallery is None) == (folds is None):
        raise ValueError("give either a gallery or groups, of which one is left out at a time")
    check_labelled(rows, "evaluation", "the test set")
    if gallery is not None:
        check_labelled(gallery, "evaluation", "the gallery")
    # A class without training samples can never be predicted, however good the features are.
    labels = rows.labels.tolist()
    if gallery is not None:
        check_same_size(rows, gallery)
        unseen = sorted(set(labels) - set(gallery.labels.tolist()))
        where = "not in the gallery"
    else:
        assert folds is not None
        pairs = set(zip(labels, folds.tolist(), strict=True))
        counts = Counter(label for label, _ in pairs)
        unseen = sorted(label for label, count in counts.items() if count < 2)
        alone = rows.folds is None or (rows.groups is not None and rows.groups.equal(rows.folds))
        where = "in one group only" if alone else "in one fold only (change the folds)"
    if unseen:
        example = rows.paths[labels.index(unseen[0])]
        raise ValueError(
            f"classes {unseen} occur among the queries (as {example}) but {where}, so they could "
            "never be predicted"
        )


#: A metric with at least this chance level says nothing about a network
MEANINGLESS = 0.9
#: Confidence interval of each metric, or None if it has no interval
Intervals = Mapping[str, Sequence[float] | None]
_ONE_VIEW = "one_view_"


def format_metrics(
    metrics: dict[str, float],
    provenance: Mapping[str, Any],
    intervals: Intervals | None = None,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Format a title and a line per metric, with columns for one and all views if needed.

    Fractions from 0 to 1 are shown in percent, with 95 % intervals and the values of the
    ``baselines``, such as chance. Top-k accuracies of fewer than 2k classes are omitted, and so are
    metrics on which guessing nearly always succeeds. The provenance comes from
    :func:`~sce_video.evaluation.provenance.describe_evaluation`.
    """
    name = at(provenance, "checkpoint.path") or provenance["checkpoint"]["source"]
    against, chosen = "", ""
    if "bank_videos" in provenance:
        against = f" against {provenance['bank_videos']} of the gallery"
    elif "groups" in provenance:
        against = f", leaving out {provenance['left_out']}"
    if "chosen_on_test" in provenance:
        data = "these very samples" if provenance["chosen_on_test"] else "other samples"
        chosen = f" (epoch {provenance['epochs']}, chosen on {data}; the result is the last)"
    views = provenance["views"]
    title = (
        f"{name}{chosen}: {provenance['videos']} videos{against}, {provenance['failures']} could "
        f"not be decoded, {views} views of each"
    )
    metrics = telling(metrics, provenance, at(baselines, "chance"))
    if not any(name.startswith(_ONE_VIEW) for name in metrics):
        return format_metric_lines(metrics, title, intervals, baselines)
    many = f"{provenance.get('clips', views)} x {provenance.get('crops', 1)} views"
    lines = [title, f"  {'':<22}{'1 view':>10}{many:>16}"]
    for name, value in metrics.items():
        if not name.startswith(_ONE_VIEW):
            one = _cell(name, metrics.get(_ONE_VIEW + name), 8)
            line = f"  {name:<22}{one}{_cell(name, value, 14)}{_interval(name, intervals)}"
            lines.append(line.rstrip())
    return "\n".join(lines)


def telling(
    metrics: dict[str, float],
    provenance: Mapping[str, Any],
    chance: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the metrics that are informative, or all of them if none is.

    A top-k accuracy of few classes, whose number is in the provenance, is not informative. Neither
    is a metric whose value by ``chance`` is at least :data:`MEANINGLESS`.
    """
    classes = at(provenance, "num_classes") or at(provenance, "test.num_classes")
    easy = {name for name, level in (chance or {}).items() if level >= MEANINGLESS}
    easy |= {name for name in metrics if is_trivial(name, classes)}
    return {name: value for name, value in metrics.items() if name not in easy} or metrics


def format_metric_lines(
    metrics: dict[str, float],
    title: str,
    intervals: Intervals | None = None,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Format a title and a line per metric, with fractions from 0 to 1 in percent.

    Each line ends with the values of the ``baselines`` and their names.
    """
    width = max(map(len, metrics), default=0)
    lines = []
    for name, value in metrics.items():
        line = f"  {name:<{width}} {_cell(name, value, 8)}{_interval(name, intervals)}".rstrip()
        known = [(what, found[name]) for what, found in (baselines or {}).items() if name in found]
        beside = ", ".join(f"{what} {_cell(name, other, 0).strip()}" for what, other in known)
        lines.append(f"{line}  ({beside})" if beside else line)
    return "\n".join([title, *lines])


def _cell(name: str, value: float | None, width: int) -> str:
    """Right-align a value to ``width`` characters and add its unit; use a dash for None."""
    if value is None:
        return f"{'-':>{width}}  "
    if name in NOT_FRACTIONS or not 0 <= value <= 1:
        return f"{value:{width}.2f}  "
    return f"{100 * value:{width}.2f} %"


def _interval(name: str, intervals: Intervals | None) -> str:
    """Format ``  [81.20, 85.90]`` in percent; empty for a metric without an interval."""
    if intervals is None or name not in intervals:
        return ""
    ends = intervals[name]
    if ends is None:
        return "  [no interval]"
    return f"  [{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"


def format_columns(
    metrics: dict[str, float], columns: Sequence[str], measures: dict[str, str], title: str
) -> str:
    """Format a line per measure with a column per suffix of metric names; a dash if absent.

    Names are ``<measure>_<column>`` and, for a second line, ``<measure>_<column>_from_<first
    column>``. ``measures`` maps the prefix of the names to the title of the line.
    """
    second = "  against " + columns[0]
    width = max(map(len, [second, *measures.values()]))
    lines = [title, f"  {'':<{width}}" + "".join(f"{name:>12}" for name in columns)]
    for measure, shown in measures.items():
        for suffix, label in (("", shown), (f"_from_{columns[0]}", second)):
            names = [f"{measure}_{column}{suffix}" for column in columns]
            if any(name in metrics for name in names):
                cells = (_cell(name, metrics.get(name), 10) for name in names)
                lines.append((f"  {label:<{width}}" + "".join(cells)).rstrip())
    return "\n".join(lines)
