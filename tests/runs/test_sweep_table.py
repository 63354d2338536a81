"""The table of a sweep: golden markdown, marks of what differs, means and spreads, the figure."""

from __future__ import annotations

import json

import pytest
from helpers.results_files import results

from sce_video.reporting.result_files import collect_results, parse_result
from sce_video.runs.sweep_plan import Column, Point, Sweep
from sce_video.runs.sweep_table import (
    Measured,
    as_data,
    deviations_of,
    draw_sweep,
    measured_cell,
    render_sweep,
)
from sce_video.utils.files import write_json

K200 = "kinetics200"
CLIPS = "test_dataloader.dataset.pipeline.UniformClips"
GOLDEN = """# A table

|  | K200 | kNN |
| --- | ---: | ---: |
| random (no \\| training) | 20.0 / 21.0 [1, 2] | 52.0 ± 2.8 |
| 0.125 | **64.8** / 64.8 [3] | **70.0** (1 of 3 seeds; interrupted) |
| 0.25 | **64.8** / 64.3 | failed |
| 0.5 | not run / 63.9 | - |

Percent. Mean and standard deviation over seeds. Measured / published (tab:x). Bold: the highest \
measured of a column. [n]: remark below.

- A note.

What differs from the paper's protocol:

1. second
2. first
3. third

Failed:

- 0.25, kNN: train.py: error: no x_y (status 2)
"""


def linear(top1=0.641, pretraining="sce_baseline_lambda_0.125", **options):
    """A result of the linear evaluation on Kinetics-200 in the paper's protocol."""
    stated = {"pretraining": pretraining, **options.pop("benchmark", {})}
    options = {"source": K200, **options}
    content = results(
        {"top1": top1, "effective_rank": 9.5}, "linear", K200, **options, benchmark=stated
    )
    return parse_result("results.json", content)


def own(**metrics):
    """A result on a folder: no benchmark."""
    content = {"metrics": metrics, "protocol": {"kind": "representation", "videos": 9}}
    return parse_result("results.json", content)


def table(*rows, notes=()):
    """A sweep and the cells of its points: name, note, cells by column."""
    columns = tuple(Column(name, "top1") for name in rows[0][2])
    points = tuple(Point(name, note=note) for name, note, _ in rows)
    cells = [row for *_, row in rows]
    sweep = Sweep(points, columns, "s", "A table", "tab:x", notes=notes)
    return sweep, list(zip(points, cells, strict=True))


def test_golden_markdown():
    marked = Measured((20.04,), 1, 21.0, "", ("second", "first"))
    best = Measured((64.84,), 1, 64.8, "", ("third",))
    failed = Measured((), 2, None, "failed: train.py: error: no x_y (status 2)")
    rows = (
        ("random", "no | training", {"K200": marked, "kNN": Measured((50.0, 54.0), 2)}),
        ("0.125", "", {"K200": best, "kNN": Measured((70.04,), 3, None, "interrupted")}),
        ("0.25", "", {"K200": Measured((64.76,), 1, 64.3), "kNN": failed}),
        ("0.5", "", {"K200": Measured((), 1, 63.9, "not run"), "kNN": Measured((), 0)}),
    )
    assert render_sweep(*table(*rows, notes=("A note.",))) == GOLDEN


def test_a_cell_is_the_results_of_all_seeds_with_what_differs():
    good, views = linear(0.648), linear(0.646, tested={f"{CLIPS}.num_clips": 1})
    found = measured_cell([("top1", good), ("top1", views)], 64.8)
    remark = f"test: {CLIPS}.num_clips: 1 -> 10"
    assert found == Measured((64.8, pytest.approx(64.6)), 2, 64.8, "", (remark,))
    assert measured_cell([("effective_rank", good)], None) == Measured((9.5,))
    failed = [("top1", text) for text in ("not run", "failed: it broke")]
    some = measured_cell([*failed, ("top1", linear(0.5, changes={"failures": 3}))], None)
    assert some == Measured((50.0,), 3, None, "failed: it broke", ("3 videos failed",))
    assert measured_cell([("knn_top1", good)], None) == Measured((), 1, None, "has no knn_top1")


def test_a_faithful_result_has_no_mark_and_what_differs_from_the_published_number_is_named():
    assert deviations_of(linear(), "top1", 64.8) == []
    assert deviations_of(own(knn_top1=0.5), "knn_top1", None) == []
    assert deviations_of(linear(pretraining="sce_baseline"), "top1", 63.9) == []
    unknown = "the paper has no number for: Kinetics-200, linear, ResNet3D-18, 8 x 224²"
    for result, metric, published, remark in (
        (linear(), "top1", 64.3, "the paper's number for this setting is 64.8, not 64.3"),
        (linear(), "effective_rank", 64.8, "effective rank, the published number is top-1"),
        (linear(pretraining="sce_free_0_1_0"), "top1", 64.8, unknown),
        (own(top1=0.5), "top1", 64.8, "states no benchmark"),
    ):
        (found,) = deviations_of(result, metric, published)
        assert found.startswith(remark)


def test_the_data_file_has_all_values_and_is_no_result(tmp_path):
    row = ("a", "n", {"K200": Measured((64.0, 65.0), 2, 64.8, "", ("first",))})
    write_json(tmp_path / "s.json", as_data(*table(row, notes=("A note.",))))
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["cells"] == [
        {"point": "a", "note": "n", "column": "K200", "values": [64.0, 65.0], "published": 64.8}
        | {"state": "", "deviations": ["first"]}
    ]
    assert content["title"] == "A table" and content["notes"] == ["A note."]
    (tmp_path / "pretrain").mkdir()
    write_json(tmp_path / "pretrain/done.json", {"seconds": 1})
    write_json(tmp_path / "pretrain/failed.json", {"why": "x"})
    collection = collect_results([tmp_path])
    assert collection.results == [] and collection.skipped == []


def test_the_figure_is_drawn_whatever_is_measured(tmp_path):
    other = Measured((40.0,), 2, 41.0, "", ("x",))
    rows = [
        ("a", "", {"K200": Measured((), 2, 41.0), "kNN": Measured(())}),
        ("b", "", {"K200": Measured((40.0, 42.0), 2), "kNN": other}),
    ]
    draw_sweep(*table(*rows), tmp_path / "s.png")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
