"""The page of a run from its folder: after a training, by command, and with what is missing."""

from __future__ import annotations

import json
import shutil
import sys
import time
from functools import reduce
from operator import getitem
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.browser import browser_page
from helpers.training import make_videos, small_config

from sce_video.commands.main import main
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.restarts import append_row
from sce_video.engine.work_dir import locked_folder
from sce_video.evaluation.feature_files import load_features
from sce_video.runs import page as run_page
from sce_video.runs.folder import read_run
from sce_video.runs.page import PageOptions, train_with_page, write_run_page
from sce_video.utils.run_files import HISTORY, PAGE, PAGE_FEATURES


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs on six videos with its page; not to be changed."""
    root = tmp_path_factory.mktemp("page")
    cfg = small_config(
        make_videos(root / "videos", count=6),
        root / "run",
        train_cfg__max_epochs=2,
        default_hooks__checkpoint=dict(type="CheckpointHook", interval=1, max_keep_ckpts=1),
    )
    cfg.run_page = dict(videos=4)
    train_with_page(cfg)
    return root / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run."""
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


def change_config(folder, part, changes):
    """Change settings of a part of the config in ``run.json``."""
    content = json.loads((folder / "run.json").read_text())
    node = reduce(getitem, part.split("."), content["config"])
    assert node.keys() & changes.keys()
    node.update(changes)
    (folder / "run.json").write_text(json.dumps(content))


def page_of(folder, **options) -> str:
    return write_run_page(folder, PageOptions(**options)).read_text()


