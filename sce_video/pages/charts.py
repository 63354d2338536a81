"""Charts of logged values: which values a page draws, in which chart, and under which name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sce_video.pages.run_record import Row, RunRecord
from sce_video.utils.metric_names import NOT_FRACTIONS
from sce_video.utils.records import at

#: Number of bins in a long curve. Wide charts do not have more pixels than this.
MAX_BINS = 1000
#: Maximum number of points in a curve that is drawn without bins.
MAX_POINTS = 2 * MAX_BINS


@dataclass(frozen=True)
class Points:
    """Curve of n points, or of n bins if the curve is long."""

    x: np.ndarray  # iterations, or centres of the bins
    y: np.ndarray  # values, or means of the bins; NaN if no value is finite
    low: np.ndarray | None = None  # smallest value of each bin; None without bins
    high: np.ndarray | None = None  # largest value of each bin; None without bins
    not_finite: int = 0  # number of logged values that were NaN or infinite


def reduced(
    x: Sequence[float], y: Sequence[float], span: tuple[float, float] | None = None
) -> Points:
    """Return the points of a curve, or the mean, minimum and maximum of each bin of a long curve.

    Args:
        x: Iterations.
        y: Values.
        span: First and last iteration of the log, between which all bins are equally wide, so that
            the bins of all curves coincide; None for those of the curve.
    """
    at, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    finite = np.isfinite(values)
    wrong = int((~finite).sum())
    if len(at) <= MAX_POINTS:
        return Points(at, np.where(finite, values, np.nan), not_finite=wrong)
    first, last = span or (at[0], at[-1])
    width = (last - first) / MAX_BINS or 1.0
    # The last iteration lies on the upper edge of the last bin, so clip its index to that bin.
    bins = np.clip(((at - first) / width).astype(np.int64), 0, MAX_BINS - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    # reduceat reduces the values from each start to the next one. Empty bins have no start.
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    some = counts > 0
    middle = first + (bins[starts] + 0.5) * width
    mean = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=some)
    low, high = np.where(some, low, np.nan), np.where(some, high, np.nan)
    return Points(middle, mean, low, high, wrong)


#: Logged keys that are not plotted.
_NOT_DRAWN = frozenset("iter epoch step time kind eta videos failures chance_level".split())
_SCHEDULES = frozenset("lr base_lr momentum lambda_ mu eta tau tau_m weight_decay".split())


@dataclass(frozen=True)
class Kind:
    """Kind of chart."""

    id: str
    title: str  # what is drawn
    note: str  # how to read the chart
    names: Mapping[str, str] = field(default_factory=dict)  # labels of the logged values, by name
    percent: bool = False  # whether the values are fractions, which are shown in percent
    online: bool = False  # whether the values come from the online evaluation
    apart: bool = False  # whether each value has its own chart, because magnitudes differ

    def title_of(self, name: str) -> str:
        """Return the title of a chart that draws only one value."""
        several = self.apart or len(self.names) > 1
        return f"{self.title}: {LABELS.get(name, name)}" if several else self.title


KINDS = (
    Kind(
        "loss",
        "Loss",
        "It should fall below chance level, the loss of a network that cannot tell samples apart.",
        {"loss": "loss"},
    ),
    Kind(
        "part",
        "Loss",
        "Term of the loss, before it is multiplied by its weight.",
        {
            "infonce": "InfoNCE",
            "ressl": "ReSSL",
            "ceil": "Ceil",
            "prediction": "prediction",
            "sigreg": "SIGReg",
            "loss_cls": "loss_cls",
        },
        apart=True,
    ),
    Kind(
        "knn",
        "kNN accuracy during training",
        "Current quality of the representation: accuracy of nearest neighbours in labelled videos.",
        {"knn_top1": "top-1", "knn_top5": "top-5"},
        percent=True,
        online=True,
    ),
    Kind(
        "rank",
        "Effective rank of the representation",
        "Number of directions in which the features of a batch differ. Close to 1 means collapse.",
        {"h_rank": "effective rank of h"},
    ),
    Kind(
        "spread",
        "Spread per dimension",
        "Standard deviation of normalised features (h) and embeddings (z). It is about 1 if they "
        "are well spread, and close to 0 after a collapse.",
        {"h_std": "representation h", "z_std": "embedding z"},
    ),
    Kind(
        "similarity",
        "Similarity of query and key",
        "Mean cosine of two views of a video. If it is 1 from the first steps on, the network has "
        "collapsed.",
        {"positive_similarity": "cosine"},
    ),
    Kind(
        "entropy",
        "Entropy of the targets",
        "In nats. It is 0 if all weight is on one sample.",
        {"target_entropy": "targets", "code_entropy": "codes"},
    ),
    Kind(
        "online_rank",
        "Online evaluation: effective rank",
        "Computed from the features of the evaluated videos.",
        {"effective_rank": "effective rank"},
        online=True,
    ),
    Kind(
        "online_spread",
        "Online evaluation: spread per dimension",
        "Computed from the features of the evaluated videos, about 1 if they are well spread.",
        {"feature_std": "spread per dimension"},
        online=True,
    ),
    Kind(
        "grad_norm",
        "Norm of the gradient",
        "The loss often jumps where the norm has spikes.",
        {"grad_norm": "norm"},
    ),
    Kind(
        "data_wait",
        "Share of time spent waiting for data",
        "Above 30 %, decoding is too slow for the network. Use more workers, or repack the videos.",
        {"data_wait": "data wait"},
        percent=True,
    ),
    Kind("rate", "Videos per second", "Sum over all processes.", {"videos_per_s": "videos/s"}),
    Kind(
        "seconds",
        "Seconds per step",
        "Time of the whole step, and the time during which it waits for data.",
        {"step_seconds": "step", "data_seconds": "data"},
    ),
    Kind(
        "repeats",
        "RGB differences of repeated frames",
        "Share of the clips in which frames repeat, and of those that remain RGB for this reason.",
        {"diff_repeats": "frames repeat", "diff_as_rgb": "stay RGB"},
        percent=True,
    ),
    Kind("memory", "GPU memory", "Largest value so far, in MB.", {"memory": "memory"}),
)

#: Name of the curve for each logged value.
LABELS = {name: label for kind in KINDS for name, label in kind.names.items()} | {
    "lr": "learning rate",
    "momentum": "target momentum",
    "lambda_": "lambda",
}


@dataclass(frozen=True)
class Curve:
    """Curve in a chart."""

    name: str  # name of the logged value
    label: str  # text in the legend, which is the name of the run in a comparison
    points: Points
    slot: int = 0  # theme colour; from 8 on, colours repeat and lines are dashed


@dataclass(frozen=True)
class Chart:
    """Chart with one or several curves, and constant lines (label, value)."""

    id: str
    title: str
    note: str
    curves: list[Curve]
    lines: list[tuple[str, float]] = field(default_factory=list)
    percent: bool = False

    def data(self) -> dict[str, object]:
        """Return the chart as JSON data for charts.js."""
        return {
            "id": self.id,
            "title": self.title,
            "percent": self.percent,
            "lines": [{"label": label, "value": value} for label, value in self.lines],
            "curves": [
                {
                    "label": curve.label,
                    "slot": curve.slot,
                    **{n: _numbers(getattr(curve.points, n)) for n in ("x", "y", "low", "high")},
                }
                for curve in self.curves
            ],
        }

    @property
    def not_finite(self) -> int:
        """Number of values that cannot be drawn."""
        return sum(curve.points.not_finite for curve in self.curves)


def _numbers(values: np.ndarray | None) -> list[float | int | None] | None:
    """Round values to six digits, and replace values that are not finite by None for JSON."""
    if values is None:
        return None
    found: list[float | int | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            found.append(None)
        else:  # integers take less space in the page: 3 instead of 3.0
            found.append(int(value) if value == int(value) else float(f"{value:.6g}"))
    return found


def scheduled_names(record: RunRecord) -> set[str]:
    """Return the names of the values that schedules set, in this run or usually."""
    hooks = at(record.config, "custom_hooks") or []
    hooks = hooks.values() if isinstance(hooks, dict) else hooks
    return set(_SCHEDULES).union(*(at(hook, "model", dict) or {} for hook in hooks))


def run_charts(record: RunRecord) -> tuple[list[Chart], list[tuple[str, float]]]:
    """Return the charts of a run, and the scheduled values (label, value) that are constant.

    The charts of :data:`KINDS` for which values were logged come first, with varying schedules
    after the losses. Other values have a chart each, at the end: those of the log, then those of
    the online evaluation, then those of the validation.
    """
    rows, online = record.scalars, record.evaluations
    charts = []
    for kind in KINDS:
        source = online if kind.online else rows
        lines: list[tuple[str, float]] = []
        if kind.id == "loss" and record.chance:
            lines = [("chance level", record.chance)]
        elif kind.id == "loss":
            kind = replace(kind, note="Value that the training minimises.")
        logged = set().union(*source)
        found = [name for name in kind.names if name in logged]
        if kind.apart:
            for name in found:
                own = replace(kind, id=f"{kind.id}_{name}", title=kind.title_of(name))
                charts.append(_chart(own, [name], source))
        elif found:
            charts.append(_chart(kind, found, source, lines))
    schedules, constant = _schedules(record)
    known = {name for kind in KINDS for name in kind.names} | scheduled_names(record) | _NOT_DRAWN
    about = "Computed from the features of the evaluated videos."
    evaluated = Kind("online", "Online evaluation: ", about)
    validated = Kind("val", "Validation: ", "Computed on the validation set.")
    others = _other_charts(rows, known, Kind("value", "", "Logged by the method."))
    others += _other_charts(online, known | {"seconds"}, evaluated)
    others += _other_charts(record.validations, set(_NOT_DRAWN), validated)
    losses = sum(chart.id.startswith(("loss", "part")) for chart in charts)
    return [*charts[:losses], *schedules, *charts[losses:], *others], constant


def _of(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """Return iterations and values of a logged value."""
    pairs = [(row["iter"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _chart(
    kind: Kind,
    names: Sequence[str],
    rows: Sequence[Row],
    lines: Sequence[tuple[str, float]] = (),
) -> Chart:
    span = (rows[0]["iter"], rows[-1]["iter"]) if rows else None
    curves = [
        Curve(name, LABELS.get(name, name), reduced(*_of(rows, name), span), slot)
        for slot, name in enumerate(names)
    ]
    return Chart(kind.id, kind.title, kind.note, curves, list(lines), kind.percent)


def _schedules(record: RunRecord) -> tuple[list[Chart], list[tuple[str, float]]]:
    """Return charts of varying schedules, the learning rate first, and the constant ones."""
    charts, constant = [], []
    for name in sorted(scheduled_names(record), key=lambda name: (name != "lr", name)):
        if not (values := _of(record.scalars, name)[1]):
            continue
        label = LABELS.get(name, name)
        if len(set(values)) == 1:
            constant.append((label, values[0]))
        else:
            kind = Kind(f"schedule_{name}", label[:1].upper() + label[1:], "Schedule.")
            charts.append(_chart(kind, [name], record.scalars))
    return charts, constant


def _other_charts(rows: Sequence[Row], known: set[str], like: Kind) -> list[Chart]:
    """Return a chart for each value without a kind, such as the values of the user's own method."""
    charts = []
    for i, name in enumerate(sorted(set().union(*rows) - known)):
        if values := _of(rows, name)[1]:
            shares = like.id != "value" and name.rpartition("/")[2] not in NOT_FRACTIONS
            percent = shares and all(0 <= value <= 1 for value in values)
            own = replace(like, id=f"{like.id}_{i}", title=f"{like.title}{name}", percent=percent)
            charts.append(_chart(own, [name], rows))
    return charts


def comparison_charts(records: Sequence[RunRecord]) -> list[Chart]:
    """Return a chart for each logged value, with a curve for each run that has logged it.

    The slot of a curve is the index of its run in ``records``. Validations are not drawn, and
    values of the online evaluation only if they have a kind.
    """
    kinds = [(name, kind) for kind in KINDS for name in kind.names]
    scheduled = set().union(*map(scheduled_names, records))
    known = {name for name, _ in kinds} | scheduled | _NOT_DRAWN
    kinds += [(name, Kind(name, LABELS.get(name, name), "Schedule.")) for name in sorted(scheduled)]
    others = {name for record in records for row in record.scalars for name in row} - known
    kinds += [(name, Kind(name, name, "Logged by the method.")) for name in sorted(others)]
    charts = []
    for name, kind in kinds:
        curves = []
        for slot, record in enumerate(records):
            rows = record.evaluations if kind.online else record.scalars
            if any(name in row for row in rows):
                curves.append(Curve(name, record.name, reduced(*_of(rows, name)), slot))
        if curves:
            id, title = f"{kind.id}_{name}", kind.title_of(name)
            charts.append(Chart(id, title, kind.note, curves, [], kind.percent))
    return charts
