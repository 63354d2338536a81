"""Judging a set of features by kNN, linear probe and retrieval in one go."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sce_video.evaluation.features import FeatureSet
from sce_video.evaluation.functional.accuracy import mean_class_accuracy, top_k_hits
from sce_video.evaluation.functional.knn import knn_scores
from sce_video.evaluation.functional.linear_probe import L2_GRID, fit_linear_probe
from sce_video.evaluation.functional.retrieval import retrieval_hits
from sce_video.models.losses.collapse import effective_rank, feature_std

#: Every protocol with its options and their defaults.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "knn": {"k": 20, "temperature": 0.07},
    "linear": {"l2_grid": L2_GRID, "val_fraction": 0.2, "seed": 0, "max_iter": 1000},
    "retrieval": {"ks": (1, 5, 10)},
}


def resolve_protocols(protocols: dict[str, dict] | None = None) -> dict[str, dict]:
    """The protocols asked for, with every option filled in.

    Args:
        protocols: For example ``dict(knn=dict(k=10), retrieval=dict())``; None is all of them.

    Raises:
        ValueError: an unknown protocol or option, with the nearest known one; none at all.
    """
    if protocols is None:
        protocols = {name: {} for name in PROTOCOLS}
    if not protocols:
        raise ValueError(f"no protocol to judge by; choose from {sorted(PROTOCOLS)}")
    resolved = {}
    for name, options in protocols.items():
        _known(name, PROTOCOLS, "protocol")
        for option in options:
            _known(option, PROTOCOLS[name], f"option of the protocol {name!r}")
        resolved[name] = {**PROTOCOLS[name], **options}
    return resolved


def _known(name: str, among: dict, what: str) -> None:
    if name not in among:
        near = difflib.get_close_matches(name, list(among), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {sorted(among)}"
        raise ValueError(f"unknown {what}: {name!r}; {hint}")


def group_ids(paths: Sequence[str], pattern: str) -> tuple[Tensor, list[str]]:
    r"""Group of every path, for leave-one-group-out judging.

    Args:
        paths: N paths.
        pattern: A regular expression with one group, searched in the path: ``r"person(\d+)"``.

    Returns:
        Numbers (N,) int64 and the groups' names in the order of the numbers.

    Raises:
        ValueError: not one group in the pattern, a path without a match, fewer than two groups.
    """
    compiled = re.compile(pattern)
    if compiled.groups != 1:
        raise ValueError(f"group_pattern {pattern!r} must have one group, has {compiled.groups}")
    found = [compiled.search(path) for path in paths]
    unmatched = [path for path, match in zip(paths, found, strict=True) if match is None]
    if unmatched:
        raise ValueError(
            f"group_pattern {pattern!r} matches nothing in {len(unmatched)} of {len(paths)} "
            f"paths, the first is {unmatched[0]!r}"
        )
    values = [match.group(1) for match in found if match is not None]
    names = sorted(set(values))
    if len(names) < 2:
        raise ValueError(f"group_pattern {pattern!r} gives only the group {names}; two are needed")
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[value] for value in values]), names


def judge(
    queries: FeatureSet,
    bank: FeatureSet | None = None,
    *,
    groups: Tensor | None = None,
    protocols: dict[str, dict] | None = None,
) -> dict[str, float]:
    """Judge a representation.

    With a ``bank`` (the labelled training features), the queries are the test set. With
    ``groups`` instead, every group is the test set once and all others are its bank: centring,
    standardising and the choice of the probe's weight decay happen anew for each, and accuracies
    are those of all queries pooled.

    Args:
        queries: What is judged.
        bank: What neighbours and training samples are taken from.
        groups: (N,) numbers of the queries' groups, as :func:`group_ids` gives them.
        protocols: See :func:`resolve_protocols`.

    Returns:
        Numbers from 0 to 1: ``knn_top1, knn_top5, linear_top1, linear_top5, linear_mean_class,
        retrieval_r1, ...`` (centred) and ``retrieval_plain_r1, ...``; then ``feature_std`` (1 is
        well spread, 0 collapsed) and ``effective_rank`` (up to C) of the queries' features.

    Raises:
        ValueError: unlabelled videos, a class that only the test set has, bad features, both or
            neither of ``bank`` and ``groups``.
    """
    if (bank is None) == (groups is None):
        raise ValueError("give either a bank or groups for leave-one-group-out")
    options = resolve_protocols(protocols)
    for name, features in (("query", queries), ("bank", bank)):
        if features is not None:
            _check_labelled(features, name)
    labels = queries.labels if bank is None else torch.cat([queries.labels, bank.labels])
    num_classes = int(labels.max()) + 1
    order, parts = [], []
    if groups is None:
        assert bank is not None
        parts.append(_judge_part(queries, bank, num_classes, options))
        order.append(torch.arange(len(queries)))
    else:
        for group in groups.unique():
            inside = groups == group
            part = _judge_part(
                queries.subset(inside), queries.subset(~inside), num_classes, options
            )
            parts.append(part)
            order.append(torch.nonzero(inside).flatten())
    pooled = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    metrics = _summarise(pooled, queries.labels[torch.cat(order)], options)
    metrics["feature_std"] = float(feature_std(queries.features))
    metrics["effective_rank"] = float(effective_rank(queries.features))
    return metrics


def _check_labelled(features: FeatureSet, name: str) -> None:
    unlabelled = torch.nonzero(features.labels < 0).flatten().tolist()
    if unlabelled:
        raise ValueError(
            f"judging needs labels: {len(unlabelled)} of {len(features)} {name} videos have none, "
            f"the first is {features.paths[unlabelled[0]]}"
        )


def _judge_part(
    queries: FeatureSet, bank: FeatureSet, num_classes: int, options: dict[str, dict]
) -> dict[str, Tensor]:
    """Per-query results of one test set against one bank."""
    unseen = sorted(set(queries.labels.tolist()) - set(bank.labels.tolist()))
    if unseen:
        example = queries.paths[queries.labels.tolist().index(unseen[0])]
        raise ValueError(
            f"classes {unseen} occur among the queries (as {example}) but not in the bank: "
            "no neighbour and no probe can name them"
        )
    results = {}
    if "knn" in options:
        results["knn"] = knn_scores(
            queries.features,
            bank.features,
            bank.labels,
            num_classes=num_classes,
            **options["knn"],
        )
    if "linear" in options:
        probe = fit_linear_probe(bank.features, bank.labels, **options["linear"])
        results["linear"] = probe.scores(queries.features, num_classes)
    if "retrieval" in options:
        for name, centred in (("retrieval", True), ("retrieval_plain", False)):
            results[name] = retrieval_hits(
                queries.features,
                bank.features,
                queries.labels,
                bank.labels,
                ks=options["retrieval"]["ks"],
                centred=centred,
            )
    return results


def _summarise(
    results: dict[str, Tensor], labels: Tensor, options: dict[str, dict]
) -> dict[str, float]:
    metrics = {}
    for name, values in results.items():
        if name in ("knn", "linear"):
            for k in (1, 5):
                metrics[f"{name}_top{k}"] = float(top_k_hits(values, labels, k).double().mean())
        else:
            for i, k in enumerate(options["retrieval"]["ks"]):
                metrics[f"{name}_r{k}"] = float(values[:, i].double().mean())
        if name == "linear":
            metrics["linear_mean_class"] = mean_class_accuracy(values, labels)
    return metrics
