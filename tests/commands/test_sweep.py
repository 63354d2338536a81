"""The command sweep: pretraining, evaluation, a step that fails, and a marked result."""

from __future__ import annotations

import json
import shlex

import pytest
from helpers.run_tool import load, run_tool
from helpers.training import make_videos

from sce_video.runs.sweep import SweepRunner

pytestmark = pytest.mark.slow

CONFIG = """
_base_ = "{repo}/configs/sce/sce_r3d18_folder_small.py"
train_cfg = dict(max_epochs=1)
model = dict(
    backbone=dict(base_channels=4),
    projector=dict(hidden_channels=16, out_channels=8),
    predictor=dict(hidden_channels=16),
    queue_size=8,
)
default_hooks = dict(online_evaluation=None, checkpoint=dict(interval=1))
visualizer = None
_pipeline = [
    dict(type="OpenVideo"),
    dict(type="UniformClips", clip_duration=0.4, num_frames=2, num_clips=1),
    dict(type="DecodeClips"),
    dict(type="ResizeShortSide", size=32),
    dict(type="CenterCropClips", size=32),
    dict(type="PackClips"),
]
_data = dict(data_root="{videos}", pipeline=_pipeline)
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(min_samples=0),
    dataset=dict(
        data_root="{videos}",
        pipeline=dict(
            RandomClips=dict(clip_duration=0.4, num_frames=2),
            RandomResizedCropClips=dict(size=32),
        ),
    ),
)
test_dataloader = dict(num_workers=0, dataset=_data)
test_cfg = dict(gallery_dataloader=dict(num_workers=0, dataset=_data))
test_evaluator = [dict(type="KNN", k=1)]
"""
SWEEP = """
title = "a small sweep"
source = "tab:x"
pretrain = dict(config="{root}/small.py")
points = [
    dict(name="good", published=dict(kNN=64.0)),
    dict(
        name="bad",
        options={{"train_dataloader.dataset.data_root": "{root}/nowhere"}},
        columns=["kNN"],
    ),
]
columns = [dict(name="kNN", metric="knn_top1"), dict(name="kNN, 5", metric="knn_top5")]
notes = ["Generated videos."]
"""


@pytest.fixture
def tool():
    return load("sweep")


@pytest.fixture
def sweep(repo, tmp_path):
    """Write a sweep with two points, the second with a folder that does not exist."""
    videos = make_videos(tmp_path / "videos", 8)
    (tmp_path / "small.py").write_text(CONFIG.format(repo=repo, videos=videos))
    (tmp_path / "mini.py").write_text(SWEEP.format(root=tmp_path))
    return tmp_path / "mini.py"


def test_a_sweep_from_the_command_line(tool, sweep, tmp_path, capsys, monkeypatch):
    def call(runner, command, log, environment):
        """Run steps in this process, which saves the seconds for importing the libraries."""
        done = run_tool(command[0].removeprefix("tools/"), *command[1:], env=environment)
        log.write_text(done.stdout + done.stderr)
        return done.returncode

    monkeypatch.setattr(SweepRunner, "_call", call)
    out = tmp_path / "out"
    command = [str(sweep), "--out", str(out)]
    assert tool.main([*command, "--list"]) == 0
    listed = capsys.readouterr().out
    assert (
        listed.endswith("2 pretraining runs and 2 evaluations; 0 of these 4 steps are done\n")
        and not out.exists()
    )
    assert [line.split()[:2] for line in listed.splitlines()[:-1] if line[0] == "n"] == [
        ["not", "run"]
    ] * 4
    trained = next(line for line in listed.splitlines() if "tools/train.py" in line)
    assert shlex.split(trained)[:3] == ["python", "tools/train.py", str(tmp_path / "small.py")]

    assert tool.main(command) == 1
    shown = capsys.readouterr()
    assert "2 of 4 steps failed or were left out" in shown.err
    (good,) = out.glob("evaluate/*/results.json")
    measured = 100 * json.loads(good.read_text())["metrics"]["knn_top1"]
    text = (out / "mini.md").read_text()
    assert text in shown.out
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[2][1] == f"**{measured:.1f}** / 64.0 [1]"
    assert rows[3][0] == "| bad" and rows[3][1] == "failed" and rows[3][2] == "- |"
    assert "1. states no benchmark: own data or settings" in text and "- Generated videos." in text
    assert "- bad, kNN: train.py: error: " in text and "nowhere" in text
    assert (out / "mini.png").is_file()
    cells = json.loads((out / "mini.json").read_text())["cells"]
    assert cells[0]["values"] == [pytest.approx(measured)] and len(cells) == 3

    (out / "mini.md").unlink()
    assert tool.main([*command, "--report"]) == 0
    assert (out / "mini.md").read_text() == text
    capsys.readouterr()
    assert tool.main([*command, "--list", "--points", "good", "--shard", "1/9"]) == 0
    assert "2 of these 2 steps are done" in capsys.readouterr().out
    assert tool.main([*command, "--list", "--columns", "kNN, 5"]) == 0
    shown = capsys.readouterr().out
    assert "2 of these 2 steps are done" in shown and "nowhere" not in shown
    # Neither a shard without pretraining nor a finished one has anything to do.
    for more in (["--shard", "9/9"], ["--points", "good"]):
        before = good.stat().st_mtime_ns
        assert tool.main([*command, *more]) == 0
        assert good.stat().st_mtime_ns == before


def test_mistakes_are_one_line(tool, sweep, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other/mini.py"
    other.write_text(sweep.read_text())
    for options, message in (
        (["--points", "better"], "no point 'better'; there are good, bad"),
        (["--columns", "R@1"], "no column 'R@1'; there are kNN, kNN, 5"),
        (["--seeds", "1", "1"], "--seeds must be one or more different numbers, got (1, 1)"),
        (["--pretrain-options", "model.lamda_=1"], "model.lambda_"),
        ([str(other)], "two sweeps have the same name: mini, mini"),
    ):
        assert tool.main([str(sweep), *options, "--out", "out"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("sweep.py: error: ") and message in error
