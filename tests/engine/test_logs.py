"""MLflow, read back from its store, and Weights & Biases, whose package is replaced."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
from helpers.training import small_config

from sce_video.engine.logs import add_trackers, local_store
from sce_video.registry import VISBACKENDS

ROWS = [(1, {"loss": 2.5, "lr": 0.1}), (2, {"loss": 2.0, "lr": 0.2})]


def log_to(name, work_dir):
    """Log a config and two rows as a training does; the tracker was asked for twice."""
    cfg = small_config("videos", work_dir)
    add_trackers(cfg, [name, name])
    (backend,) = cfg.visualizer.vis_backends
    backend = VISBACKENDS.build({**backend, "save_dir": str(work_dir / "vis_data")})
    backend.add_config(cfg)
    for step, values in ROWS:
        backend.add_scalars(values, step)
    backend.close()
    return cfg


def test_mlflow_opens_no_database_whose_journal_names_another_file(tmp_path, monkeypatch):
    """SQLite would remove the named file; a run folder may be somebody else's."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert local_store(str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
    journal = tmp_path / "mlflow.db-journal"
    journal.write_bytes(bytes(600) + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(ValueError, match=r"MLflow cannot use .*mlflow\.db: .* names another file"):
        local_store(str(tmp_path))
    journal.unlink()
    (tmp_path / "mlflow.db").write_text("not a database, but long enough")
    with pytest.raises(ValueError, match="it is not an SQLite file"):
        local_store(str(tmp_path))


def test_mlflow_holds_the_rows_and_the_config(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    log_to("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient(local_store(str(tmp_path / "run")))
    experiment = client.get_experiment_by_name("sce_video")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    for name in ("loss", "lr"):
        logged = client.get_metric_history(run.info.run_id, name)
        assert [(m.step, m.value) for m in logged] == [(step, row[name]) for step, row in ROWS]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.py"]
    assert not os.path.exists("mlruns")


def test_wandb_has_the_iteration_as_axis_and_leaves_the_terminal_alone(tmp_path, monkeypatch):
    calls = []
    wandb = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)
    wandb.Settings, wandb.config = dict, {}
    wandb.errors = SimpleNamespace(Error=OSError)
    for name in ("init", "define_metric", "log", "finish"):
        monkeypatch.setattr(
            wandb, name, lambda *a, _name=name, **k: calls.append((_name, *a, k)), raising=False
        )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    cfg = log_to("wandb", tmp_path / "run")
    run = {"project": "sce_video", "name": "run", "group": "run", "dir": str(tmp_path / "run")}
    assert calls == [
        ("init", {**run, "settings": {"console": "off", "silent": True}}),
        ("define_metric", "*", {"step_metric": "iter"}),
        *(("log", {**row, "iter": step}, {}) for step, row in ROWS),
        ("finish", {}),
    ]
    assert wandb.config == cfg.to_dict()


def test_a_tracker_that_is_not_there(monkeypatch, tmp_path):
    cfg = small_config("videos", tmp_path)
    with pytest.raises(ValueError, match="--track must be mlflow or wandb, got 'x'"):
        add_trackers(cfg, ["x"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="--track wandb needs a package. Run pip install wandb"):
        add_trackers(cfg, ["wandb"])
