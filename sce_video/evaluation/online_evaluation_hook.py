"""Evaluation of the representation during pretraining."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from sce_video.datasets.labels import check_same_classes
from sce_video.engine.checkpoint import random_states, set_random_states
from sce_video.engine.hooks.progress import log_row
from sce_video.engine.train_loop import outliving_workers
from sce_video.evaluation.features import extract_features
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.evaluation.metrics.base import compute_metrics, place_metrics
from sce_video.evaluation.rows import Rows, build_eval_dataloader, check_labelled
from sce_video.registry import HOOKS, METRICS
from sce_video.utils.distributed import run_on_main_rank
from sce_video.utils.files import WriteError, append_text, write_text

#: The default of ``metrics``.
_METRICS = ({"type": "KNN"}, {"type": "FeatureStatistics"})


@HOOKS.register_module()
class OnlineEvaluationHook(Hook):
    r"""Metrics of the online encoder's features every few epochs: kNN accuracy, collapse metrics.

    Embeds a labelled set in eval mode, split over the ranks. The metrics go to the log, to the
    visualizer's backends (TensorBoard) under ``evaluation/``, and to a JSON-lines file. Training is
    not affected: random states, BN statistics and the mode of every module stay. ::

        custom_hooks = [dict(
            type="OnlineEvaluationHook", interval=5,
            gallery=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            queries=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            metrics=[dict(type="KNN", k=20), dict(type="FeatureStatistics")],
        )]

    Args:
        gallery: Loader, or its config, of the labelled set that neighbours are taken from.
        queries: Loader, or its config, of the evaluated set; without it each video of the gallery
            is compared with all others.
        group_pattern: A regular expression with one group, searched in the paths
            (``r"person(\d+)"``): a video is compared with those of other groups only.
        metrics: Configs of metrics of features; None for kNN and the collapse metrics.
        interval: Epochs between two evaluations; the last epoch is always evaluated.
        out: JSON-lines file, relative to the work dir. A resumed run keeps the lines up to the
            epoch at which it resumes; a new run renames an older file.
        evaluate_at_start: Also evaluate the untrained network, as epoch 0.
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
            raise ValueError(
                "group_pattern compares the gallery with itself: drop queries or group_pattern"
            )
        if interval < 1:
            raise ValueError(f"interval is in epochs and must be at least 1, got {interval}")
        self.gallery, self.queries, self.group_pattern = gallery, queries, group_pattern
        self.metrics = [METRICS.build(dict(metric)) for metric in metrics or _METRICS]
        for metric in self.metrics:
            kinds = getattr(metric, "kinds", ())
            if kinds and "representation" not in kinds:
                raise ValueError(
                    f"online evaluation computes metrics of features, {type(metric).__name__} is "
                    f"a metric of {' and '.join(kinds)}"
                )
        self.interval, self.out, self.evaluate_at_start = interval, out, evaluate_at_start

    def before_train(self, runner: Runner) -> None:
        """Build the loaders, prepare the file, evaluate the untrained network."""
        states = random_states()
        try:
            self.gallery = build_eval_dataloader(self.gallery, runner.seed)
            if self.queries is not None:
                self.queries = build_eval_dataloader(self.queries, runner.seed)
                check_same_classes(self.queries.dataset, self.gallery.dataset)
        finally:
            set_random_states(states)
        run_on_main_rank(lambda: self._prepare_file(runner))
        if self.evaluate_at_start and runner.iter == 0:
            self._run(runner, epoch=0)

    def after_train_epoch(self, runner: Runner) -> None:
        """Evaluate every ``interval`` epochs and after the last one."""
        if self.every_n_epochs(runner, self.interval) or self.is_last_train_epoch(runner):
            self._run(runner, epoch=runner.epoch + 1)

    def _run(self, runner: Runner, epoch: int) -> None:
        started, parts = time.monotonic(), []
        # A training with this hook stays bit-identical to one without.
        states = random_states()
        try:
            for dataloader in (self.gallery, self.queries):
                if isinstance(dataloader, DataLoader):  # before_train built those there are
                    # Workers that Ctrl-C ends would end the training before its checkpoint.
                    with outliving_workers(dataloader):
                        parts.append(extract_features(runner.model, dataloader))
        finally:
            set_random_states(states)

        def evaluate() -> None:
            place_metrics(self.metrics, runner.model, runner.work_dir)
            found = self._compute(parts[-1], parts[0] if len(parts) > 1 else None)
            record: dict[str, Any] = {"epoch": epoch, "iter": runner.iter, **found}
            failures = {failure for rows in parts for failure in rows.failures}
            record |= {"videos": len(parts[-1]), "failures": len(failures)}
            record["seconds"] = round(time.monotonic() - started, 3)
            self._report(runner, record)

        run_on_main_rank(evaluate)

    def _compute(self, queries: Rows, gallery: Rows | None) -> dict[str, float | str]:
        """The metrics, or an ``error`` instead if the network has diverged."""
        for rows in (queries, gallery):
            if rows is not None:
                check_labelled(rows, "online evaluation", "the labelled set")
                if not torch.isfinite(rows.values).all():
                    return {"error": "the representation holds NaN or infinity"}
        if gallery is None:
            pattern, groups = self.group_pattern, torch.arange(len(queries))
            groups = groups if pattern is None else group_ids(queries.paths, pattern)[0]
            queries = replace(queries, groups=groups)
        return dict(compute_metrics(self.metrics, queries, gallery))

    def _report(self, runner: Runner, record: dict[str, Any]) -> None:
        shown = (f"{n} {v:.4f}" if isinstance(v, float) else f"{n} {v}" for n, v in record.items())
        runner.logger.info(f"online evaluation: {', '.join(shown)}")
        others = ("epoch", "iter", "videos", "failures", "seconds", "error")
        scalars = {f"evaluation/{name}": v for name, v in record.items() if name not in others}
        if scalars:
            runner.visualizer.add_scalars(scalars, step=record["iter"])
        log_row(runner, "online", record["iter"], record["epoch"], record)
        try:
            append_text(Path(runner.work_dir, self.out), json.dumps(record) + "\n")
        except WriteError as error:  # the log has the same numbers
            runner.logger.warning(f"{error}; the training goes on")

    def _prepare_file(self, runner: Runner) -> None:
        """Drop the lines that a resumed run computes again; rename the file of an older run."""
        path = Path(runner.work_dir, self.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        if runner.iter == 0:
            # A new run in an old folder: the old numbers are not lost.
            path.rename(path.with_name(f"{path.name}.before_{runner.timestamp}"))
            return
        kept = ""
        for line in path.read_text().splitlines():
            # An incomplete line: the run was killed while writing it.
            with suppress(ValueError, KeyError, TypeError):
                kept += f"{line}\n" if json.loads(line)["epoch"] <= runner.epoch else ""
        write_text(path, kept)
