"""Page of one run as self-contained HTML."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from sce_video.pages.charts import run_charts
from sce_video.pages.parts import Part, plotly_script
from sce_video.pages.run_record import (
    RunRecord,
    RunResult,
    TrainingStart,
    grouped_alarms,
    lasting_errors,
    run_state,
)
from sce_video.utils.html_template import render_template
from sce_video.utils.metric_names import NOT_FRACTIONS
from sce_video.utils.records import at
from sce_video.utils.run_files import RESULTS
from sce_video.version import __version__

#: Maximum number of entries shown from a list, for example class names.
_MAX_CLASSES = 24
#: Names under which the page shows facts about the training set.
_DATA_NAMES = {
    "type": "Dataset",
    "samples": "Samples",
    "data_root": "Folder",
    "ann_file": "List",
    "num_classes": "Classes",
    "classes": "Class names",
    "films": "Films",
    "name": "Name",
    "split": "Split",
    "kind": "Kind",
}


class Tile(NamedTuple):
    """Number at the top of a page, with its name and a detail."""

    title: str
    value: str
    detail: str = ""


def tiles(record: RunRecord) -> list[Tile]:
    """Return those numbers that summarise a run and were logged.

    They are, in this order: epoch, loss, kNN and validation top-1 (the newest, and the best with
    its epoch), test top-1 with its interval, effective rank, videos/s, data wait, and training time
    (the sum over all starts).
    """
    last = record.last
    found = []
    if "epoch" in last:
        of = f" of {record.max_epochs}" if record.max_epochs else ""
        # Training may continue for some iterations after the last row of the log.
        reached = max(last["iter"], (record.end and record.end.iter) or 0)
        found.append(Tile("epoch", f"{last['epoch']}{of}", f"iteration {reached:,}"))
    if "loss" in last:
        chance = f"chance level {record.chance:.3f}" if record.chance else ""
        found.append(Tile("loss", number_text(last["loss"]), chance))
    sources = (
        ("kNN top-1", "knn_top1", record.evaluations),
        ("validation top-1", "top1", record.validations),
    )
    for title, name, source in sources:
        if rows := [row for row in source if name in row]:
            best = max(rows, key=lambda row: row[name])
            detail = f"best {100 * best[name]:.1f} % at epoch {best.get('epoch', '?')}"
            found.append(Tile(title, f"{100 * rows[-1][name]:.1f} %", detail))
    tested = record.result(RESULTS)
    if (top1 := tested.value("top1")) is not None:
        between = interval_text(tested.interval("top1")).strip("[]").replace(", ", " to ")
        found.append(Tile("test top-1", f"{100 * top1:.1f} %", between))
    if "h_rank" in last:
        found.append(Tile("effective rank", number_text(last["h_rank"]), "of the representation"))
    if "videos_per_s" in last:
        found.append(Tile("videos/s", number_text(last["videos_per_s"])))
    if "data_wait" in last:
        found.append(Tile("data wait", f"{100 * last['data_wait']:.0f} %", "of the time"))
    # Each row contains the mean over the steps since the previous row, so multiply by their number.
    seconds, before = 0.0, 0
    for row in record.scalars:
        seconds += row.get("step_seconds", 0.0) * max(0, row["iter"] - before)
        before = row["iter"]
    if seconds:
        found.append(Tile("training time", duration(seconds)))
    return found


def number_text(value: Any) -> str:
    """Format a number with four digits and thousands separators."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1000 and value == value and abs(value) != float("inf"):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format seconds as ``3 h 20 min``, ``4 min 5 s`` or ``12 s``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24) if hours >= 72 else (0, hours)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min"


def moment(seconds: float | None) -> str:
    """Format unix time as local date and time; empty if it is unknown or impossible."""
    if seconds is None or not 0 < seconds < 1e11:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def provenance_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Return name and value of everything known that the run depends on."""
    starts = len(record.starts)
    start = record.starts[-1] if record.starts else TrainingStart()
    environment = {} if record.description is None else record.description.environment
    rows = [
        ("Folder", record.folder),
        ("Recipe", record.recipe),
        ("Method", record.method),
        ("Network", network(record.config)),
        ("Started", moment(start.time)),
        ("Ended", moment(None if record.end is None else record.end.time)),
        ("Starts", f"{starts}, the last one resumed" if starts > 1 else ""),
        ("Resumed from", start.resumed_from),
        ("Device", start.device),
        ("Processes", start.ranks),
        ("Commit", at(environment, "code.commit")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in start.versions.items())),
        ("Own parts", ", ".join(start.own_parts)),
        ("Checkpoints", ", ".join(record.checkpoints[:6])),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def network(config: Mapping[str, Any]) -> str:
    """Describe a config's backbone as ``ResNet3dSlowPath, depth 18, base_channels 16``."""
    backbone = at(config, "model.backbone", dict) or {}
    simple = [
        f"{name} {value}"
        for name, value in backbone.items()
        if name != "type" and isinstance(value, int | float | str) and not isinstance(value, bool)
    ]
    return ", ".join([str(at(backbone, "type") or ""), *simple]).strip(", ")


