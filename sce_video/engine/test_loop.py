"""Test loop that judges a representation instead of predictions."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader

from sce_video.evaluation import (
    FeatureSet,
    extract_features,
    group_ids,
    judge,
    resolve_protocols,
    save_features,
)
from sce_video.registry import LOOPS

#: Distributions behind the decoding backends.
_DECODERS = ("av", "decord", "torchcodec")


def build_eval_dataloader(cfg: dict | DataLoader, seed: int | None = None) -> DataLoader:
    """A loader that gives every video once, in order, over all processes.

    Fills in what an evaluation loader nearly always has: the sampler
    ``dict(type="DefaultSampler", shuffle=False, round_up=False)``, which repeats nothing and may
    give a process no video at all, the collate function ``sce_video.collate_views``, and
    ``on_error="raise"`` for a :class:`~sce_video.datasets.VideoDataset` that does not say.

    Args:
        cfg: A dataloader config as for mmengine's Runner, or a built loader.
        seed: Of the sampler and the workers.

    Raises:
        ValueError: the data set is to replace bad files by other videos.
    """
    if isinstance(cfg, DataLoader):
        return cfg
    cfg = {
        "sampler": {"type": "DefaultSampler", "shuffle": False, "round_up": False},
        "collate_fn": {"type": "sce_video.collate_views"},
        **cfg,
    }
    loader = Runner.build_dataloader(cfg, seed=seed)
    if getattr(loader.dataset, "on_error", None) == "replace":
        if "on_error" in cfg["dataset"]:
            raise ValueError(
                "on_error='replace' would judge another video in the place of a bad file: "
                "set on_error='raise' or 'skip' in the data set"
            )
        loader.dataset.on_error = "raise"
    return loader


def check_same_classes(queries: Any, bank: Any) -> None:
    """Raise ValueError if two data sets number their classes by different sub-folders.

    The folders are numbered in their sorted order, so a class that only one of the two has would
    shift the labels after it, and the figures would be wrong without a word.

    Args:
        queries: A data set; only a non-empty ``metainfo["classes"]`` is looked at.
        bank: Another one.
    """
    first, second = (
        tuple((getattr(d, "metainfo", None) or {}).get("classes", ())) for d in (queries, bank)
    )
    if first and second and first != second:
        only = [sorted(set(a) - set(b)) for a, b in ((first, second), (second, first))]
        raise ValueError(
            f"the sub-folders of the two data sets differ, so their labels do not agree: only the "
            f"queries have {only[0]}, only the bank has {only[1]}; give both the same classes "
            "or annotation lists"
        )


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
        self.group_pattern = group_pattern
        self.out = out
        self.features_out = features_out
        self._title = ""

    def run(self) -> dict[str, float]:
        """Embed, judge on the first process, print and write; all processes get the figures."""
        self.runner.call_hook("before_test")
        self.runner.call_hook("before_test_epoch")
        extract = partial(extract_features, self.runner.model, log=self.runner.logger.info)
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
                _write_json(
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
        described: dict[str, Any] = {
            "checkpoint": describe_checkpoint(self.runner),
            "config": self.runner.cfg.filename,
            "protocols": self.protocols,
            "videos": len(queries),
            "failures": len(queries.failures),
            "test": describe_dataset(self.dataloader.dataset, queries.num_views),
            "feature_size": queries.features.shape[1],
        }
        if bank is not None and self.bank_dataloader is not None:
            described["bank_videos"] = len(bank)
            described["bank_failures"] = len(bank.failures)
            described["bank"] = describe_dataset(self.bank_dataloader.dataset, bank.num_views)
        else:
            described["group_pattern"] = self.group_pattern
        return described


def describe_checkpoint(runner: Runner) -> dict[str, Any]:
    """Which weights the model holds: path and SHA-256 of ``load_from``, or how they came about."""
    if runner.iter > 0:
        return {"path": None, "source": f"trained in this run, {runner.iter} iterations"}
    path = runner.cfg.get("load_from")
    if path is None:
        return {"path": None, "source": f"random initialisation, seed {runner.seed}"}
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(path), "sha256": digest}


def describe_dataset(dataset: Any, num_views: int) -> dict[str, Any]:
    """Folder, clips x crops, pipeline and decoder with its version.

    Args:
        dataset: A :class:`~sce_video.datasets.VideoDataset`; of another one, what it has of this.
        num_views: Views of a video that came out.
    """
    described: dict[str, Any] = {"type": type(dataset).__name__, "views": num_views}
    if hasattr(dataset, "data_root"):
        described["data_root"] = str(dataset.data_root)
    transforms = getattr(dataset, "pipeline", ())
    described["pipeline"] = [
        {"type": type(t).__name__, **_plain_attributes(t)} for t in getattr(dataset, "pipeline", ())
    ]
    for transform in transforms:
        if hasattr(transform, "num_clips"):
            described["clips"] = transform.num_clips
            described["crops"] = num_views // transform.num_clips
        if hasattr(transform, "backend"):
            described["decoder"] = transform.backend
            described["decoder_version"] = _decoder_version(transform.backend)
    return described


def _plain_attributes(thing: Any) -> dict[str, Any]:
    """Public attributes that are numbers, strings or short lists of them."""
    plain = (bool, int, float, str, type(None))
    return {
        name: value
        for name, value in vars(thing).items()
        if not name.startswith("_")
        and (
            isinstance(value, plain)
            or (isinstance(value, list | tuple) and all(isinstance(v, plain) for v in value))
        )
    }


def _decoder_version(backend: str) -> str:
    """``av 18.1.0``; for ``auto`` those of all installed decoders."""
    versions = []
    for name in _DECODERS if backend not in _DECODERS else (backend,):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


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


def _write_json(path: Path, content: dict) -> None:
    """Written beside its place and moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)
