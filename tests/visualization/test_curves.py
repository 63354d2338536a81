"""Reading the logs of a work directory, and the curves in the figure."""

from __future__ import annotations

import json

import pytest

from sce_video.visualization.curves import draw_run, read_online_evaluations, read_scalars


def log(folder, stamp, rows):
    file = folder / stamp / "vis_data" / "scalars.json"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def row(iteration, loss):
    return {"iter": iteration, "loss": loss, "infonce": loss + 1, "h_rank": 3.0}


def test_a_resumed_run_continues_the_curve(tmp_path):
    log(tmp_path, "20260102_000000", [row(20, 2.5), row(30, 2.0), {"evaluation/knn_top1": 0.5}])
    log(tmp_path, "20260101_000000", [row(10, 4.0), row(20, 3.0)])
    assert [(r["iter"], r["loss"]) for r in read_scalars(tmp_path)] == [
        (10, 4.0),
        (20, 2.5),
        (30, 2.0),
    ]


def test_steps_that_a_crash_has_lost_are_not_drawn(tmp_path):
    """The second start resumed at 10, the third began from scratch."""
    log(tmp_path, "20260101_000000", [row(i, 4.0) for i in (10, 20, 30, 40)])
    log(tmp_path, "20260102_000000", [row(20, 3.0)])
    assert [(r["iter"], r["loss"]) for r in read_scalars(tmp_path)] == [(10, 4.0), (20, 3.0)]
    log(tmp_path, "20260103_000000", [])  # a start that failed
    log(tmp_path, "20260104_000000", [row(10, 9.0)])
    assert [(r["iter"], r["loss"]) for r in read_scalars(tmp_path)] == [(10, 9.0)]


def test_nothing_logged(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_scalars(tmp_path)
    assert read_online_evaluations(tmp_path) == []


def test_the_figure_has_a_panel_for_each_kind_of_curve(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda self, path, **options: drawn.update(
            {a.get_title(): [tuple(line.get_ydata()) for line in a.get_lines()] for a in self.axes}
        ),
    )
    (tmp_path / "online_evaluation.jsonl").write_text(
        '{"epoch": 0, "iter": 0, "knn_top1": 0.25}\n{"epoch": 1, "iter": 30, "knn_top1": 0.5}\n'
    )
    draw_run([row(10, 4.0), row(20, 3.0)], read_online_evaluations(tmp_path), tmp_path / "a.png")
    assert drawn == {
        "objective (Proposition 1)": [(4.0, 3.0), (5.0, 4.0)],
        "collapse metric: effective rank of h in a batch": [(3.0, 3.0)],
        "online evaluation: kNN top-1, %": [(25.0, 50.0)],
    }


def test_the_figure_is_written(tmp_path):
    draw_run([row(10, 4.0), row(20, 3.0)], [], tmp_path / "deep" / "a.png", "title")
    assert (tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_of_a_killed_run_and_a_damaged_one(tmp_path):
    log = tmp_path / "run" / "vis_data" / "scalars.json"
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 1.0, "iter": 1}\n{"loss": 2.0, "iter": 2, "note": "x"}\n{"loss": 3')
    assert read_scalars(tmp_path) == [{"loss": 1.0, "iter": 1}, {"loss": 2.0, "iter": 2}]
    (tmp_path / "online_evaluation.jsonl").write_text('{"iter": 3, "knn_top1": 0.5}\n{"iter": ')
    assert read_online_evaluations(tmp_path) == [{"iter": 3, "knn_top1": 0.5}]
    for line, reason in (
        ("[1]", "is no object"),
        ('{"loss": 1, "iter": []}', "not a whole number"),
    ):
        log.write_text(f'{{"loss": 1.0, "iter": 1}}\n{line}\n')
        with pytest.raises(ValueError, match=rf"scalars\.json, line 2.*{reason}"):
            read_scalars(tmp_path)
