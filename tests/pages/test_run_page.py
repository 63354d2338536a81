"""The page of a run: curves, state, tables, and the whole page in a browser."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from helpers.browser import browser_page

from sce_video.engine.run_json import Choice, Plan, RunDescription
from sce_video.pages.charts import MAX_BINS, comparison_charts, reduced, run_charts
from sce_video.pages.compare_page import render_comparison
from sce_video.pages.parts import sentence_part
from sce_video.pages.run_page import duration, metric_text, render_run_page, tiles
from sce_video.pages.run_record import (
    AlarmLine,
    BadFileLine,
    RunRecord,
    RunResult,
    grouped_alarms,
    run_state,
)

HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def rows_of(count: int, **more: float) -> list[dict[str, Any]]:
    """``count`` logged rows, each of 10 steps, four epochs in all."""
    return [
        {
            "iter": 10 * (i + 1),
            "epoch": 1 + 4 * i // count,
            "loss": 4.0 - 2 * i / count + 0.1 * math.sin(i),
            "infonce": 4.1 - 2 * i / count,
            "lr": 0.1 * i,
            "momentum": 0.9 + 0.1 * i / count,
            "h_rank": 5.0 + i / count,
            "h_std": 0.5 - i / count / 10,
            "data_wait": 0.1,
            "videos_per_s": 100.0 + i % 7,
            "step_seconds": 0.5,
            **more,
        }
        for i in range(count)
    ]


def record_of(rows: list[dict[str, Any]] | None = None, **changes: Any) -> RunRecord:
    """A finished run of four epochs; ``changes`` are fields of it, or further logged values."""
    fields = set(RunRecord.__dataclass_fields__)
    more = {name: value for name, value in changes.items() if name not in fields}
    values: dict[str, Any] = {
        "name": "run",
        "folder": "/runs/run",
        "config": {"model": {"type": "SCE"}, "train_cfg": {"max_epochs": 4}},
        "scalars": rows_of(4, **more) if rows is None else rows,
        "evaluations": [
            {"iter": 10, "epoch": 1, "knn_top1": 0.4, "effective_rank": 5.0},
            {"iter": 40, "epoch": 4, "knn_top1": 0.6, "effective_rank": 9.0},
        ],
        "chance": 3.5,
    }
    return RunRecord(**{**values, **{k: v for k, v in changes.items() if k in fields}})


def bins_by_loop(x, y, first, last):
    """Bin by bin and point by point, as the docstring of ``reduced`` says."""
    found = {}
    for at, value in zip(x, y, strict=True):
        index = min(int((at - first) / ((last - first) / MAX_BINS)), MAX_BINS - 1)
        found.setdefault(index, []).append(value)
    rows = []
    for index, values in sorted(found.items()):
        finite = [v for v in values if math.isfinite(v)]
        middle = first + (index + 0.5) * (last - first) / MAX_BINS
        none = (math.nan,) * 3
        some = (sum(finite) / len(finite), min(finite), max(finite)) if finite else none
        rows.append((middle, *some))
    return np.array(rows).T


def test_long_curves_are_those_of_a_loop_over_bins():
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.integers(1, 40, 5000)).astype(float)
    y = rng.normal(size=5000)
    y[rng.integers(0, 5000, 30)] = np.nan
    y[2000:2100] = np.inf  # more than a bin
    points = reduced(x, y, (0.0, x[-1] + 100))
    expected = bins_by_loop(x, y, 0.0, x[-1] + 100)
    found = np.stack([points.x, points.y, points.low, points.high])
    assert len(points.x) <= MAX_BINS
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert points.not_finite == int((~np.isfinite(y)).sum())


def test_all_logged_values_are_drawn_once_or_named_as_constant():
    record = record_of(tau=0.1, own_value=3.0)
    charts, constant = run_charts(record)
    drawn = [curve.name for chart in charts for curve in chart.curves]
    logged = set().union(*record.scalars, *record.evaluations) - {"iter", "epoch", "tau"}
    assert sorted(drawn) == sorted(logged)
    assert constant == [("tau", 0.1)]
    loss = charts[0]
    assert [curve.label for curve in loss.curves] == ["loss"]
    assert loss.lines == [("chance level", 3.5)]
    assert loss.data()["curves"][0]["y"][0] == record.scalars[0]["loss"]


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"locked": True}, "running", "in epoch 4 of 4"),
        (
            {"history": [{"event": "end", "status": "failed", "message": "NonFiniteLossError: x"}]},
            "failed",
            "NonFiniteLossError: x",
        ),
        ({"history": [{"event": "start"}]}, "interrupted", "without recording an end"),
        ({}, "finished", "All 4 epochs"),
        ({"config": {"train_cfg": {"max_epochs": 9}}}, "interrupted", "epoch 4 of 9"),
        ({"scalars": []}, "unknown", "Nothing was logged"),
    ],
)
def test_the_state_of_a_run(changes, state, words):
    found = run_state(record_of(**changes))
    assert found.name == state and words in found.text


def test_alarms_are_grouped_and_errors_come_first():
    alarms = [
        AlarmLine("queue", "warning", "a", iter=1),
        AlarmLine("collapse", "error", "b", iter=5),
        AlarmLine("queue", "warning", "c", iter=9),
    ]
    over = AlarmLine("lr", "error", "d", iter=2, cleared=7)
    found = grouped_alarms([over, *alarms])
    last = found.pop()
    assert last.name == "lr" and last.cleared == 7  # over: after those that last
    assert "ended at iteration 7" in render_run_page(record_of(alarms=[over]))
    assert [(g.name, g.times, g.message, g.last_iter) for g in found] == [
        ("collapse", 1, "B", 5),
        ("queue", 2, "C", 9),
    ]
    for html in (
        render_run_page(record_of(alarms=alarms)),
        render_comparison([record_of(alarms=alarms)] * 2, {}),
    ):
        assert '<span class="state failed">collapsed</span>' in html


def test_tiles_and_texts():
    found = {tile.title: tile for tile in tiles(record_of())}
    assert found["epoch"].value == "4 of 4" and found["kNN top-1"].value == "60.0 %"
    assert "best 60.0 % at epoch 4" in found["kNN top-1"].detail
    assert found["training time"].value == "20 s"  # 40 steps of 0.5 s
    assert [duration(s) for s in (12, 245, 3600 * 3 + 1200)] == ["12 s", "4 min 5 s", "3 h 20 min"]
    assert metric_text("knn_top1", 0.5) == "50.00 %"
    assert metric_text("effective_rank", 0.5) == "0.5" and metric_text("acc", 12.0) == "12"


def described(text: str) -> RunDescription:
    """A description in which the text stands wherever one can."""
    plan = Plan(text, (text, "2  cores"), (Choice(text, [text, 8], text),), text, (text,))
    return RunDescription(text, {text: text}, plan, {}, {"code": {"commit": text}})


def test_choices_are_a_table():
    """Also those with several spaces in a row, at which no text is split."""
    html = render_run_page(record_of(description=described("a  b")))
    assert "<tr><td>a  b</td><td>[&#39;a  b&#39;, 8]</td><td>a  b</td></tr>" in html
    assert ">note: a  b</p>" in html and ">2  cores</p>" in html and "Commit" in html
    assert "Chosen settings" not in render_run_page(record_of())


def test_names_of_strangers_are_text():
    record = record_of(
        name=HOSTILE,
        folder=HOSTILE,
        config_text=HOSTILE,
        bad_files=[BadFileLine(HOSTILE + "\udcff", 2, HOSTILE)],
        data={"data_root": HOSTILE, "classes": [HOSTILE]},
        alarms=[AlarmLine(HOSTILE, message=HOSTILE)],
        history=[{"event": "start", "command": [HOSTILE]}],
        description=described(HOSTILE),
        notes=[HOSTILE],
        **{HOSTILE: 1.0},
    )
    for html in (render_run_page(record), render_comparison([record, record], {HOSTILE: "ab"})):
        assert HOSTILE not in html and "</script><img" not in html
        html.encode("utf-8")


def points_drawn(page) -> int:
    return page.evaluate("document.querySelectorAll('.plot .scatterlayer path.js-line').length")


def open_page(page, html, folder):
    file = folder / "page.html"
    file.write_text(html)
    page.goto(file.as_uri())
    page.wait_for_function("document.body.dataset.charts", timeout=60_000)


def test_the_page_in_a_browser(tmp_path):
    record = record_of(rows=rows_of(3000))
    html = render_run_page(record, [sentence_part("views", "Views", "None.")])
    assert len(html) < 8_000_000
    with browser_page() as page:
        open_page(page, html, tmp_path)
        charts = page.locator(".plot").count()
        assert page.evaluate("Number(document.body.dataset.charts)") == charts > 5
        assert points_drawn(page) >= charts
        page.locator("#plot-loss").scroll_into_view_if_needed()
        page.locator("#plot-loss .nsewdrag").hover()
        page.wait_for_selector("#plot-loss .hoverlayer .legend", timeout=20_000)
        label = page.locator("#plot-loss .hoverlayer").text_content()
        assert re.search(r"iteration [\d,]+", label) and "loss" in label and " to " in label
        page.locator("#plot-loss ~ .key button", has_text="chance level").click()
        assert page.evaluate("document.getElementById('plot-loss').data[0].visible") is False
        page.evaluate("Plotly.relayout('plot-loss', {'xaxis.range[0]': 10, 'xaxis.range[1]': 50})")
        page.wait_for_function(
            "[...document.querySelectorAll('.plot')].every(p => p.layout.xaxis.range[1] === 50)"
        )


def test_on_a_phone_nothing_is_wider_than_the_screen(tmp_path):
    record = record_of(
        name="a_long_name_" * 6,
        notes=["/a/very/long/path/" * 20],
        bad_files=[BadFileLine("/long/path/" * 12, 1, "broken " * 20)],
    )
    settings = {"model.a.b.c.d": ["1" * 60, "2" * 60]}
    pages = [render_run_page(record), render_comparison([record, record], settings)]
    with browser_page(width=390, dark=True, touch=True) as page:
        for html in pages:
            open_page(page, html, tmp_path)
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            red, *_ = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).color"))
            assert int(red) > 128
            assert points_drawn(page)


def test_the_comparison_draws_a_curve_of_every_run_and_marks_the_best():
    first = record_of(
        name="first", results={"results.json": RunResult({"knn_top1": 0.5, "loss": 1.0})}
    )
    second = record_of(name="second", results={"results.json": RunResult({"knn_top1": 0.75})})
    charts = comparison_charts([first, second])
    assert all([c.label for c in chart.curves] == ["first", "second"] for chart in charts)
    html = render_comparison([first, second], {"model.tau": ["0.1", "0.2"]})
    assert '<td class="best">75.00 %</td>' in html and '<td class="best">50' not in html
    assert "model.tau" in html
    assert html.count(">first</button>") == len(charts)
