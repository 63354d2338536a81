"""Weights & Biases and MLflow, offline: what was logged is read back."""

from __future__ import annotations

import os
import time

import pytest
from helpers.training import small_config, train

from sce_video.engine.logs import add_trackers, local_store
from sce_video.pages.curves import read_scalars


def tracked(videos, folder, name):
    cfg = small_config(videos, folder, train_cfg__max_epochs=1)
    add_trackers(cfg, [name, name])
    assert len(cfg.visualizer.vis_backends) == 1
    train(cfg)
    return read_scalars(folder)


def test_mlflow_holds_the_rows_and_the_config(videos, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    rows = tracked(videos, tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(local_store(str(tmp_path / "run")))
    experiment = client.get_experiment_by_name("sce_video")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    for name in ("loss", "h_std", "lr"):
        logged = client.get_metric_history(run.info.run_id, name)
        assert [(m.step, m.value) for m in logged] == [(r["iter"], r[name]) for r in rows]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.py"]
    assert not os.path.exists("mlruns")


def test_wandb_offline_writes_to_the_work_folder(videos, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracked(videos, tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # Records of protocol buffers, not compressed; wandb's own process writes them.
    end = time.monotonic() + 240
    while file.read_bytes().count(b"positive_similarity") < 3 and time.monotonic() < end:
        time.sleep(0.2)
    content = file.read_bytes()
    assert content.count(b"positive_similarity") >= 3 and b"queue_size" in content


def test_a_tracker_that_is_not_there(monkeypatch, videos, tmp_path):
    cfg = small_config(videos, tmp_path)
    with pytest.raises(ValueError, match="--track takes wandb or mlflow, got 'x'"):
        add_trackers(cfg, ["x"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--track wandb needs a package: pip install wandb"):
        add_trackers(cfg, ["wandb"])
