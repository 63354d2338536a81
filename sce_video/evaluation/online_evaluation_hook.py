"""Evaluation of representations during pretraining, and selection of the best checkpoint."""

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

from sce_video.datasets.labelled import check_same_classes, classes_of
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
from sce_video.utils.records import at
from sce_video.utils.run_files import HISTORY, KEPT
from sce_video.utils.stored_arguments import Word

#: Default value of ``metrics``
_METRICS = ({"type": "KNN"}, {"type": "FeatureStatistics"})
#: Training ends if values stay below the starting value for 1 / _PATIENCE of the steps.
_PATIENCE = 5
#: Event in ``history.jsonl`` that names the resulting checkpoint
KEPT_EVENT = "kept"


@dataclass
class BestSoFar:
    """Starting and best values of a metric, with the optimiser steps at which they were reached.

    If values are equal, the first one is the best, so only an improvement replaces the start.
    """

    metric: str
    start: float | None = None
    best: float = -math.inf
    best_step: int = 0
    reached: int = 0  # last step whose value was not clearly below the starting value

    def update(self, step: int, value: float, videos: int) -> bool:
        """Add a step's value (-inf for none), and return whether it is the best so far.

        For a share of ``videos``, a value is clearly below the start only if it is lower by more
        than one standard error. Runs that were ended because of a dip of two videos have improved
        with another seed.
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
        """Return whether values were clearly below the start for a fifth of ``total`` steps."""
        return _PATIENCE * (step - self.reached) >= total

    def sentence(self, step: int) -> str:
        """Describe the training result after the given number of steps."""
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
        """Format a value for display."""
        if value is None or not math.isfinite(value):
            return "not a number"
        return f"{value:.2f}" if self.metric in NOT_FRACTIONS else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class OnlineResult:
    """Result of one online evaluation.

    Attributes:
        epoch: Number of finished epochs.
        iteration: Number of finished iterations.
        metrics: Values by name, or an ``error`` if the network has diverged.
        videos: Number of evaluated videos.
        failures: Number of files that could not be decoded.
        seconds: Duration of the evaluation.
    """

    epoch: int
    iteration: int
    metrics: dict[str, float | str]
    videos: int
    failures: int
    seconds: float

    def row(self) -> dict[str, float | str]:
        """Return the line for the log and the file of results."""
        counts = {"videos": self.videos, "failures": self.failures, "seconds": self.seconds}
        return {"epoch": self.epoch, "iter": self.iteration, **self.metrics, **counts}


def _accumulation(runner: Any) -> int:
    return runner.optim_wrapper._accumulative_counts


@HOOKS.register_module()
class OnlineEvaluationHook(Hook):
    r"""Hook that logs metrics of the online encoder's features (kNN, collapse) during training.

    It embeds a labelled set in evaluation mode, split over the ranks. The metrics are written to
    the log, the visualizer's backends (TensorBoard) under ``evaluation/``, and a JSON-lines file.
    Training is not affected, because random states, BN statistics and module modes are kept. ::

        custom_hooks = [dict(
            type="OnlineEvaluationHook", interval=5,
            gallery=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            queries=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            metrics=[dict(type="KNN", k=20), dict(type="FeatureStatistics")],
        )]

    Args:
        gallery: Loader, or its config, of the labelled set that provides neighbours.
        queries: Loader, or its config, of the set to evaluate. Without it, each gallery video is
            compared with all others.
        group_pattern: Regular expression with one group, which is searched in the paths
            (``r"person(\d+)"``). A video is compared only with videos of other groups.
        metrics: Configs of feature metrics; None for kNN and the collapse metrics.
        interval: Number of epochs between two evaluations. The last epoch is always evaluated.
        out: JSON-lines file, relative to the work folder. A resumed run keeps the lines up to the
            iteration at which it resumes, and a new run renames an older file.
        evaluate_at_start: Whether to evaluate the network before the first step, as epoch 0.
        evaluations: Number of evaluations after the start, at equal distances in the schedules,
            instead of every ``interval`` epochs.
        keep: Name of a metric that is better if it is larger. The checkpoint with the best value,
            which may be the one before the first step, is kept as ``best.pth``. Training ends if
            the value stays below the starting value for a fifth of the steps. For a share, it must
            be lower by more than one standard error. Checkpoints contain the values so far.
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
                "group_pattern compares the gallery with itself. Remove either queries or "
                "group_pattern"
            )
        if interval < 1:
            raise ValueError(f"interval is in epochs and must be at least 1, got {interval}")
        if evaluations is not None and evaluations < 1:
            raise ValueError(f"evaluations must be at least 1, got {evaluations}")
        if keep is not None and not evaluate_at_start:
            raise ValueError(
                "keep compares a metric with its value before training. Set evaluate_at_start to "
                "True"
            )
        self.gallery, self.queries, self.group_pattern = gallery, queries, group_pattern
        self.metrics = [METRICS.build(dict(metric)) for metric in metrics or _METRICS]
        for metric in self.metrics:
            kinds = getattr(metric, "kinds", ())
            if kinds and "representation" not in kinds:
                raise ValueError(
                    f"online evaluation needs metrics of features, but {type(metric).__name__} is "
                    f"a metric of {' and '.join(kinds)}"
                )
        self.interval, self.out, self.evaluate_at_start = interval, out, evaluate_at_start
        self.evaluations = evaluations
        self.best = None if keep is None else BestSoFar(keep)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Restore the values of a resumed run."""
        saved = at(checkpoint, "kept", dict)
        if self.best is None or not runner._resume or saved is None:
            return
        if saved["metric"] == self.best.metric:
            start, best = float(saved["start"]), float(saved["best"])
            steps = int(saved["best_step"]), int(saved["reached"])
            self.best = BestSoFar(self.best.metric, start, best, *steps)
            # Restore a changed training length. Otherwise, a run that ended early would continue
            # when resumed.
            loop: Any = runner.train_loop
            loop.replans = [(int(a), int(b)) for a, b in saved["replans"]]

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Store the values so far."""
        if self.best is not None and self.best.start is not None:
            loop: Any = runner.train_loop
            replans = [list(change) for change in loop.replans]
            checkpoint["kept"] = {**asdict(self.best), "replans": replans}

    def before_train(self, runner: Runner) -> None:
        """Build the loaders, prepare the file, and evaluate the untrained network."""
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
        # The run may have been started without this hook, so a resumed run may have no starting
        # value.
        lacks_start = self.best is not None and self.best.start is None
        if self.evaluate_at_start and (runner.iter == 0 or lacks_start):
            self._run(runner, runner.epoch, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None):
        """Evaluate at equal distances in the schedules, if ``evaluations`` is set."""
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
        """Report which checkpoint is the result of a finished run."""
        loop: Any = runner.train_loop
        if runner.iter >= loop.max_iters:
            self.after_failure(runner)

    def after_failure(self, runner: Runner) -> None:
        """Report the best checkpoint so far, for example after the loss became NaN."""
        if self.best is None or self.best.start is None:
            return
        text = self.best.sentence(runner.iter // _accumulation(runner))
        runner.logger.info(text)
        row = {"event": KEPT_EVENT, "time": time.time(), "iter": runner.iter, "message": text}
        append_or_warn(runner, HISTORY, row)

    def _run(self, runner: Runner, epoch: int, iteration: int) -> None:
        started = time.monotonic()
        parts: list[Any] = []  # rows on rank 0, None on other ranks
        clips = any(getattr(metric, "needs_clips", False) for metric in self.metrics)
        # Restore the random states, so that training is bit-identical with and without this hook.
        states = random_states()
        try:
            for dataloader in (self.gallery, self.queries):
                if isinstance(dataloader, DataLoader):  # already built by before_train
                    parts.append(extract_features(runner.model, dataloader, clips))
        finally:
            set_random_states(states)

        def evaluate() -> OnlineResult:
            place_metrics(self.metrics, runner.model, runner.work_dir)
            found = self._compute(parts[-1], parts[0] if len(parts) > 1 else None)
            failures = len({failure for rows in parts for failure in rows.failures})
            seconds = round(time.monotonic() - started, 3)
            result = OnlineResult(epoch, iteration, found, len(parts[-1]), failures, seconds)
            self._report(runner, result)
            return result

        result = run_on_main_rank(evaluate)
        if self.best is not None:
            self._keep(runner, self.best, result)

    def _keep(self, runner: Runner, best: BestSoFar, result: OnlineResult) -> None:
        """Keep the checkpoint if it is the best so far, and end a run that stays below its start.

        Raises:
            ValueError: If the metrics do not contain the value to keep.
        """
        loop: Any = runner.train_loop
        if best.metric not in result.metrics and "error" not in result.metrics:
            known = ", ".join(result.metrics)
            raise ValueError(
                f"keep={best.metric!r} is not one of the computed metrics, which are {known}"
            )
        step = result.iteration // _accumulation(runner)
        value = float(result.metrics[best.metric]) if best.metric in result.metrics else math.nan
        value = -math.inf if math.isnan(value) else value
        if best.update(step, value, result.videos):
            runner.save_checkpoint(
                runner.work_dir,
                KEPT,
                save_optimizer=False,
                save_param_scheduler=False,
                meta={"epoch": result.epoch, "iter": result.iteration},
            )
        elif step < loop.max_steps and best.is_lost(step, loop.max_steps):
            before = loop.max_steps
            loop.replan(step, step)
            text = (
                f"{best.metric} has been below its value at the start ({best.text(best.start)}) "
                f"since step {best.reached:,}, for a fifth of the training. Training ends at step "
                f"{step:,} instead of {before:,}"
            )
            runner.logger.warning(text)
            row = {"event": "replanned", "time": time.time(), "iter": result.iteration}
            append_or_warn(runner, HISTORY, {**row, "epochs": loop.max_epochs, "message": text})

    def _compute(self, queries: Rows, gallery: Rows | None) -> dict[str, float | str]:
        """Compute the metrics, or return an ``error`` if the network has diverged."""
        for rows in (queries, gallery):
            if rows is not None:
                if needs_gallery(self.metrics):
                    check_labelled(rows, "online evaluation", "the labelled set")
                if not torch.isfinite(rows.values).all():
                    return {"error": "the representation contains NaN or infinity"}
        if gallery is None:
            pattern, groups = self.group_pattern, torch.arange(len(queries))
            groups = groups if pattern is None else group_ids(queries.paths, pattern)[0]
            queries = replace(queries, groups=groups)
        return dict(compute_metrics(self.metrics, queries, gallery))

    def _report(self, runner: Runner, result: OnlineResult) -> None:
        record = result.row()
        shown = (f"{n} {v:.4f}" if isinstance(v, float) else f"{n} {v}" for n, v in record.items())
        runner.logger.info(f"online evaluation: {', '.join(shown)}")
        if "error" not in result.metrics:
            scalars = {f"evaluation/{name}": value for name, value in result.metrics.items()}
            runner.visualizer.add_scalars(scalars, step=result.iteration)
        log_row(runner, "online", result.iteration, result.epoch, record)
        try:
            append_text(Path(runner.work_dir, self.out), json.dumps(record) + "\n")
        except WriteError as error:  # the log contains the same values
            runner.logger.warning(f"{error}; training continues")

    def _prepare_file(self, runner: Runner) -> None:
        """Drop lines that a resumed run computes again, and rename an older run's file."""
        path = Path(runner.work_dir, self.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        if runner.iter == 0:
            # Keep the file of an older run in this folder by renaming it.
            path.rename(path.with_name(f"{path.name}.before_{runner.timestamp}"))
        else:
            continue_rows(runner, self.out)
