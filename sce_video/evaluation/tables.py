"""Metrics as text for the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sce_video.utils.metric_names import NOT_FRACTIONS, is_trivial

_ONE_VIEW = "one_view_"


#: A confidence interval by metric; None where it is not defined.
Intervals = Mapping[str, Sequence[float] | None]


def format_metrics(
    metrics: dict[str, float], provenance: dict[str, Any], intervals: Intervals | None = None
) -> str:
    """A title and a line per metric; with one-view metrics, a column for one and for all views.

    The top-k accuracy of k classes or fewer is left out: it is always 1.

    Args:
        metrics: Name to value; fractions from 0 to 1 are shown in percent.
        provenance: See :func:`~sce_video.evaluation.provenance.describe_run`.
        intervals: 95 % intervals of metrics; they stand behind the value over all views.
    """
    title = _title(provenance)
    classes = provenance.get("num_classes", provenance.get("test", {}).get("num_classes"))
    metrics = telling(metrics, classes)
    if any(name.startswith(_ONE_VIEW) for name in metrics):
        return _format_views(metrics, provenance, title, intervals)
    return format_table(metrics, title, intervals)


def telling(metrics: dict[str, float], num_classes: Any) -> dict[str, float]:
    """The metrics without those that are 1 for so few classes, unless there are no others."""
    kept = {name: value for name, value in metrics.items() if not is_trivial(name, num_classes)}
    return kept or metrics


def format_table(metrics: dict[str, float], title: str, intervals: Intervals | None = None) -> str:
    """A title and a line per metric: fractions from 0 to 1 in percent, other values as they are."""
    width = max(map(len, metrics), default=0)
    lines = [
        f"  {name:<{width}} {_cell(name, value, 8)}{_interval(name, intervals)}".rstrip()
        for name, value in metrics.items()
    ]
    return "\n".join([title, *lines])


def _cell(name: str, value: float | None, width: int) -> str:
    """A right-aligned value of ``width`` characters and its unit; a dash for None."""
    if value is None:
        return f"{'-':>{width}}  "
    if name in NOT_FRACTIONS or not 0 <= value <= 1:
        return f"{value:{width}.2f}  "
    return f"{100 * value:{width}.2f} %"


def _interval(name: str, intervals: Intervals | None) -> str:
    """``  [81.20, 85.90]`` in percent; empty for a metric without an interval."""
    if intervals is None or name not in intervals:
        return ""
    ends = intervals[name]
    if ends is None:
        return "  [no interval: one video]"
    return f"  [{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"


def _format_views(
    metrics: dict[str, float], provenance: dict[str, Any], title: str, intervals: Intervals | None
) -> str:
    views = provenance["views"]
    many = f"{provenance.get('clips', views)} x {provenance.get('crops', 1)} views"
    lines = [title, f"  {'':<22}{'1 view':>10}{many:>16}"]
    for name, value in metrics.items():
        if name.startswith(_ONE_VIEW):
            continue
        one = _cell(name, metrics.get(_ONE_VIEW + name), 8)
        cells = f"{one}{_cell(name, value, 14)}{_interval(name, intervals)}"
        lines.append(f"  {name:<22}{cells}".rstrip())
    return "\n".join(lines)


def _title(provenance: dict[str, Any]) -> str:
    checkpoint = provenance["checkpoint"]
    name = checkpoint.get("path") or checkpoint["source"]
    against = ""
    if "bank_videos" in provenance:
        against = f" against {provenance['bank_videos']} of the gallery"
    elif "groups" in provenance:
        against = f", leaving out one of {len(provenance['groups'])} groups"
    chosen = ""
    if "chosen_on_test" in provenance:
        data = "these very samples" if provenance["chosen_on_test"] else "other samples"
        chosen = f" (epoch {provenance['epochs']}, chosen on {data}; the result is the last)"
    return (
        f"{name}{chosen}: {provenance['videos']} videos{against}, {provenance['failures']} could "
        f"not be decoded, {provenance['views']} views of each"
    )


def format_columns(
    metrics: dict[str, float], columns: Sequence[str], measures: dict[str, str], title: str
) -> str:
    """A line per measure and a column per suffix of its metric names; absent ones are a dash.

    Args:
        metrics: Values by name, ``<measure>_<column>`` and, for a second line,
            ``<measure>_<column>_from_<first column>``.
        columns: Suffixes.
        measures: Prefix of the metric names to the title of its line.
        title: Of the table.
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
