"""Test loop that judges a representation instead of predictions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader

from sce_video.datasets.labels import check_same_classes
from sce_video.evaluation.dataloaders import build_eval_dataloader, different_steps
from sce_video.evaluation.features import FeatureSet, extract_features, save_features
from sce_video.evaluation.judge import group_ids, judge, resolve_protocols
from sce_video.evaluation.provenance import describe_dataset, describe_run
from sce_video.registry import LOOPS
from sce_video.utils.atomic_file import write_json


@LOOPS.register_module()
class RepresentationTestLoop(BaseLoop):
    r"""Embed a labelled set with the frozen network and judge it: kNN, linear probe, retrieval.

    The queries are ``test_dataloader``. What they are compared with is either ``bank_dataloader``
    or, with ``group_pattern``, the other groups of the same set (leave one person out)::

        test_dataloader = dict(batch_size=8, num_workers=2, dataset=dict(...))
        test_evaluator = dict()
        test_cfg = dict(
            type="RepresentationTestLoop",
            bank_dataloader=dict(batch_size=8, num_workers=2, dataset=dict(...)),
            # or: group_pattern=r"person(\d+)",
            protocols=dict(knn=dict(k=20), linear=dict(), retrieval=dict(ks=(1, 5, 10))),
        )

    ``test_evaluator=dict()`` is there because mmengine's Runner wants test loader, loop and
    evaluator all or none; it must be empty, since nothing is predicted that a metric could score.

    Args:
        runner: The runner.
        dataloader: The queries.
        evaluator: Empty, see above.
        bank_dataloader: The labelled set that neighbours and the probe's training come from.
        group_pattern: A regular expression with one group, searched in the paths.
        protocols: See :func:`sce_video.evaluation.resolve_protocols`; None is all, by default.
        max_views: Views of a video at a time, where the device cuts them; bounds its memory.
        out: JSON file of results and protocol, relative to the work dir; None writes none.
        features_out: A .npz file to keep the features of the queries in (the bank's beside it,
            as ``NAME_bank.npz``); None keeps none.

    Raises:
        ValueError: both or neither of bank and group pattern, an unknown protocol or option, a
            bank with other class folders than the queries, or an evaluator that is not empty.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        bank_dataloader: DataLoader | dict | None = None,
        group_pattern: str | None = None,
        protocols: dict[str, dict] | None = None,
        max_views: int = 30,
        out: str | None = "results.json",
        features_out: str | None = None,
    ) -> None:
        if evaluator:
            raise ValueError(
                "RepresentationTestLoop computes its own figures: set test_evaluator = dict()"
            )
        if (bank_dataloader is None) == (group_pattern is None):
            raise ValueError(
                "test_cfg needs bank_dataloader (a labelled set to compare with) or "
                "group_pattern (leave one group of the test set out), and not both"
            )
        self.protocols = resolve_protocols(protocols)
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        self.bank_dataloader = None
        if bank_dataloader is not None:
            self.bank_dataloader = build_eval_dataloader(bank_dataloader, runner.seed)
            check_same_classes(self.dataloader.dataset, self.bank_dataloader.dataset)
            differing = different_steps(dataloader, bank_dataloader)
            if differing:
                runner.logger.warning(
                    "the test videos and those of the bank do not pass the same pipeline, so their "
                    f"features may not be comparable: {'; '.join(differing)} (change "
                    "test_cfg.bank_dataloader.dataset.pipeline as test_dataloader.dataset.pipeline)"
                )
        self.group_pattern = group_pattern
        self.max_views = max_views
        self.out = out
        self.features_out = features_out
        self._title = ""

    def run(self) -> dict[str, float]:
        """Embed, judge on the first process, print and write; all processes get the figures."""
        self.runner.call_hook("before_test")
        self.runner.call_hook("before_test_epoch")
        extract = partial(
            extract_features,
            self.runner.model,
            log=self.runner.logger.info,
            max_views=self.max_views,
        )
        queries = extract(self.dataloader)
        bank = None if self.bank_dataloader is None else extract(self.bank_dataloader)
        answer: list[Any] = [None]
        if is_main_process():
            answer[0] = self._judge(queries, bank)
        broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        metrics = answer[0]
        self.runner.call_hook("after_test_epoch", metrics=metrics)
        self.runner.call_hook("after_test")
        if is_main_process():
            self.runner.logger.info("\n" + format_table(metrics, self._title))
        return metrics

    def _judge(self, queries: FeatureSet, bank: FeatureSet | None) -> dict[str, float] | Exception:
        """On the first process; an error is returned, so that the others hear of it."""
        try:
            protocol = self._describe(queries, bank)
            self._save_features(queries, bank, protocol)
            groups = None
            if self.group_pattern is not None:
                groups, names = group_ids(queries.paths, self.group_pattern)
                protocol["groups"] = names
            metrics = judge(queries, bank, groups=groups, protocols=self.protocols)
            self._title = _title(protocol)
            if self.out is not None:
                write_json(
                    Path(self.runner.work_dir) / self.out,
                    {
                        "metrics": metrics,
                        "protocol": protocol,
                        "failures": [
                            list(f) for part in (queries, bank) if part for f in part.failures
                        ],
                    },
                )
        except (ValueError, RuntimeError, OSError) as error:
            return error
        return metrics

    def _save_features(self, queries: FeatureSet, bank: FeatureSet | None, protocol: dict) -> None:
        if self.features_out is None:
            return
        path = Path(self.runner.work_dir) / self.features_out
        save_features(path, queries, protocol)
        if bank is not None:
            save_features(path.with_name(f"{path.stem}_bank{path.suffix}"), bank, protocol)

    def _describe(self, queries: FeatureSet, bank: FeatureSet | None) -> dict[str, Any]:
        """Everything that the figures depend on."""
        described = describe_run(
            self.runner, self.dataloader.dataset, queries.num_views, "representation"
        )
        described["protocols"] = self.protocols
        described["videos"] = len(queries)
        described["failures"] = len(queries.failures)
        described["feature_size"] = queries.features.shape[1]
        if bank is not None and self.bank_dataloader is not None:
            described["bank_videos"] = len(bank)
            described["bank_failures"] = len(bank.failures)
            described["bank"] = describe_dataset(self.bank_dataloader.dataset, bank.num_views)
        else:
            described["group_pattern"] = self.group_pattern
        return described


def _title(protocol: dict[str, Any]) -> str:
    checkpoint = protocol["checkpoint"]
    name = checkpoint["source"] if checkpoint["path"] is None else checkpoint["path"]
    against = (
        f"against {protocol['bank_videos']}"
        if "bank_videos" in protocol
        else f"leaving out one of {len(protocol['groups'])} groups"
    )
    test = protocol["test"]
    views = f"{test['clips']} x {test['crops']}" if "clips" in test else f"{test['views']}"
    return f"{name}: {protocol['videos']} videos {against}, {views} views of each"


def format_table(metrics: dict[str, float], title: str) -> str:
    """Two columns: shares from 0 to 1 in percent, the health figures as they are."""
    plain = ("feature_std", "effective_rank")
    width = max(map(len, metrics))
    lines = [title]
    for name, value in metrics.items():
        text = f"{value:8.2f}" if name in plain else f"{100 * value:8.2f} %"
        lines.append(f"  {name:<{width}} {text}")
    return "\n".join(lines)
