"""Two networks evaluated on the same videos, then compared: all from the command line."""

from __future__ import annotations

import json
import sys

import pytest
from helpers.tiny_encoder import as_json, tiny_backbone
from helpers.training import make_videos

from sce_video.commands.main import main
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.evaluation.functional.statistics import paired_differences, paired_p_value
from sce_video.evaluation.metrics.base import load_outcomes

TINY = dict(width=4, frames=2, size=32, hidden=16, embedding=8, batch=4, workers=0, epochs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two planned runs of other temperatures with a checkpoint each, not trained."""
    folder = tmp_path_factory.mktemp("runs")
    videos = make_videos(folder / "videos")
    words = [w for name, value in TINY.items() for w in (f"--{name}", str(value))]
    assert main(["pretrain", str(videos), "--out", str(folder / "a"), "--plan", *words]) == 0
    (folder / "b").mkdir()
    text = (folder / "a/config.py").read_text()
    assert "tau=0.1" in text
    (folder / "b/config.py").write_text(text.replace("tau=0.1", "tau=0.2"))
    described = (folder / "a/run.json").read_text()
    assert '"tau": 0.1' in described
    (folder / "b/run.json").write_text(described.replace('"tau": 0.1', '"tau": 0.2'))
    for seed, name in enumerate("ab"):
        run = folder / name
        weights = {f"backbone.{k}": v for k, v in tiny_backbone(seed).state_dict().items()}
        meta = {"epoch": 1, "config": as_json((run / "config.py").read_text())}
        save_checkpoint_file({"meta": meta, "state_dict": weights}, run / "epoch_1.pth")
    return folder


def test_evaluated_twice_and_compared(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    videos = str(runs / "videos")
    for name in "ab":
        evaluation = ["evaluate", str(runs / name), "--test", videos, "--group-pattern", r"(\d)\."]
        assert main([*evaluation, "--protocols", "knn"]) == 0
    page = tmp_path / "compare.html"
    assert main(["compare", str(runs / "a"), str(runs / "b"), "--out", str(page)]) == 0
    shown = capsys.readouterr().out
    first, second = (load_outcomes(runs / name / "results_outcomes.npz") for name in "ab")
    metrics = [json.loads((runs / name / "results.json").read_text())["metrics"] for name in "ab"]
    assert first.paths == second.paths and len(first.paths) == 12
    values = [part.values[:, part.names.index("knn_top1")] for part in (first, second)]
    assert values[0].mean() == pytest.approx(metrics[0]["knn_top1"])
    change = 100 * (metrics[1]["knn_top1"] - metrics[0]["knn_top1"])
    assert f"knn_top1 of results.json, a to b: {change:+.2f} [" in shown
    p_value = paired_p_value(paired_differences(*values, range(12), None))
    assert f"points, p {p_value:.3f}" in shown and "within chance" in shown
    assert "The tests are paired over the same videos" in page.read_text()
    assert "model.tau" in page.read_text()
