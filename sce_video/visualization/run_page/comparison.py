"""The page of several runs beside each other, as self-contained HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sce_video.utils.html_template import render_template
from sce_video.visualization.run_page.charts import comparison_charts
from sce_video.visualization.run_page.differences import Chance
from sce_video.visualization.run_page.page import page_frame
from sce_video.visualization.run_page.record import RunRecord
from sce_video.visualization.run_page.state import grouped_alarms, lasting_errors, state_of
from sce_video.visualization.run_page.tables import interval_text, metric_text, tiles

#: Colours of the theme.
_COLOURS = 8


def render_comparison(
    records: Sequence[RunRecord],
    settings: Mapping[str, Sequence[str]],
    chance: Chance | None = None,
) -> str:
    """The page of two or more runs.

    Args:
        records: With different names.
        settings: Values in each run of the settings in which they differ, by name.
        chance: Means over seeds and paired tests.
    """
    charts = comparison_charts(records)
    runs = [
        {
            "name": record.name,
            "folder": record.folder,
            "slot": slot % _COLOURS,
            "dashed": slot >= _COLOURS,
            "method": record.method,
            "state": state_of(record),
            "alarms": grouped_alarms(record.alarms),
            "errors": lasting_errors(grouped_alarms(record.alarms)),
            "notes": record.notes,
        }
        for slot, record in enumerate(records)
    ]
    values = {
        "title": " · ".join(record.name for record in records),
        "runs": runs,
        "standing": _standing(records),
        "results": _results(records),
        "chance": chance or Chance(),
        "settings": settings,
        "charts": charts,
        **page_frame([chart.data() for chart in charts], bool(charts)),
    }
    return render_template("sce_video.visualization", "compare.html", values)


def _standing(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The tiles of all runs: name to values, empty where a run has none."""
    found = [{tile.title: tile.value for tile in tiles(record)} for record in records]
    names = dict.fromkeys(name for one in found for name in one)
    return {name: [one.get(name, "") for one in found] for name in names}


def _results(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """A row for each metric of the files with results, with the best value marked.

    Metrics that are fractions are better when larger; of others none is marked.
    """
    rows = []
    keys = dict.fromkeys(
        (file, name)
        for record in records
        for file, found in record.results.items()
        for name in found
    )
    for file, name in keys:
        values = [record.results.get(file, {}).get(name) for record in records]
        known = [value for value in values if value is not None]
        fractions = all(metric_text(name, value).endswith("%") for value in known)
        best = max(known) if fractions and len(set(known)) > 1 else None
        cells = [
            {
                "text": "" if v is None else metric_text(name, v),
                "interval": interval_text(record.intervals.get(file, {}).get(name)),
                "best": v is not None and v == best,
            }
            for v, record in zip(values, records, strict=True)
        ]
        rows.append({"name": name, "file": file, "cells": cells})
    return rows
