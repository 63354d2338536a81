"""Choice of the logged values that a page draws, with chart and name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sce_video.pages.run_record import Row, RunRecord
from sce_video.utils.metric_names import NOT_FRACTIONS

#: Number of bins in a long curve, more than a wide screen has pixels.
MAX_BINS = 1000
#: Curves with at most this many points are kept as they are.
MAX_POINTS = 2 * MAX_BINS


@dataclass(frozen=True)
class Points:
    """A curve of n points."""

    x: np.ndarray  # iterations, or centres of bins if the curve is reduced
    y: np.ndarray  # values, or means of bins if reduced; NaN if a bin has no finite value
    low: np.ndarray | None = None  # smallest value of each bin; None if it is not reduced
    high: np.ndarray | None = None
    not_finite: int = 0  # logged values that were NaN or infinite


def reduced(
    x: Sequence[float], y: Sequence[float], span: tuple[float, float] | None = None
) -> Points:
    """Return the points of a curve, or of a long one the mean, minimum and maximum of each bin.

    Bins are equally wide on ``span``, first and last iteration of all curves of the log, so that
    they share their x: the middle of each bin that holds a point.
    """
    at, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    finite = np.isfinite(values)
    wrong = int((~finite).sum())
    if len(at) <= MAX_POINTS:
        return Points(at, np.where(finite, values, np.nan), not_finite=wrong)
    first, last = span or (at[0], at[-1])
    width = (last - first) / MAX_BINS or 1.0
    # The last iteration lies on the upper edge of the last bin.
    bins = np.clip(((at - first) / width).astype(np.int64), 0, MAX_BINS - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    # reduceat goes from each start to the next one; bins without a point have no start.
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
    """A kind of chart."""

    id: str
    title: str  # what is drawn
    note: str  # how to read it
    names: Mapping[str, str] = field(default_factory=dict)  # labels, by the names of logged values
    percent: bool = False  # whether values are shares, drawn in percent
    online: bool = False  # whether values come from the online evaluation
    apart: bool = False  # whether each value has its own chart, because sizes differ

    def title_of(self, name: str) -> str:
        """Return the title of a chart of one value."""
        several = self.apart or len(self.names) > 1
        return f"{self.title}: {LABELS.get(name, name)}" if several else self.title


KINDS = (
    Kind(
        "loss",
        "Loss",
        "It should fall below chance level, the loss of a network that tells no samples apart.",
        {"loss": "loss"},
    ),
    Kind(
        "part",
        "Loss",
        "A part of the loss, before its weight.",
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
        "Nearest neighbours of labelled videos: how good the representation is by now.",
        {"knn_top1": "top-1", "knn_top5": "top-5"},
        percent=True,
        online=True,
    ),
    Kind(
        "rank",
        "Effective rank of the representation",
        "In how many directions the features of a batch differ. Close to 1: collapsed.",
        {"h_rank": "effective rank of h"},
    ),
    Kind(
        "spread",
        "Spread per dimension",
        "Standard deviation of normalised features (h) and embeddings (z), about 1 when well "
        "spread. Close to 0: collapsed.",
        {"h_std": "representation h", "z_std": "embedding z"},
    ),
    Kind(
        "similarity",
        "Similarity of query and key",
        "Mean cosine of two views of one video. 1 from the first steps on: collapsed.",
        {"positive_similarity": "cosine"},
    ),
    Kind(
        "entropy",
        "Entropy of the targets",
        "In nats; 0 when all weight is on one sample.",
        {"target_entropy": "targets", "code_entropy": "codes"},
    ),
    Kind(
        "online_rank",
        "Online evaluation: effective rank",
        "Of the features of the evaluated videos.",
        {"effective_rank": "effective rank"},
        online=True,
    ),
    Kind(
        "online_spread",
        "Online evaluation: spread per dimension",
        "Of the features of the evaluated videos, about 1 when well spread.",
        {"feature_std": "spread per dimension"},
        online=True,
    ),
    Kind(
        "grad_norm",
        "Norm of the gradient",
        "Spikes go with a loss that jumps.",
        {"grad_norm": "norm"},
    ),
    Kind(
        "data_wait",
        "Share of time spent waiting for data",
        "Above 30 % the decoders are too slow for the network: more workers, or repacked videos.",
        {"data_wait": "data wait"},
        percent=True,
    ),
    Kind("rate", "Videos per second", "Of all processes together.", {"videos_per_s": "videos/s"}),
    Kind(
        "seconds",
        "Seconds of a step",
        "The whole step, and the part of it that waits for data.",
        {"step_seconds": "step", "data_seconds": "data"},
    ),
    Kind(
        "repeats",
        "RGB differences of frames that repeat",
        "Share of the clips of RGB differences in which frames repeat, and that stay RGB for it.",
        {"diff_repeats": "frames repeat", "diff_as_rgb": "stay RGB"},
        percent=True,
    ),
    Kind("memory", "Memory of the GPU", "Largest so far, in MB.", {"memory": "memory"}),
)

#: Names of the curves, by logged value.
LABELS = {name: label for kind in KINDS for name, label in kind.names.items()} | {
    "lr": "learning rate",
    "momentum": "target momentum",
    "lambda_": "lambda",
}


@dataclass(frozen=True)
class Curve:
    """A named curve. ``slot`` selects its colour.

    Slots 0 to 7 are the colours of the theme. From 8 on, they repeat and the line is dashed.
    ``name`` is the name of the logged value. ``label`` is the text of the legend, in a comparison
    the run.
    """

    name: str
    label: str
    points: Points
    slot: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart with one or several curves, and constant lines (label, value)."""

    id: str
    title: str
    note: str
    curves: list[Curve]
    lines: list[tuple[str, float]] = field(default_factory=list)
    percent: bool = False

    def data(self) -> dict[str, Any]:
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
        """Return the number of values that cannot be drawn."""
        return sum(curve.points.not_finite for curve in self.curves)


