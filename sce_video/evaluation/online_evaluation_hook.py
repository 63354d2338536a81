"""Judging the representation while it is being trained."""

from __future__ import annotations

import json
import os
import time
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
from sce_video.evaluation.features import FeatureSet, extract_features
from sce_video.evaluation.functional.accuracy import top_k_accuracy
from sce_video.evaluation.functional.knn import knn_scores
from sce_video.evaluation.judge import group_ids
from sce_video.models.losses import effective_rank, feature_std
from sce_video.registry import HOOKS
from sce_video.utils.atomic_file import write_text


@HOOKS.register_module()
class OnlineEvaluationHook(Hook):
    r"""Weighted kNN accuracy and collapse figures of the online encoder every few epochs.

    Embeds a labelled set that training need not know, in eval mode, and reports ``knn_top1``,
    ``knn_top5`` (0 to 1), ``feature_std`` (1 is well spread, 0 collapsed) and ``effective_rank``
    to the log, to the visualizer's backends (TensorBoard) under ``judge/`` and as a line of a
    JSON-lines file. Training is not disturbed: random states, BN statistics and the mode of every
    module are afterwards what they were. ::

        custom_hooks = [dict(
            type="OnlineEvaluationHook", interval=5,
            bank=dict(batch_size=16, num_workers=2, dataset=dict(...)),
            queries=dict(batch_size=16, num_workers=2, dataset=dict(...)),
        )]

    Without ``queries`` the bank judges itself: with ``group_pattern`` a video is compared with
    those of other groups only (``r"person(\d+)"``), else with all others.

    With several processes each embeds its share; the first one compares and writes.

    Args:
        bank: Config of the labelled loader that neighbours are taken from. The sampler and the
            collate function may be left out.
        queries: Config of the loader of what is judged.
        group_pattern: A regular expression with one group, searched in the paths.
        interval: Epochs between two judgements; the last epoch is always judged.
        k: Neighbours that vote.
        temperature: Of the votes.
        out: JSON-lines file, relative to the work dir. A resumed run keeps the lines up to the
            epoch it resumes at; a new run moves an older file aside.
        judge_at_start: Also judge the untrained network, as epoch 0.

    Raises:
        ValueError: both ``queries`` and ``group_pattern``, ``interval < 1``, unlabelled videos.
    """

    priority = "LOW"

    def __init__(
        self,
        bank: dict | DataLoader,
        queries: dict | DataLoader | None = None,
        group_pattern: str | None = None,
        interval: int = 1,
        k: int = 20,
        temperature: float = 0.07,
        out: str = "online_judge.jsonl",
        judge_at_start: bool = True,
    ) -> None:
        if queries is not None and group_pattern is not None:
            raise ValueError("group_pattern compares a bank with itself: drop queries or it")
        if interval < 1:
            raise ValueError(f"interval is in epochs and must be at least 1, got {interval}")
        self.bank = bank
        self.queries = queries
        self.group_pattern = group_pattern
        self.interval = interval
        self.k = k
        self.temperature = temperature
        self.out = out
        self.judge_at_start = judge_at_start

    def before_train(self, runner: Runner) -> None:
        """Build the loaders, tidy the file, judge the untrained network."""
        states = random_states()
        try:
            self.bank = build_eval_dataloader(self.bank, runner.seed)
            if self.queries is not None:
                self.queries = build_eval_dataloader(self.queries, runner.seed)
                check_same_classes(self.queries.dataset, self.bank.dataset)
        finally:
            set_random_states(states)
        if is_main_process():
            self._prepare_file(runner)
        if self.judge_at_start and runner.iter == 0:
            self._judge(runner, epoch=0)

    def after_train_epoch(self, runner: Runner) -> None:
        """Judge every ``interval`` epochs and after the last one."""
        if self.every_n_epochs(runner, self.interval) or self.is_last_train_epoch(runner):
            self._judge(runner, epoch=runner.epoch + 1)

    def _judge(self, runner: Runner, epoch: int) -> None:
        started = time.monotonic()
        states = random_states()
        try:
            queries = bank = self._extract(runner, self.bank)
            if self.queries is not None:
                queries = self._extract(runner, self.queries)
        finally:
            set_random_states(states)
        groups = self._groups(queries, bank)  # raises on all processes alike
        if not is_main_process():
            return
        record: dict[str, Any] = {"epoch": epoch, "iter": runner.iter}
        if torch.isfinite(queries.features).all() and torch.isfinite(bank.features).all():
            record.update(self._figures(queries, bank, groups, _device(runner.model)))
        else:
            record["error"] = "the representation holds NaN or infinity"
        record["videos"] = len(queries)
        record["failures"] = len({*queries.failures, *bank.failures})
        record["seconds"] = round(time.monotonic() - started, 3)
        self._report(runner, record)

    def _extract(self, runner: Runner, dataloader: DataLoader | dict) -> FeatureSet:
        assert isinstance(dataloader, DataLoader)  # built before the training
        with outliving_workers(dataloader):
            return extract_features(runner.model, dataloader)

    def _groups(self, queries: FeatureSet, bank: FeatureSet) -> torch.Tensor | None:
        """Group numbers of a bank that judges itself: persons, or every video for itself."""
        for part in (queries, bank):
            if (part.labels < 0).any():
                row = int(torch.nonzero(part.labels < 0)[0])
                raise ValueError(f"online judging needs labels; {part.paths[row]} has none")
        if self.queries is not None:
            return None
        if self.group_pattern is not None:
            return group_ids(bank.paths, self.group_pattern)[0]
        return torch.arange(len(bank))

    def _figures(
        self,
        queries: FeatureSet,
        bank: FeatureSet,
        groups: torch.Tensor | None,
        device: torch.device,
    ) -> dict[str, float]:
        if groups is not None:
            groups = groups.to(device)
        num_classes = int(torch.cat([queries.labels, bank.labels]).max()) + 1
        scores = knn_scores(
            queries.features.to(device),
            bank.features.to(device),
            bank.labels.to(device),
            num_classes=num_classes,
            k=self.k,
            temperature=self.temperature,
            query_groups=groups,
            bank_groups=groups,
        )
        accuracy = top_k_accuracy(scores.cpu(), queries.labels, (1, 5))
        return {
            "knn_top1": accuracy[1],
            "knn_top5": accuracy[5],
            "feature_std": float(feature_std(queries.features)),
            "effective_rank": float(effective_rank(queries.features)),
        }

    def _report(self, runner: Runner, record: dict[str, Any]) -> None:
        shown = ", ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in record.items()
        )
        runner.logger.info(f"online judge: {shown}")
        scalars = {
            f"judge/{name}": record[name]
            for name in ("knn_top1", "knn_top5", "feature_std", "effective_rank")
            if name in record
        }
        if scalars:
            runner.visualizer.add_scalars(scalars, step=record["iter"])
        with open(self._path(runner), "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _path(self, runner: Runner) -> Path:
        return Path(runner.work_dir) / self.out

    def _prepare_file(self, runner: Runner) -> None:
        """A resumed run cuts off what it will judge again; a new run starts a new file."""
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
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