def test_a_training_ends_with_its_page(trained):
    html = (trained / PAGE).read_text()
    assert len(html) < 8_000_000
    for words in (
        "finished",
        "2 of 2",
        "SCE",
        "class0",
        "No undecodable file was recorded",
        "ResNet3dSlowPath",
    ):
        assert words in html
    rows, provenance = load_features(trained / PAGE_FEATURES)
    assert len(rows) == 4 and rows.labels.tolist() == sorted(rows.labels.tolist())
    assert provenance["checkpoint"]["videos"] == 4
    with browser_page(width=390) as page:
        page.goto((trained / PAGE).as_uri())
        page.wait_for_function("document.body.dataset.charts", timeout=60_000)
        assert page.locator("section#views img, section#views [style*=webp]").count()
        for name in ("neighbours", "map"):
            assert page.locator(f"section#{name}").count() == 1
        page.wait_for_selector("section#map .map-plot canvas", state="attached", timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_features_are_computed_once_for_a_checkpoint(run, monkeypatch):
    monkeypatch.setattr(run_page, "_embed", lambda *_: 1 / 0)
    assert 'section id="map"' in page_of(run, videos=4)
    (checkpoint,) = find_checkpoints(run)
    stored = torch.load(checkpoint, weights_only=True)
    torch.save({**stored, "another": 1}, checkpoint)
    assert "division by zero" in page_of(run, videos=4)


def test_features_of_replaced_videos_are_computed_again(run, tmp_path, monkeypatch):
    source = read_run(run).config["train_dataloader"]["dataset"]["data_root"]
    videos = shutil.copytree(source, tmp_path / "videos")
    change_config(run, "train_dataloader.dataset", {"data_root": str(videos)})
    page_of(run, videos=4)
    before = load_features(run / PAGE_FEATURES)[0]
    first, last = before.paths[0], before.paths[-1]
    for name, file in (("kept", first), (first, last), (last, "kept")):
        Path(tmp_path, file).rename(Path(tmp_path, name))
    page_of(run, videos=4)
    after = load_features(run / PAGE_FEATURES)[0]
    assert torch.equal(after.values[0], before.values[-1])
    shutil.rmtree(videos)
    monkeypatch.setattr(run_page, "_embed", lambda *_: 1 / 0)
    assert 'section id="map"' in page_of(run, videos=4), "without the videos"


def test_videos_that_have_gone_are_named(run, tmp_path):
    source = read_run(run).config["train_dataloader"]["dataset"]["data_root"]
    videos = shutil.copytree(source, tmp_path / "videos")
    files = sorted(videos.rglob("*.mp4"))
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{file} 0\n" for file in files))
    data = {"data_root": str(videos), "ann_file": str(listed)}
    change_config(run, "train_dataloader.dataset", data)
    files[1].unlink()
    html = page_of(run, videos=6)
    assert "1 of 6 videos could not be read" in html and files[1].name in html
    shutil.rmtree(videos)
    html = page_of(run, videos=6)
    assert "No video was embedded" in html and "plot-loss" in html


def test_checkpoints_that_are_missing_damaged_or_of_another_network(run):
    (checkpoint,) = find_checkpoints(run)
    stored = torch.load(checkpoint, weights_only=True)
    weights = {k: v for k, v in stored["state_dict"].items() if "layer3" not in k}
    torch.save({**stored, "state_dict": weights}, checkpoint)
    html = page_of(run)
    assert "No video was embedded" in html and checkpoint.name in html and "plot-loss" in html
    checkpoint.write_bytes(b"PK damaged")
    assert "No video was embedded" in page_of(run) and "plot-loss" in page_of(run, videos=0)
    checkpoint.unlink()
    assert "There is no checkpoint in" in page_of(run)


def test_half_written_and_damaged_logs(run):
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines()
    damaged = ["{broken", *lines[:2], '{"kind": "train", "loss": 1.0, "iter": "x"}', *lines[2:]]
    log.write_text("\n".join(damaged) + '\n{"kind": "train", "iter": 99, "lo')
    with locked_folder(run):
        assert '<span class="state running">' in page_of(run, videos=0)
    record = read_run(run)
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    assert [row["iter"] for row in record.scalars] == [row["iter"] for row in rows]
    assert "2 lines of the log are damaged" in record.notes[0]


def test_features_of_a_file(run, tmp_path):
    given = shutil.copy(run / PAGE_FEATURES, tmp_path / "f.npz")
    html = page_of(run, videos=0, features=given)
    assert 'section id="map"' in html and 'section id="neighbours"' not in html
    (checkpoint,) = find_checkpoints(run)
    checkpoint.write_bytes(checkpoint.read_bytes() + b" ")
    with pytest.raises(ValueError, match="features of a checkpoint that is not in .*embed"):
        page_of(run, features=given)


def test_the_commands(run, tmp_path, capsys):
    assert main(["report", str(run), "--videos", "0"]) == 0
    assert capsys.readouterr().out == f"written: {run / PAGE}\n"
    (run / "results.json").write_text(json.dumps({"metrics": {"knn_top1": 0.25}, "protocol": {}}))
    assert main(["report", str(run), "--videos", "0"]) == 0
    assert (run / "report.md").is_file() and "25.00 %" in (run / PAGE).read_text()
    other = shutil.copytree(run, tmp_path / "other")
    out = tmp_path / "c.html"
    change_config(other, "model", {"tau_m": 0.07})
    assert main(["compare", str(run), str(other), "--out", str(out)]) == 0
    html = out.read_text()
    assert "model.tau_m" in html and "model.queue_size" not in html
    capsys.readouterr()
    for words, message in (
        ([str(run), str(run)], "given twice"),
        ([str(run), str(other), "--out", "x.txt"], "must end in .html"),
    ):
        assert main(["compare", *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["report", str(tmp_path / "no"), "--features", "x.npz"]) == 2
    assert "--features needs the folder of exactly one run" in capsys.readouterr().err


@pytest.mark.parametrize("signal", [None, 2])
def test_a_page_never_changes_how_a_training_ends(run, monkeypatch, signal):
    events, asked, said = [], [], []
    loop = SimpleNamespace(stopped_by=signal)
    runner = SimpleNamespace(train_loop=loop, call_hook=events.append, hooks=[], work_dir=str(run))

    def fail(folder, options, trusted):
        asked.append(options.videos)
        raise RuntimeError("broken")

    monkeypatch.setattr(run_page, "run_training", lambda cfg, overwrite: runner)
    monkeypatch.setattr(run_page, "write_run_page", fail)
    monkeypatch.setattr(run_page, "_say", said.append)
    cfg = small_config("videos", run)
    assert train_with_page(cfg) is runner
    assert asked == [64 if signal is None else 0] and events == ["after_page"]
    assert said[0].startswith("no run page was written: RuntimeError: broken; sce-video report")
    cfg.run_page = None
    train_with_page(cfg)
    assert len(asked) == len(said) == 1
    cfg.run_page = dict(videos=-1)
    monkeypatch.setattr(run_page, "run_training", None)  # refused before it
    with pytest.raises(ValueError, match="videos must be a whole number of at least 0, got -1"):
        train_with_page(cfg)


@pytest.mark.parametrize("began", [True, False])
def test_a_failed_training_has_a_page_and_a_refused_start_has_none(run, monkeypatch, began):
    (run / PAGE).unlink()

    def fail(cfg, overwrite):
        if began:
            append_row(run / HISTORY, {"event": "start", "time": time.time()})
            end = {"status": "failed", "message": "NonFiniteLossError: the loss was not finite"}
            append_row(run / HISTORY, {"event": "end", "time": time.time(), **end})
        raise ValueError("the original error")

    monkeypatch.setattr(run_page, "run_training", fail)
    with pytest.raises(ValueError, match="the original error"):
        train_with_page(small_config("videos", run))
    assert (run / PAGE).exists() == began
    if began:
        html = (run / PAGE).read_text()
        assert "The training failed in epoch 2 of 2. NonFiniteLossError" in html


def test_features_that_a_short_budget_has_cut_are_computed_again_with_more_time(run):
    (run / PAGE_FEATURES).unlink()
    config = read_run(run).config["train_dataloader"]["dataset"]
    few, notes = run_page.run_features(run, config, 4, seconds=0)
    assert len(few) == 1 and "1 of 4 videos were embedded within 0 s" in notes[0]
    again, notes = run_page.run_features(run, config, 4, seconds=0)
    assert len(again) == 1 and not notes  # as much time: those of the file
    assert len(run_page.run_features(run, config, 4, seconds=3600)[0]) == 4
    assert len(run_page.run_features(run, config, 4, seconds=0)[0]) == 4
