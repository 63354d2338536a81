"""A pretraining that chooses its settings, from the folder to the search."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from helpers.training import make_videos

import sce_video
from sce_video.apis.automatic import methods, planned_pretraining
from sce_video.commands.main import main
from sce_video.engine.config import load_config
from sce_video.visualization.curves import read_scalars

TINY = dict(width=4, frames=2, size=32, hidden=16, embedding=8, batch=4, epoch_samples=8, workers=0)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


@pytest.fixture
def _without_page(monkeypatch):
    monkeypatch.setattr("sce_video.apis.run_page.write_run_page", lambda folder, options: folder)


def words(**settings):
    return [w for k, v in settings.items() for w in (f"--{k.replace('_', '-')}", str(v))]


def test_from_a_folder_to_search_results_with_one_line_each(videos, tmp_path, capsys):
    run, index = tmp_path / "run", tmp_path / "index"
    command = ["pretrain", str(videos), "--out", str(run), "--epochs", "1"]
    assert main([*command, *words(**TINY)]) == 0
    shown = capsys.readouterr().out
    assert "12 videos in" in shown and "given" in shown and "sce_r3d18_folder_small" in shown
    plan = load_config(run / "config.py").plan  # with the reasons, also after the training began
    assert any("fewer keys than the 12 videos" in line for line in plan)
    assert any("note: 12 videos are few" in line for line in plan)
    page = (run / "run.html").read_text()
    assert "fewer keys than the 12 videos" in page and "data:image/webp" in page
    checkpoint = torch.load(run / "epoch_1.pth", weights_only=True)
    assert "plan = [" in checkpoint["meta"]["cfg"]

    test = ["evaluate", str(run), "--test", str(videos), "--gallery", str(videos)]
    assert main(test) == 0 and main([*test, "--random"]) == 0
    results = json.loads((run / "results.json").read_text())
    assert results["metrics"]["knn_top1"] > 0.9  # a video finds itself
    random = json.loads((run / "results_random.json").read_text())
    assert random["protocol"]["checkpoint"]["path"] is None

    features = tmp_path / "features.npz"
    assert main(["embed", str(videos), "--checkpoint", str(run), "--out", str(features)]) == 0
    assert np.load(features, allow_pickle=False)["features"].shape == (12, 32)

    assert main(["index", str(videos), "--checkpoint", str(run), "--out", str(index)]) == 0
    query = next(videos.rglob("*.mp4"))
    assert main(["search", str(query), "--index", str(index), "-k", "3", "--no-html"]) == 0
    assert "the 3 most similar of 12 videos" in capsys.readouterr().out


@pytest.mark.usefixtures("_without_page")
def test_the_written_config_is_the_same_training(videos, tmp_path):
    """``sce-video pretrain`` against ``tools/train.py`` with the config that it plans."""
    command, planned = tmp_path / "command", tmp_path / "planned"
    start = ["pretrain", str(videos), "--epochs", "1", *words(**TINY)]
    assert main([*start, "--out", str(command)]) == 0
    assert main([*start, "--out", str(planned), "--plan"]) == 0
    assert main(["train", str(planned / "config.py")]) == 0
    losses = []
    for run in (command, planned):
        losses.append([row["loss"] for row in read_scalars(run)])
    assert losses[0] == losses[1] and losses[0]


@pytest.mark.usefixtures("_without_page")
def test_the_function_takes_the_settings_by_name(videos, tmp_path):
    runner = sce_video.pretrain(videos, tmp_path / "run", method="simclr", epochs=1, **TINY)
    assert runner.cfg.model.type == "SimCLR" and (tmp_path / "run/epoch_1.pth").is_file()
    with pytest.raises(ValueError, match="earlier training"):
        sce_video.pretrain(videos, tmp_path / "run", method="simclr", epochs=1, **TINY)
    with pytest.raises(AttributeError):
        sce_video.pretrian


@pytest.mark.parametrize("method", methods())
@pytest.mark.usefixtures("_without_page")
def test_every_method_can_be_planned(videos, tmp_path, method):
    plan = planned_pretraining(videos, tmp_path, method=method, settings=TINY)
    assert plan.config.train_cfg.max_epochs == 667  # 2000 steps: three of an epoch of 12 videos
    assert plan.config.model.backbone.base_channels == 4
    assert plan.config.work_dir == str(tmp_path)
    assert plan.epoch_seconds > 0 and plan.hours > 0


@pytest.mark.usefixtures("_without_page")
def test_a_budget_makes_the_length(videos, tmp_path):
    plan = planned_pretraining(videos, tmp_path, hours=0.1, settings=TINY)
    assert plan.config.train_cfg.max_epochs == int(360 / plan.epoch_seconds)


@pytest.mark.usefixtures("_without_page")
def test_resuming_takes_everything_from_the_run(videos, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["pretrain", "--out", str(run), "--resume"]) == 2
    assert "no training in" in capsys.readouterr().err
    start = ["pretrain", str(videos), "--out", str(run), "--epochs", "1", *words(**TINY)]
    assert main([*start, "--plan"]) == 0 and not list(run.glob("*.pth"))
    assert main(start) == 0
    assert main(["pretrain", str(videos), "--out", str(run), "--resume"]) == 2
    assert "give --out RUN alone" in capsys.readouterr().err
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0  # has nothing left to do


@pytest.mark.usefixtures("_without_page")
def test_errors(videos, tmp_path, capsys):
    def refused(message, **changes):
        with pytest.raises(ValueError, match=message):
            planned_pretraining(videos, tmp_path, **changes)

    refused("method must be one of .*sce.*, got 'x'", method="x")
    refused("precision must be one of", precision="int8")
    refused("'frmes' here, meant frames", settings={"frmes": 3})
    refused("hours or epochs, not both", hours=1, settings={"epochs": 3})
    assert main(["pretrain", "--out", str(tmp_path)]) == 2
    assert "give the folder of videos" in capsys.readouterr().err
    assert main(["pretrain", str(tmp_path / "none"), "--out", str(tmp_path / "r")]) == 2
    assert "there is no folder" in capsys.readouterr().err
