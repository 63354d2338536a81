"""Evaluation of the representation during pretraining, and the checkpoint that is best by it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from sce_video.datasets.labels import check_same_classes, classes_of
from sce_video.engine.checkpoint import random_states, set_random_states
from sce_video.engine.hooks.progress import log_row
from sce_video.engine.restarts import append_or_warn, continue_rows
from sce_video.engine.schedules import position
from sce_video.evaluation.feature_files import extract_features
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.evaluation.metrics.base import compute_metrics, needs_gallery, place_metrics
from sce_video.evaluation.rows import Rows, build_eval_dataloader, check_labelled
from sce_video.registry import HOOKS, METRICS
from sce_video.utils.distributed import run_on_main_rank
from sce_video.utils.files import WriteError, append_text
from sce_video.utils.metric_names import NOT_FRACTIONS
from sce_video.utils.run_files import HISTORY, KEPT
from sce_video.utils.stored_arguments import Word

#: The default of ``metrics``.
_METRICS = ({"type": "KNN"}, {"type": "FeatureStatistics"})
#: One over the share of the training after which values below that of the start end it.
_PATIENCE = 5
#: Event of ``history.jsonl`` that says which checkpoint is the result.
KEPT_EVENT = "kept"


@dataclass
class BestSoFar:
    """The value of a measure at the start of a training, its best one, and when it was reached.

    All in optimiser steps. Of equal values the first is best, so the start is only left for more.
    """

    metric: str
    start: float | None = None
    best: float = -math.inf
    best_step: int = 0
    reached: int = 0  # the last time that the value was not clearly below that of the start

    def update(self, step: int, value: float, videos: int) -> bool:
        """Take the value of a step, -inf for none; whether it is the best so far.

        Of a share of ``videos`` less than one standard error below the start is not clearly below:
        trainings that were ended for a dip of two videos have got better with another seed.
        """
        if self.start is None:
            self.start, is_best = value, True
        else:
            is_best = value > self.best
        share = 0.0 if self.metric in NOT_FRACTIONS else min(max(self.start, 0.0), 1.0)
        if value >= self.start - math.sqrt(share * (1 - share) / max(1, videos)):
            self.reached = step
        if is_best:
            self.best, self.best_step = value, step
        return is_best

    def is_lost(self, step: int, total: int) -> bool:
        """Whether the value has been clearly below the start for a fifth of ``total`` steps."""
        return _PATIENCE * (step - self.reached) >= total

    def sentence(self, step: int) -> str:
        """What the result of the training is after so many steps, in words."""
        start, best = (self.text(v) for v in (self.start, self.best))
        if self.best_step == 0:
            return (
                f"no checkpoint up to step {step:,} was better than the start ({self.metric} "
                f"{start}): the result is the start, {KEPT} of step 0"
            )
        return (
            f"the result is {KEPT} of step {self.best_step:,} of {step:,}: {self.metric} {best}, "
            f"at the start {start}"
        )

    def text(self, value: float | None) -> str:
        """A value as it is shown."""
        if value is None or not math.isfinite(value):
            return "not a number"
        return f"{value:.2f}" if self.metric in NOT_FRACTIONS else f"{100 * value:.1f} %"


def _accumulation(runner: Any) -> int:
    return runner.optim_wrapper._accumulative_counts


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
            iteration at which it resumes; a new run renames an older file.
        evaluate_at_start: Also evaluate the network before the first step, as epoch 0.
        evaluations: So many evaluations after the start, at equal distances in the schedules,
            instead of every ``interval`` epochs.
        keep: Name of a number of the metrics, of which more is better. The checkpoint with its best
            value is kept as ``best.pth``, the one before the first step too, and the training ends
            when the value has been below that of the start, by more than one standard error of a
            share, for a fifth of its steps. A checkpoint knows the values so far.
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
        evaluations: int | None = None,
        keep: Word | None = None,
    ) -> None:
        if queries is not None and group_pattern is not None:
            raise ValueError(
                "group_pattern compares the gallery with itself: drop queries or group_pattern"
            )
        if interval < 1:
            raise ValueError(f"interval is in epochs and must be at least 1, got {interval}")
        if evaluations is not None and evaluations < 1:
            raise ValueError(f"evaluations must be at least 1, got {evaluations}")
        if keep is not None and not evaluate_at_start:
            raise ValueError("keep compares with the start: evaluate_at_start must be True")
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
        self.evaluations = evaluations
        self.best = None if keep is None else BestSoFar(keep)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Continue with the values of a training that is resumed."""
        saved = checkpoint.get("kept")
        if self.best is None or not runner._resume or not isinstance(saved, dict):
            return
        if saved["metric"] == self.best.metric:
            start, best = float(saved["start"]), float(saved["best"])
            steps = int(saved["best_step"]), int(saved["reached"])
            self.best = BestSoFar(self.best.metric, start, best, *steps)
            # Of a training that has ended early, which would go on otherwise.
            loop: Any = runner.train_loop
            loop.replans = [(int(a), int(b)) for a, b in saved["replans"]]

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Keep the values so far."""
        if self.best is not None and self.best.start is not None:
            loop: Any = runner.train_loop
            replans = [list(change) for change in loop.replans]
            checkpoint["kept"] = {**asdict(self.best), "replans": replans}

    def before_train(self, runner: Runner) -> None:
        """Build the loaders, prepare the file, evaluate the untrained network."""
        states = random_states()
        try:
            self.gallery = build_eval_dataloader(self.gallery, runner.seed)
            if self.queries is not None:
                self.queries = build_eval_dataloader(self.queries, runner.seed)
                check_same_classes(
                    classes_of(self.queries.dataset), classes_of(self.gallery.dataset)
                )
        finally:
            set_random_states(states)
        run_on_main_rank(lambda: self._prepare_file(runner))
        # Also of a resumed training that has begun without this hook.
        lacks_start = self.best is not None and self.best.start is None
        if self.evaluate_at_start and (runner.iter == 0 or lacks_start):
            self._run(runner, runner.epoch, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        """Evaluate at equal distances in the schedules, if there are ``evaluations``."""
        loop: Any = runner.train_loop
        step, micro_batches = divmod(runner.iter + 1, _accumulation(runner))
        if self.evaluations is None or micro_batches:
            return
        planned = loop.planned_steps
        done, before = (
            int(self.evaluations * position(s, planned, loop.replans) / planned + 1e-9)
            for s in (step, step - 1)
        )
        if done > before or step == loop.max_steps:
            self._run(runner, runner.epoch + 1, runner.iter + 1)

    def after_train_epoch(self, runner: Runner) -> None:
        """Evaluate every ``interval`` epochs and after the last one."""
        if self.evaluations is not None:
            return
        if self.every_n_epochs(runner, self.interval) or self.is_last_train_epoch(runner):
            self._run(runner, runner.epoch + 1, runner.iter)

    def after_train(self, runner: Runner) -> None:
        """Say which checkpoint is the result of a training that has ended."""
        loop: Any = runner.train_loop
        if runner.iter >= loop.max_iters:
            self.after_failure(runner)

    def after_failure(self, runner: Runner) -> None:
        """Say which checkpoint is the result so far, as of a training whose loss became NaN."""
        if self.best is None or self.best.start is None:
            return
        text = self.best.sentence(runner.iter // _accumulation(runner))
        runner.logger.info(text)
        row = {"event": KEPT_EVENT, "time": time.time(), "iter": runner.iter, "message": text}
        append_or_warn(runner, HISTORY, row)

    def _run(self, runner: Runner, epoch: int, iteration: int) -> None:
        started = time.monotonic()
        parts: list[Any] = []  # rows; None on the other ranks
        clips = any(getattr(metric, "needs_clips", False) for metric in self.metrics)
        # A training with this hook stays bit-identical to one without.
        states = random_states()
        try:
            for dataloader in (self.gallery, self.queries):
                if isinstance(dataloader, DataLoader):  # before_train built those there are
                    parts.append(extract_features(runner.model, dataloader, clips))
        finally:
            set_random_states(states)

        def evaluate() -> dict[str, Any]:
            place_metrics(self.metrics, runner.model, runner.work_dir)
            found = self._compute(parts[-1], parts[0] if len(parts) > 1 else None)
            record: dict[str, Any] = {"epoch": epoch, "iter": iteration, **found}
            failures = {failure for rows in parts for failure in rows.failures}
            record |= {"videos": len(parts[-1]), "failures": len(failures)}
            record["seconds"] = round(time.monotonic() - started, 3)
            self._report(runner, record)
            return record

        record = run_on_main_rank(evaluate)
        if self.best is not None:
            self._keep(runner, self.best, record)

    def _keep(self, runner: Runner, best: BestSoFar, record: dict[str, Any]) -> None:
        """Keep the checkpoint if it is the best so far; end a training that stays below its start.

        Raises:
            ValueError: the metrics have no such number.
        """
        loop: Any = runner.train_loop
        if best.metric not in record and "error" not in record:
            known = ", ".join(record)
            raise ValueError(f"keep={best.metric!r} is no number of the metrics, these are {known}")
        step = record["iter"] // _accumulation(runner)
        value = float(record.get(best.metric, -math.inf))
        value = -math.inf if math.isnan(value) else value
        if best.update(step, value, record["videos"]):
            meta = {"epoch": record["epoch"], "iter": record["iter"]}
            options: dict[str, Any] = {"save_optimizer": False, "save_param_scheduler": False}
            runner.save_checkpoint(runner.work_dir, KEPT, meta=meta, **options)
        elif step < loop.max_steps and best.is_lost(step, loop.max_steps):
            before = loop.max_steps
            loop.replan(step, step)
            text = (
                f"{best.metric} has been below that of the start ({best.text(best.start)}) since "
                f"step {best.reached:,}, a fifth of the training: it ends at step {step:,}, not "
                f"{before:,}"
            )
            runner.logger.warning(text)
            row = {"event": "replanned", "time": time.time(), "iter": record["iter"]}
            append_or_warn(runner, HISTORY, {**row, "epochs": loop.max_epochs, "message": text})

    def _compute(self, queries: Rows, gallery: Rows | None) -> dict[str, float | str]:
        """The metrics, or an ``error`` instead if the network has diverged."""
        for rows in (queries, gallery):
            if rows is not None:
                if needs_gallery(self.metrics):
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
        else:
            continue_rows(runner, self.out)
