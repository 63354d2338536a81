"""Evaluation of the representation while it is being trained."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from sce_video.datasets.labels import check_same_classes
from sce_video.engine.checkpoint import random_states, set_random_states
from sce_video.engine.signals import outliving_workers
from sce_video.evaluation.dataloaders import build_eval_dataloader
from sce_video.evaluation.features import extract_features
from sce_video.evaluation.functional.groups import group_ids
from sce_video.evaluation.metrics.base import RowMetric, compute_metrics
from sce_video.evaluation.rows import Rows, check_labelled
from sce_video.registry import HOOKS, METRICS
from sce_video.utils.atomic_file import write_text
from sce_video.utils.distributed import run_on_main_rank

#: What is computed unless ``metrics`` says otherwise.
_METRICS = ({"type": "KNN"}, {"type": "FeatureStatistics"})


@HOOKS.register_module()
class OnlineEvaluationHook(Hook):
    r"""Metrics of the online encoder's features every few epochs: kNN accuracy, collapse metrics.

    Embeds a labelled set in eval mode, which need not be the training set, and reports the metrics
    (by default ``knn_top1``, ``knn_top5`` from 0 to 1, ``feature_std``, 1 is well spread and 0
    collapsed, and ``effective_rank``) to the log, to the visualizer's backends (TensorBoard) under
    ``evaluation/`` and as a line of a JSON-lines file. Training is not disturbed: random states, BN
    statistics and the mode of every module are afterwards what they were. ::

        custom_hooks = [dict(
            type="OnlineEvaluationHook", interval=5,
            gallery=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            queries=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            metrics=[dict(type="KNN", k=20), dict(type="FeatureStatistics")],
        )]

    Without ``queries`` each video of the gallery is compared with the others: with
    ``group_pattern`` with those of other groups only (``r"person(\d+)"``), else with all others.

    With several ranks each embeds its share; rank 0 computes the metrics and writes.

    Args:
        gallery: Config of the labelled loader that neighbours are taken from. The sampler and the
            collate function may be left out.
        queries: Config of the loader of what is evaluated.
        group_pattern: A regular expression with one group, searched in the paths.
        metrics: Configs of metrics of features; None for kNN with 20 neighbours and the collapse
            metrics.
        interval: Epochs between two evaluations; the last epoch is always evaluated.
        out: JSON-lines file, relative to the work dir. A resumed run keeps the lines up to the
            epoch it resumes at; a new run moves an older file aside.
        evaluate_at_start: Also evaluate the untrained network, as epoch 0.

    Raises:
        ValueError: both ``queries`` and ``group_pattern``, ``interval < 1``, unlabelled videos.
    """

    priority = "LOW"

    def __init__(
        self,
        gallery: dict | DataLoader,
        queries: dict | DataLoader | None = None,
        group_pattern: str | None = None,
        metrics: Sequence[dict] | None = None,
        interval: int = 1,
        out: str = "online_evaluation.jsonl",
        evaluate_at_start: bool = True,
    ) -> None:
        if queries is not None and group_pattern is not None:
            raise ValueError("group_pattern compares a gallery with itself: drop queries or it")
        if interval < 1:
            raise ValueError(f"interval is in epochs and must be at least 1, got {interval}")
        self.gallery = gallery
        self.queries = queries
        self.group_pattern = group_pattern
        self.metrics = [METRICS.build(dict(metric)) for metric in metrics or _METRICS]
        self.interval = interval
        self.out = out
        self.evaluate_at_start = evaluate_at_start

    def before_train(self, runner: Runner) -> None:
        """Build the loaders, tidy the file, evaluate the untrained network."""
        states = random_states()
        try:
            self.gallery = build_eval_dataloader(self.gallery, runner.seed)
            if self.queries is not None:
                self.queries = build_eval_dataloader(self.queries, runner.seed)
                check_same_classes(self.queries.dataset, self.gallery.dataset)
        finally:
            set_random_states(states)
        if is_main_process():
            self._prepare_file(runner)
        if self.evaluate_at_start and runner.iter == 0:
            self._run(runner, epoch=0)

    def after_train_epoch(self, runner: Runner) -> None:
        """Evaluate every ``interval`` epochs and after the last one."""
        if self.every_n_epochs(runner, self.interval) or self.is_last_train_epoch(runner):
            self._run(runner, epoch=runner.epoch + 1)

    def _run(self, runner: Runner, epoch: int) -> None:
        started = time.monotonic()
        states = random_states()
        try:
            queries = self._extract(runner, self.gallery)
            gallery = None
            if self.queries is not None:
                queries, gallery = self._extract(runner, self.queries), queries
        finally:
            set_random_states(states)

        def evaluate() -> None:
            record: dict[str, Any] = {"epoch": epoch, "iter": runner.iter}
            record |= self._compute(queries, gallery, _device(runner.model))
            failures = {*queries.failures, *(gallery.failures if gallery is not None else [])}
            record |= {"videos": len(queries), "failures": len(failures)}
            record["seconds"] = round(time.monotonic() - started, 3)
            self._report(runner, record)

        run_on_main_rank(evaluate)

    def _extract(self, runner: Runner, dataloader: DataLoader | dict) -> Rows:
        assert isinstance(dataloader, DataLoader)  # built before the training
        with outliving_workers(dataloader):
            return extract_features(runner.model, dataloader)

    def _compute(
        self, queries: Rows, gallery: Rows | None, device: torch.device
    ) -> dict[str, float | str]:
        """The metrics; of a network that has diverged an ``error`` in their place."""
        for rows in (queries, gallery):
            if rows is not None:
                check_labelled(rows, "online evaluation", "the labelled set")
                if not torch.isfinite(rows.values).all():
                    return {"error": "the representation holds NaN or infinity"}
        if gallery is None:
            groups = torch.arange(len(queries))
            if self.group_pattern is not None:
                groups = group_ids(queries.paths, self.group_pattern)[0]
            queries = replace(queries, groups=groups)
        for metric in self.metrics:
            if isinstance(metric, RowMetric):
                metric.device = device
        return dict(compute_metrics(self.metrics, queries, gallery))

    def _report(self, runner: Runner, record: dict[str, Any]) -> None:
        shown = ", ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in record.items()
        )
        runner.logger.info(f"online evaluation: {shown}")
        own = ("epoch", "iter", "videos", "failures", "seconds", "error")
        scalars = {f"evaluation/{name}": value for name, value in record.items() if name not in own}
        if scalars:
            runner.visualizer.add_scalars(scalars, step=record["iter"])
        with open(self._path(runner), "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _path(self, runner: Runner) -> Path:
        return Path(runner.work_dir) / self.out

    def _prepare_file(self, runner: Runner) -> None:
        """A resumed run cuts off what it will compute again; a new run starts a new file."""
        path = self._path(runner)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        if runner.iter == 0:
            path.rename(path.with_name(f"{path.name}.before_{runner.timestamp}"))
            return
        kept = []
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["epoch"] <= runner.epoch:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # a line cut short when the run was killed
        write_text(path, "".join(f"{line}\n" for line in kept))


def _device(model: torch.nn.Module) -> torch.device:
    """The device of a model; the CPU for one without parameters."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