def _numbers(values: Any) -> list[float | int | None] | None:
    """Round values to six digits. Values that are not finite become None, as JSON has no NaN."""
    if values is None:
        return None
    found: list[float | int | None] = []
    for value in values.tolist():
        if not math.isfinite(value):
            found.append(None)
        else:  # in the page, 3 is shorter than 3.0
            found.append(int(value) if value == int(value) else float(f"{value:.6g}"))
    return found


def scheduled_names(record: RunRecord) -> set[str]:
    """Return names of values that the run's schedules set, and usual names of such values."""
    hooks = record.config.get("custom_hooks") or []
    hooks = hooks.values() if isinstance(hooks, dict) else hooks
    named = (hook.get("model") for hook in hooks if isinstance(hook, dict))
    return set(_SCHEDULES).union(*(model for model in named if isinstance(model, dict)))


def run_charts(record: RunRecord) -> tuple[list[Chart], list[tuple[str, float]]]:
    """Return the charts of a run, and the scheduled values (label, value) that are constant.

    A chart of :data:`KINDS` is left out if none of its values was logged. Schedules that vary
    follow the losses. Values that belong to no kind come last, each in its own chart: first values
    of the log, then of the online evaluation, then of the validation.
    """
    rows, online = record.scalars, record.evaluations
    charts = []
    for kind in KINDS:
        source = online if kind.online else rows
        lines: list[tuple[str, float]] = []
        if kind.id == "loss" and record.chance:
            lines = [("chance level", record.chance)]
        elif kind.id == "loss":
            kind = replace(kind, note="What is minimised.")
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
    evaluated = Kind("online", "Online evaluation: ", "Of the features of the evaluated videos.")
    validated = Kind("val", "Validation: ", "Of the validation set.")
    others = _other_charts(rows, known, Kind("value", "", "Logged by the method."))
    others += _other_charts(online, known | {"seconds"}, evaluated)
    others += _other_charts(record.validations, set(_NOT_DRAWN), validated)
    losses = sum(chart.id.startswith(("loss", "part")) for chart in charts)
    return [*charts[:losses], *schedules, *charts[losses:], *others], constant


def _of(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
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
    """Return the schedules' charts, the learning rate first, and (label, value) if constant."""
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
    """Return a chart for each value that belongs to no kind, such as a custom method's values."""
    charts = []
    for i, name in enumerate(sorted(set().union(*rows) - known)):
        if values := _of(rows, name)[1]:
            shares = like.id != "value" and name.rpartition("/")[2] not in NOT_FRACTIONS
            percent = shares and all(0 <= value <= 1 for value in values)
            own = replace(like, id=f"{like.id}_{i}", title=f"{like.title}{name}", percent=percent)
            charts.append(_chart(own, [name], rows))
    return charts


def comparison_charts(records: Sequence[RunRecord]) -> list[Chart]:
    """Return a chart for every value that a run has logged, with a curve for each run.

    The slot of a curve is the place of its run in ``records``; a run without the value has no
    curve. Validations are not drawn, nor are values of the online evaluation without a kind.
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
