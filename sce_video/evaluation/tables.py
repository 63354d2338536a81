"""Metrics as text for a log."""

from __future__ import annotations

from typing import Any

#: Numbers that are no shares from 0 to 1.
_PLAIN = ("feature_std", "effective_rank")
_ONE_VIEW = "one_view_"


def format_metrics(metrics: dict[str, float], provenance: dict[str, Any]) -> str:
    """A title and a line per metric; with one-view numbers, a column of these beside all views."""
    title = _title(provenance)
    if any(name.startswith(_ONE_VIEW) for name in metrics):
        return _format_views(metrics, provenance, title)
    return format_table(metrics, title)


def format_table(metrics: dict[str, float], title: str) -> str:
    """Two columns: shares from 0 to 1 in percent, other numbers as they are."""
    width = max(map(len, metrics))
    lines = [title]
    for name, value in metrics.items():
        text = f"{value:8.2f}" if name in _PLAIN else f"{100 * value:8.2f} %"
        lines.append(f"  {name:<{width}} {text}")
    return "\n".join(lines)


def _format_views(metrics: dict[str, float], provenance: dict[str, Any], title: str) -> str:
    views = provenance["views"]
    many = f"{provenance.get('clips', views)} x {provenance.get('crops', 1)} views"
    lines = [title, f"  {'':<22}{'1 view':>10}{many:>16}"]
    for name, value in metrics.items():
        if name.startswith(_ONE_VIEW):
            continue
        one = metrics.get(_ONE_VIEW + name)
        first = f"{'-':>10}" if one is None else f"{100 * one:>8.2f} %"
        lines.append(f"  {name:<22}{first}{100 * value:>14.2f} %")
    return "\n".join(lines)


def _title(provenance: dict[str, Any]) -> str:
    checkpoint = provenance["checkpoint"]
    name = checkpoint.get("path") or checkpoint["source"]
    against = ""
    if "bank_videos" in provenance:
        against = f" against {provenance['bank_videos']} of the gallery"
    elif "groups" in provenance:
        against = f", leaving out one of {len(provenance['groups'])} groups"
    return (
        f"{name}: {provenance['videos']} videos{against}, {provenance['failures']} could not be "
        f"decoded, {provenance['views']} views of each"
    )
