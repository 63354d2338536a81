"""Weights & Biases and MLflow beside the files of a run: ``--track wandb``, ``--track mlflow``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmengine.visualization
from mmengine.config import Config
from mmengine.visualization.vis_backend import force_init_env

from sce_video.registry import VISBACKENDS
from sce_video.utils.errors import UserError

PROJECT = "sce_video"
#: Name of a tracker: its backend, the module that it needs.
TRACKERS = {"wandb": ("WandbVisBackend", "wandb"), "mlflow": ("MLflowVisBackend", "mlflow")}


def add_trackers(cfg: Config, names: Sequence[str]) -> None:
    """Let a training also log to trackers, in place.

    Args:
        cfg: The config; its ``work_dir`` is where local files of a tracker go.
        names: Of :data:`TRACKERS`.

    Raises:
        ValueError: an unknown name, or its package is not installed.
    """
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise ValueError(f"--track takes {' or '.join(TRACKERS)}, got {name!r}")
        backend, module = TRACKERS[name]
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"--track {name} needs a package: pip install {module}")
        visualizer = cfg.get("visualizer") or {"type": "Visualizer"}
        backends = [b for b in visualizer.get("vis_backends") or () if b["type"] != backend]
        added = {"type": backend, "run_dir": str(Path(cfg.work_dir).resolve())}
        cfg.visualizer = {**visualizer, "vis_backends": [*backends, added]}


@VISBACKENDS.register_module()
class WandbVisBackend(mmengine.visualization.WandbVisBackend):
    """mmengine's, with the iteration as axis and without a copy of the code.

    ``WANDB_MODE=offline`` writes to the folder only; ``wandb sync`` uploads it later.

    Args:
        save_dir: Folder of the log; the visualizer gives it.
        run_dir: Work folder; its name is that of the run, and ``wandb/`` in it has local files.
        project: Name of the project.
    """

    def __init__(self, save_dir: str, run_dir: str, project: str = PROJECT) -> None:
        name = Path(run_dir).name
        super().__init__(
            save_dir, {"project": project, "name": name, "group": name, "dir": run_dir}
        )

    def _init_env(self) -> None:
        import wandb

        # The terminal stays ours; wandb would wrap stdout and stderr.
        self._init_kwargs["settings"] = wandb.Settings(console="off", silent=True)
        try:
            super()._init_env()
        except wandb.errors.Error as error:
            raise UserError(
                f"Weights & Biases does not start: {error} Or set WANDB_MODE=offline"
            ) from error
        wandb.define_metric("*", step_metric="iter")

    @force_init_env
    def add_config(self, config: Config) -> None:
        """Record the config."""
        self._wandb.config.update(config.to_dict())

    @force_init_env
    def add_scalars(
        self, scalar_dict: dict[str, Any], step: int = 0, file_path: str | None = None
    ) -> None:
        """Record scalars of an iteration."""
        self._wandb.log({**scalar_dict, "iter": step})

    @force_init_env
    def add_scalar(self, name: str, value: float, step: int = 0) -> None:
        """Record a scalar of an iteration."""
        self._wandb.log({name: value, "iter": step})

    def close(self) -> None:
        """End the run."""
        if hasattr(self, "_wandb"):
            self._wandb.finish()


@VISBACKENDS.register_module()
class MLflowVisBackend(mmengine.visualization.MLflowVisBackend):
    """mmengine's, by default with a store in the work folder, and without a copy of that folder.

    ``MLFLOW_TRACKING_URI`` names a server; else ``mlflow.db`` in the work folder has the run
    (``mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db``), or ``mlruns/`` where only
    mlflow-skinny is installed, which has no database.

    Args:
        save_dir: Folder of the log; the visualizer gives it.
        run_dir: Work folder; its name is that of the run.
        project: Name of the experiment.
    """

    def __init__(self, save_dir: str, run_dir: str, project: str = PROJECT) -> None:
        self._run_dir = run_dir
        super().__init__(
            save_dir,
            exp_name=project,
            run_name=Path(run_dir).name,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or local_store(run_dir),
            artifact_location=None
            if os.environ.get("MLFLOW_TRACKING_URI")
            else Path(run_dir, "mlflow_files").as_uri(),
        )

    def _init_env(self) -> None:
        import mlflow

        self._mlflow = mlflow
        try:
            mlflow.set_tracking_uri(self._tracking_uri)
            if mlflow.get_experiment_by_name(self._exp_name) is None:
                mlflow.create_experiment(self._exp_name, self._artifact_location)
            mlflow.set_experiment(self._exp_name)
            mlflow.start_run(run_name=self._run_name)
        except mlflow.exceptions.MlflowException as error:
            raise UserError(f"MLflow does not start at {self._tracking_uri}: {error}") from error

    @force_init_env
    def add_config(self, config: Config) -> None:
        """Record the config as a file; single settings are longer than MLflow's parameters."""
        self._mlflow.log_text(config.pretty_text, "config.py")

    @force_init_env
    def add_scalars(
        self, scalar_dict: dict[str, Any], step: int = 0, file_path: str | None = None
    ) -> None:
        """Record scalars of an iteration."""
        self._mlflow.log_metrics(scalar_dict, step)

    def close(self) -> None:
        """End the run."""
        if hasattr(self, "_mlflow"):
            self._mlflow.end_run()


def local_store(run_dir: str) -> str:
    """Address of MLflow's store in a work folder."""
    if importlib.util.find_spec("sqlalchemy") is not None:
        return f"sqlite:///{Path(run_dir, 'mlflow.db')}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path(run_dir, "mlruns").as_uri()
