"""``sce-video pretrain`` started again by torchrun or Slurm."""

from __future__ import annotations

import importlib
import re

import pytest

from sce_video.commands import pretrain
from sce_video.runs import launch
from sce_video.runs import page as run_page


@pytest.mark.parametrize("known", [True, False], ids=["restart", "another training"])
def test_a_restart_is_not_planned_again(monkeypatch, tmp_path, known):
    """Speeds are measured for a plan, so a second one could have other settings."""
    (tmp_path / "config.py").touch()
    given = {}

    def planned(*args, **kwargs):
        raise ValueError("planned")

    def config(path, **options):
        given.update(options, path=path)

    monkeypatch.setattr("sce_video.engine.restarts.is_restart", lambda folder: known)
    automatic = importlib.import_module("sce_video.runs.pretrain")
    monkeypatch.setattr(automatic, "planned_pretraining", planned)
    monkeypatch.setattr(automatic, "planned_config", lambda path, *_: path)
    monkeypatch.setattr(automatic, "count_seconds", lambda cfg, begun: cfg)
    monkeypatch.setattr(launch, "training_config", config)
    monkeypatch.setattr(run_page, "train_with_page", lambda cfg, overwrite: None)
    monkeypatch.setattr(launch, "end_training", lambda runner: 0)
    (tmp_path / "a.mp4").touch()
    status = pretrain.main([str(tmp_path), "--out", str(tmp_path)])
    if known:
        assert status == 0 and given["resume"] == "auto" and given["path"].parent == tmp_path
    else:
        assert status == 2 and not given


@pytest.mark.parametrize("method", ["sce", "swav"])
def test_every_setting_has_a_help_text(method, capsys):
    with pytest.raises(SystemExit):
        pretrain.parse_args(["--method", method, "--help"])
    settings = capsys.readouterr().out.partition("settings:\n")[2]
    assert settings.count("--") >= 13
    assert not re.findall(r"--[\w-]+ X *\n +--", settings), "an option without a text"
