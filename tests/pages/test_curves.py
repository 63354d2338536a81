"""Reading the logs of a work directory."""

from __future__ import annotations

import json
import math

import pytest

from sce_video.engine.restarts import append_row
from sce_video.pages.run_record import (
    read_alarms,
    read_history,
    read_online_evaluations,
    read_scalars,
)


def log(folder, stamp, rows):
    file = folder / stamp / "vis_data" / "scalars.json"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(iteration, loss):
    return {"iter": iteration, "loss": loss, "infonce": loss + 1, "h_rank": 3.0}


def test_steps_that_a_crash_has_lost_are_not_drawn(tmp_path):
    """The second start resumed at 10, the third began from scratch."""
    of_mmengine = {"time": 0.5, "data_time": 0.1}
    log(tmp_path, "20260101_000000", [{**row(i, 4.0), **of_mmengine} for i in (10, 20, 30, 40)])
    assert read_scalars(tmp_path)[0] == {**row(10, 4.0), "step_seconds": 0.5, "data_seconds": 0.1}
    log(tmp_path, "20260102_000000", [row(20, 3.0)])
    assert [(r["iter"], r["loss"]) for r in read_scalars(tmp_path)] == [(10, 4.0), (20, 3.0)]
    log(tmp_path, "20260103_000000", [])  # a start that failed
    log(tmp_path, "20260104_000000", [row(10, 9.0)])
    assert [(r["iter"], r["loss"]) for r in read_scalars(tmp_path)] == [(10, 9.0)]


def test_nothing_logged(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_scalars(tmp_path)
    assert read_online_evaluations(tmp_path) == []


def test_a_log_of_a_killed_run_and_a_damaged_one(tmp_path):
    log = tmp_path / "run" / "vis_data" / "scalars.json"
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 1.0, "iter": 1}\n{"loss": 2.0, "iter": 2, "note": "x"}\n{"loss": 3')
    assert read_scalars(tmp_path) == [{"loss": 1.0, "iter": 1}, {"loss": 2.0, "iter": 2}]
    (tmp_path / "online_evaluation.jsonl").write_text('{"iter": 3, "knn_top1": 0.5}\n{"iter": ')
    assert read_online_evaluations(tmp_path) == [{"iter": 3, "knn_top1": 0.5}]
    for line, reason in (
        ("[1]", "is not an object"),
        ('{"loss": 1, "iter": []}', "not a whole number"),
        ('{"loss": 1, "iter": 99999999999999999999}', "not a whole number"),
    ):
        log.write_text(f'{{"loss": 1.0, "iter": 1}}\n{line}\n')
        with pytest.raises(ValueError, match=rf"scalars\.json, line 2.*{reason}"):
            read_scalars(tmp_path)


def metrics(folder, rows):
    for each in rows:
        append_row(folder / "metrics.jsonl", {"kind": "train", "time": 1e9, **each})


def test_the_rows_of_the_training_in_metrics_jsonl(tmp_path):
    log(tmp_path, "20260101_000000", [row(10, 9.0)])  # of an mmengine backend, not asked
    metrics(tmp_path, [row(10, 4.0), row(20, 3.0), row(30, 2.5)])
    append_row(tmp_path / "metrics.jsonl", {"kind": "online", "iter": 30, "loss": 1.0})
    metrics(tmp_path, [row(20, float("nan")), row(30, float("inf"))])
    rows = read_scalars(tmp_path)
    assert [r["iter"] for r in rows] == [10, 20, 30] and rows[0]["time"] == 1e9
    assert math.isnan(rows[1]["loss"]) and math.isnan(rows[2]["loss"])
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "iter": 40, "lo')  # being written
    assert len(read_scalars(tmp_path)) == 3
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write("\n" + '{"kind": "train", "iter": 50, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 7 is not JSON"):
        read_scalars(tmp_path)


def test_alarms_and_history(tmp_path):
    assert read_alarms(tmp_path) == read_history(tmp_path) == []
    append_row(tmp_path / "alarms.jsonl", {"alarm": "collapse", "iter": 5, "value": math.nan})
    append_row(tmp_path / "history.jsonl", {"event": "start", "command": ["a"]})
    assert read_alarms(tmp_path) == [{"alarm": "collapse", "iter": 5, "value": None}]
    assert read_history(tmp_path) == [{"event": "start", "command": ["a"]}]
