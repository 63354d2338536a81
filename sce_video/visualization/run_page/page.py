"""The page of one run as self-contained HTML."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from sce_video.utils.html_template import render_template
from sce_video.version import __version__
from sce_video.visualization.page_parts import Part
from sce_video.visualization.plotly_script import plotly_script
from sce_video.visualization.run_page.charts import run_charts
from sce_video.visualization.run_page.record import RunRecord
from sce_video.visualization.run_page.state import grouped_alarms, lasting_errors, state_of
from sce_video.visualization.run_page.tables import (
    command_of,
    data_rows,
    moment,
    number,
    plan_of,
    provenance_rows,
    result_rows,
    tiles,
)

_PACKAGE = "sce_video.visualization"
_MAX_BAD_FILES = 200


def render_run_page(
    record: RunRecord, parts: Sequence[Part] = (), notes: Sequence[str] = ()
) -> str:
    """The page of a run; everything in it is escaped and nothing is loaded.

    Args:
        record: What the folder holds.
        parts: Views, neighbours, map, in their order.
        notes: Sentences on parts that could not be made.
    """
    charts, constant = run_charts(record)
    alarms = grouped_alarms(record.alarms)
    values = {
        "title": record.name,
        "lead": _lead(record),
        "state": state_of(record),
        "running": record.locked,
        "alarms": alarms,
        "errors": lasting_errors(alarms),
        "alarms_known": bool(record.alarms or record.history),
        "tiles": tiles(record),
        "notes": [note[:1].upper() + note[1:] for note in (*record.notes, *notes)],
        "charts": charts,
        "constant": [(label, number(value)) for label, value in constant],
        "parts": parts,
        "results": {
            name: result_rows(metrics, record.intervals.get(name, {}))
            for name, metrics in record.results.items()
        },
        "data": data_rows(record),
        **_bad_files(record),
        "command": command_of(record),
        "provenance": provenance_rows(record),
        "plan": plan_of(record.config),
        "changes": record.changes,
        "config_text": record.config_text,
        **page_frame([chart.data() for chart in charts], bool(charts or parts)),
    }
    return render_template(_PACKAGE, "run.html", values)


def page_frame(charts: list[dict[str, Any]], draws: bool) -> dict[str, Any]:
    """Values that every page needs; ``draws`` is whether anything on it needs Plotly."""
    return {
        "chart_data": charts,
        "plotly": Markup(plotly_script()) if draws else "",
        "made": moment(time.time()),
        "version": __version__,
    }


def _lead(record: RunRecord) -> str:
    samples = record.data.get("samples")
    words = [
        record.method,
        str((record.config.get("model") or {}).get("backbone", {}).get("type", "")),
    ]
    if record.recipe:
        words.insert(0, f"recipe {record.recipe}")
    if samples:
        words.append(f"{number(samples)} samples")
    return " · ".join(filter(None, words))


def _bad_files(record: RunRecord) -> dict[str, Any]:
    rows = [
        (str(row.get("path", "?")), row.get("count", 1), str(row.get("error", "")))
        for row in record.bad_files
    ]
    samples = record.data.get("samples")
    share = f" of {number(samples)}" if isinstance(samples, int) and samples else ""
    return {
        "bad_files": rows[:_MAX_BAD_FILES],
        "bad_files_more": max(0, len(rows) - _MAX_BAD_FILES),
        "bad_count": f"{len(rows)}{share} file{'s' * (len(rows) != 1)} could not be decoded",
        "bad_total": sum(count for _, count, _ in rows if isinstance(count, int)),
    }
