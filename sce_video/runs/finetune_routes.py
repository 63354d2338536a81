"""The route of a finetuning: frozen features or training, by rules or by a short trial."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor

from sce_video.engine.run_json import Choice
from sce_video.evaluation.scores import load_scores
from sce_video.options.training import AUTO, FINETUNE, FROZEN, OF_GRADIENTS, FinetuneOptions
from sce_video.runs.configs import testing_config, training_config
from sce_video.runs.finetune_subject import Subject, data_settings
from sce_video.runs.fold_probe import CrossValidation, percent
from sce_video.runs.launch import run_test, run_training
from sce_video.runs.plan_frozen import FrozenFeatures
from sce_video.runs.planned_training import add_budget
from sce_video.utils.run_files import RESULTS, SCORES, newest_checkpoint

#: Share of a budget, or of the planned time of a training, that a trial takes.
_SHARE_OF_BUDGET = 0.25
_SHARE_OF_TRAINING = 0.5
#: Seconds of a trial without a budget: a small network is tried in full within the first seconds.
_LEAST_SECONDS = 60.0
_MOST_SECONDS = 600.0


def known_route(
    options: FinetuneOptions, subject: Subject, chosen: Mapping[str, Choice]
) -> Choice | None:
    """Return the route if no trial is needed; None if both routes are possible.

    Args:
        options: Options of the command.
        subject: Source, videos and machine.
        chosen: Settings of a run with gradient training, by name.
    """
    if options.route != AUTO:
        return Choice("route", options.route, "given")
    if options.recipe is not None:
        return Choice("route", FINETUNE, "a recipe of your own is trained")
    if subject.source is None:
        return Choice("route", FINETUNE, "random weights have to be trained")
    for name in OF_GRADIENTS:
        if name in subject.given:
            return Choice("route", FINETUNE, f"{name} is given, which belongs to this route")
    if chosen["head"].value == "attentive":
        return Choice("route", FINETUNE, "an attentive head has to be trained")
    if chosen["frozen"].value == 4:
        return Choice("route", FROZEN, chosen["frozen"].reason)
    return None


@dataclass(frozen=True)
class Trial:
    """A short finetuning on a part of the labelled videos.

    Attributes:
        held: (n,) positions of the tested videos among the compared ones.
        hits: (n,) float64, 1 for a correctly classified video, else 0.
        epochs: Number of epochs.
    """

    held: Tensor
    hits: Tensor
    epochs: int


def trial_seconds(hours: float | None, planned: float) -> float:
    """Return how long a trial may take, in seconds.

    Args:
        hours: Budget of the command; None without one.
        planned: Estimated seconds of the whole training.
    """
    if hours is not None:
        return _SHARE_OF_BUDGET * 3600 * hours
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE_OF_TRAINING * planned))


def try_finetuning(
    subject: Subject,
    features: FrozenFeatures,
    folds: Tensor,
    config_of: Callable[[Mapping[str, Any], str], Config],
    seconds: float | None,
) -> Trial:
    """Finetune on all folds except the first, and test on the first.

    Args:
        subject: Source, videos and machine.
        features: Features of the compared videos, whose indices identify the videos.
        folds: (N,) folds of the compared videos.
        config_of: Function that maps recipe changes, which select the videos, and a folder to a
            training config.
        seconds: Time budget of the training; None for the epochs of the config.

    Raises:
        KeyboardInterrupt: If a signal has stopped the training.
    """
    tested = folds == folds.min()
    held = subject.videos.subset(features.indices[tested].numpy())
    own = replace(subject.part(features.indices[~tested].numpy()), tested=held)
    with tempfile.TemporaryDirectory(prefix="sce_video_") as name:
        folder = Path(name)
        config = config_of(data_settings(own, name), name)
        # The training that follows repeats every warning that is not about the short trial.
        config.run_page, config.log_level = None, "ERROR"
        config.default_hooks.screen = None
        # A validation or an earlier checkpoint would use up the time.
        epochs = config.train_cfg.max_epochs
        config.train_cfg.val_interval = epochs + 1
        config.default_hooks.checkpoint.interval = epochs
        if seconds is not None:
            add_budget(config, seconds / 3600, 0.0, 0.0)
        runner = run_training(training_config(config, work_dir=name))
        if getattr(runner.train_loop, "stopped_by", None) is not None:
            raise KeyboardInterrupt
        checkpoint, dump = newest_checkpoint(folder), folder / SCORES
        out = folder / RESULTS
        run_test(testing_config(config, checkpoint, work_dir=name, out=out, dump=dump))
        scores = load_scores(dump)[0]
    hits = (scores.values.argmax(1) == scores.labels).double()
    return Trial(torch.nonzero(tested).flatten()[scores.indices], hits, runner.epoch)


def better_route(found: CrossValidation, units: Tensor, trial: Trial, planned: int) -> Choice:
    """Return the route that classifies more videos of the trial correctly, or frozen if equal.

    Args:
        found: Cross-validation of the frozen features.
        units: (N,) units of the compared videos.
        trial: Short finetuning.
        planned: Number of epochs of the whole training.
    """
    hits = found.hits()
    frozen = hits[trial.held]
    route = FINETUNE if trial.hits.mean() > frozen.mean() else FROZEN
    own = units[trial.held]
    length = f"{trial.epochs} of {planned} epochs" if trial.epochs < planned else "all epochs"
    reason = (
        f"on {len(own)} held-out videos frozen features reach {percent(frozen, own)}, finetuning "
        f"for {length} {percent(trial.hits, own)}; frozen on all {len(hits)} labelled "
        f"videos, by cross-validation: {percent(hits, units)}"
    )
    return Choice("route", route, reason)