def data_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Return name and value of the facts about the training set."""
    rows = []
    for name, value in record.data.items():
        if isinstance(value, list):
            more = f" and {len(value) - _MAX_CLASSES} more" if len(value) > _MAX_CLASSES else ""
            value = ", ".join(map(str, value[:_MAX_CLASSES])) + more
        value = number_text(value) if name == "samples" else value
        rows.append((_DATA_NAMES.get(name, name), value))
    return [(name, str(value)) for name, value in rows]


def result_rows(result: RunResult) -> list[tuple[str, str]]:
    """Return name and value of the metrics in a result file. Fractions are in percent."""
    return [
        (name, f"{metric_text(name, value)} {interval_text(result.interval(name))}".rstrip())
        for name, value in result.metrics.items()
    ]


def interval_text(ends: Sequence[float] | None) -> str:
    """Format an interval in percent as ``[81.20, 85.90]``; empty for None."""
    return "" if ends is None else f"[{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"


def metric_text(name: str, value: float) -> str:
    """Format a metric: a fraction in percent, any other number with four digits."""
    if name.rpartition("/")[2] in NOT_FRACTIONS or not 0 <= value <= 1:
        return number_text(value)
    return f"{100 * value:.2f} %"


_PACKAGE = "sce_video.pages"
#: Maximum number of unreadable files to list. If there are more, the page states how many.
_MAX_BAD_FILES = 200


def render_run_page(
    record: RunRecord, parts: Sequence[Part] = (), notes: Sequence[str] = ()
) -> str:
    """Render the page of a run. All content is escaped, and the page loads nothing.

    Args:
        record: Record of the run.
        parts: Further parts of the page, such as views, neighbours and map, in this order.
        notes: Sentences about parts that could not be created.

    Raises:
        MissingPackageError: If the page contains charts and plotly is not installed.
    """
    charts, constant = run_charts(record)
    alarms = grouped_alarms(record.alarms)
    words = record.starts[-1].command if record.starts else []
    samples = at(record.data, "samples", int)
    facts = [
        record.recipe and f"recipe {record.recipe}",
        record.method,
        str(at(record.config, "model.backbone.type") or ""),
        f"{number_text(samples)} samples" if samples else "",
    ]
    values = {
        "title": record.name,
        "lead": " · ".join(filter(None, facts)),
        "state": run_state(record),
        "running": record.locked,
        "alarms": alarms,
        "errors": lasting_errors(alarms),
        "alarms_known": bool(record.alarms or record.history),
        "compared": not any(part.id == "random-weights" for part in parts) or bool(record.compared),
        "tiles": tiles(record),
        "notes": [note[:1].upper() + note[1:] for note in (*record.notes, *notes)],
        "charts": charts,
        "constant": [(label, number_text(value)) for label, value in constant],
        "parts": parts,
        "results": {name: result_rows(result) for name, result in record.results.items()},
        "data": data_rows(record),
        **_bad_files(record),
        "command": shlex.join(words),
        "provenance": provenance_rows(record),
        "plan": record.description and record.description.plan,
        "changes": record.changes,
        "config_text": record.config_text,
        **page_frame([chart.data() for chart in charts], bool(charts or parts)),
    }
    return render_template(_PACKAGE, "run.html", values)


def page_frame(charts: list[dict[str, object]], draws: bool) -> dict[str, object]:
    """Return the template values that every page needs; ``draws`` includes Plotly."""
    return {
        "chart_data": charts,
        "plotly": Markup(plotly_script()) if draws else "",
        "made": moment(time.time()),
        "version": __version__,
    }


def _bad_files(record: RunRecord) -> dict[str, object]:
    """Return the template values about files that could not be decoded."""
    files, samples = record.bad_files, at(record.data, "samples", int)
    share = f" of {number_text(samples)}" if samples else ""
    return {
        "bad_files": files[:_MAX_BAD_FILES],
        "bad_files_more": max(0, len(files) - _MAX_BAD_FILES),
        "bad_count": f"{len(files)}{share} file{'s' * (len(files) != 1)} could not be decoded",
        "bad_total": sum(file.count for file in files),
    }
