"""Protocols on files: ``sce-video probe``, ``retrieve``, ``transfer`` and ``fuse-scores``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sce_video.options.protocols import (
    FuseScoresOptions,
    ProbeOptions,
    RetrieveOptions,
    TransferOptions,
)
from sce_video.published.paper_results import MANY_SHOT
from sce_video.utils.records import at

if TYPE_CHECKING:
    from sce_video.evaluation.feature_files import FeaturePair
    from sce_video.evaluation.metrics.base import RowMetric
    from sce_video.evaluation.metrics.feature_metrics import RetrievalResult
    from sce_video.evaluation.rows import Rows


def _check_files(inputs: Sequence[str | None], outputs: Sequence[str | None]) -> None:
    """Raise an error for an input that is missing, or an output that overwrites an input."""
    named = [path for path in inputs if path is not None]
    for path in named:
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}")
    for out in outputs:
        if out is not None and os.path.realpath(out) in map(os.path.realpath, named):
            raise ValueError(f"{out} is an input and would be overwritten. Give another path")


# -- kNN and linear probe ------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe.

    Attributes:
        metrics: Value of every metric by its name.
        table: The metrics as text, next to chance, with 95 % intervals.
        notes: Remarks on the files.
    """

    metrics: dict[str, float]
    table: str
    notes: tuple[str, ...]


def probe(options: ProbeOptions) -> ProbeResult:
    """Run kNN, a linear probe and other evaluation protocols on feature files.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file contains no features or labels, or a video is in both files.
    """
    _check_files([options.test, options.train], [options.json])
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.evaluation.chance import chance_levels
    from sce_video.evaluation.feature_files import load_feature_pair
    from sce_video.evaluation.metrics import base as metric_base
    from sce_video.evaluation.metrics import protocol_class
    from sce_video.evaluation.metrics.feature_metrics import FeatureStatistics
    from sce_video.evaluation.results import compute_results
    from sce_video.evaluation.rows import Grouping

    metrics: list[RowMetric] = [
        protocol_class(name)(**settings) for name, settings in options.settings().items()
    ]
    metrics.append(FeatureStatistics())
    pair = load_feature_pair(options.test, options.train, "probing")
    settings = metric_base.metric_settings(metrics)
    provenance = {**pair.provenance, "protocol_name": "probe", "protocols": settings}
    if pair.gallery is None:
        grouping = Grouping(options.group_pattern, folds=options.folds)
        queries, described = grouping.apply(pair.queries, len(pair.queries))
        provenance |= described
        against = f"leaving out {described['left_out']}"
    else:
        queries = _checked_apart(pair)
        against = f"against {len(pair.gallery)} of {options.train}"
    for metric in metrics:
        metric.dataset_meta = {"classes": at(pair.provenance, "test.classes")}
    results = compute_results(metrics, queries, pair.gallery, provenance, pair.failures)
    listed, texts = metric_base.listed_metrics(metrics, results.metrics)
    levels = chance_levels(results.metrics, queries, pair.gallery)
    results.details["chance"] = levels
    table = metric_base.format_metric_lines(
        metric_base.telling(listed, {"num_classes": len(queries.labels.unique())}, levels),
        f"{len(queries)} videos of {options.test}, {against}",
        results.intervals,
        {"chance": levels},
    )
    if options.json is not None:
        results.write(options.json)
    text = "\n".join([table, *results.drawn, *texts])
    return ProbeResult(results.metrics, text, tuple(pair.notes))


def _checked_apart(pair: FeaturePair) -> Rows:
    """Return the queries, or raise ValueError with the first one that the gallery contains."""
    assert pair.gallery is not None
    trained = set(pair.gallery.paths)
    shared = [path for path in pair.queries.paths if path in trained]
    if shared:
        raise ValueError(
            f"{len(shared)} of {len(pair.queries)} test videos in {pair.queries.source} are also "
            f"in {pair.gallery.source}, the first is {shared[0]}. Remove them from one file, or "
            "evaluate one file with --group-pattern"
        )
    return pair.queries


# -- retrieval -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrieveResult:
    """Result of a retrieval.

    Attributes:
        found: R@k and rankings, with centred and with plain features.
        queries: Number of queries.
        gallery: Number of gallery videos.
        dimensions: Number of dimensions of a feature.
        notes: Remarks on what limits the metrics.
    """

    found: RetrievalResult
    queries: int
    gallery: int
    dimensions: int
    notes: tuple[str, ...]


def retrieve(options: RetrieveOptions) -> RetrieveResult:
    """Compute R@k of queries in a gallery, from feature files.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file contains no features or labels, or their sizes differ.
    """
    _check_files([options.query, options.bank], [options.json, options.neighbours])
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.evaluation.feature_files import load_feature_pair
    from sce_video.evaluation.functional.neighbours import ROW_BLOCK
    from sce_video.evaluation.metrics.feature_metrics import rank_gallery
    from sce_video.evaluation.results import Results

    pair = load_feature_pair(options.query, options.bank, "retrieval")
    queries, gallery = pair.queries, pair.gallery
    assert gallery is not None
    found = rank_gallery(
        queries,
        gallery,
        ks=sorted({*options.ks}),
        block=options.block,
        gallery_block=options.bank_block or ROW_BLOCK,
    )
    provenance = {
        **pair.provenance,
        "protocol_name": "retrieval",
        "ks": list(found.centred),
        "shared_paths": found.shared,
        "queries_of_unseen_classes": found.unseen,
    }
    if found.shared:
        provenance["benchmark"] = None  # no published result allows shared videos
    if options.neighbours is not None:
        _save_neighbours(options.neighbours, queries.paths, found, provenance)
    if options.json is not None:
        details: dict[str, object] = {
            "centred": {f"R@{k}": value for k, value in found.centred.items()},
            "plain": {f"R@{k}": value for k, value in found.plain.items()},
        }
        results = Results(found.metrics(), provenance, pair.failures, details=details)
        results.write(options.json)
    notes = [*pair.notes]
    counted = f"of {len(queries)} queries"
    if found.shared:
        notes.append(
            f"{found.shared} {counted} are also in {options.bank}, and each is excluded from its "
            "own neighbours"
        )
    if found.unseen:
        notes.append(
            f"{found.unseen} {counted} belong to classes that {options.bank} does not contain, and "
            "count as misses"
        )
    dimensions = queries.features.shape[1]
    return RetrieveResult(found, len(queries), len(gallery), dimensions, tuple(notes))


def _save_neighbours(
    path: str, queries: Sequence[str], found: RetrievalResult, provenance: dict[str, object]
) -> None:
    """Write the rankings to an .npz file.

    It contains ``paths`` (N,) of the queries, and ``centred_indices`` and ``plain_indices`` (N, k),
    which are gallery rows in descending order of similarity. ``*_similarities`` and ``*_hits`` have
    the same order.
    """
    import numpy as np

    from sce_video.inference.npz_files import write_npz

    arrays = {"paths": np.array(queries, dtype=np.str_)}
    for name, ranking in found.rankings.items():
        arrays[f"{name}_indices"] = ranking.indices.numpy()
        arrays[f"{name}_similarities"] = ranking.similarities.numpy()
        arrays[f"{name}_hits"] = ranking.hits.numpy()
    write_npz(path, arrays, provenance)


# -- late fusion ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FuseScoresResult:
    """Result of a late fusion.

    Attributes:
        single: Metrics of each file, in the given order.
        fused: Metrics of the fusion.
        videos: Number of videos.
        classes: Number of classes.
    """

    single: tuple[dict[str, float], ...]
    fused: dict[str, float]
    videos: int
    classes: int


def fuse_scores(options: FuseScoresOptions) -> FuseScoresResult:
    """Fuse the scores of several tests of the same videos.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file contains no scores, or videos, labels or classes differ.
    """
    _check_files(options.scores, [options.json, options.out])
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.evaluation.metrics.base import compute_metrics
    from sce_video.evaluation.metrics.classification import MeanClassAccuracy, TopKAccuracy
    from sce_video.evaluation.results import Results
    from sce_video.evaluation.scores import load_scores, save_scores, weighted_mean

    loaded = [load_scores(path) for path in options.scores]
    sets = [scores for scores, _ in loaded]
    fused = weighted_mean(sets, options.weights or None)
    accuracies = [TopKAccuracy(), MeanClassAccuracy()]
    single = [compute_metrics(accuracies, scores) for scores in sets]
    metrics = compute_metrics(accuracies, fused)
    provenance = _fused_provenance(options, fused, [stored for _, stored in loaded], single)
    if options.out is not None:
        save_scores(options.out, fused, provenance)
    if options.json is not None:
        Results(metrics, provenance, fused.failures).write(options.json)
    return FuseScoresResult(tuple(single), metrics, len(fused), fused.num_classes)


def _fused_provenance(
    options: FuseScoresOptions,
    fused: Rows,
    provenances: Sequence[Mapping[str, object]],
    single: Sequence[dict[str, float]],
) -> dict[str, object]:
    """Return the entries that all files share, and the hash, weight and metrics of each file."""
    from sce_video.engine.checkpoint import file_sha256

    first, *others = provenances
    agreed = {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
    files = zip(
        options.scores,
        options.weights or [1.0] * len(provenances),
        single,
        provenances,
        strict=True,
    )
    return {
        **agreed,
        "kind": "recognition",
        "benchmark": None,  # a fusion is not the result of one network
        "videos": len(fused),
        "failures": len(fused.failures),
        "fusion": [
            {
                "path": path,
                "sha256": file_sha256(path),
                "weight": weight,
                "metrics": metrics,
                "protocol": stored,
            }
            for path, weight, metrics, stored in files
        ],
    }


# -- transfer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransferResult:
    """Result of a transfer protocol.

    Attributes:
        metrics: Value of every metric by its name.
        published: SCE's results in the paper by metric, in percent; empty if there are none.
        c: The C of the linear classifier; None for SVMs.
        notes: Remarks on the files and on C.
    """

    metrics: dict[str, float]
    published: dict[str, float]
    c: float | None
    notes: tuple[str, ...]


def transfer(options: TransferOptions) -> TransferResult:
    """Fit linear classifiers or SVMs on features of one split, and test them on another.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such dataset, or the files do not fit the protocol.
    """
    known = sorted(name for name, *_ in MANY_SHOT)
    if options.set is not None and options.set not in known:
        raise ValueError(
            f"the paper has no many-shot set {options.set!r}. Choose one of {', '.join(known)}"
        )
    files = {"train": options.train, "val": options.val, "test": options.test}
    _check_files([*files.values(), options.labels], [options.json])
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.evaluation import transfer as protocols

    parts = protocols.load_transfer_parts(files, options.labels)
    published: dict[str, float] = {}
    notes = [*parts.notes]
    chosen_c = None
    if options.protocol == "svm":
        shots = [None if count == "full" else int(count) for count in options.shots]
        found = protocols.evaluate_low_shot(parts, shots, options.draws, options.seed)
        results = protocols.on_dataset(found, "voc2007")
        for count, name in zip(shots, options.shots, strict=True):
            if count in protocols.LOW_SHOT_PUBLISHED:
                published[f"low_shot_map_{name}"] = protocols.LOW_SHOT_PUBLISHED[count]
    else:
        own = protocols.ManyShotSet(str(options.metric), options.val is not None)
        of_set = own if options.set is None else protocols.MANY_SHOT_SETS[options.set]
        grid = protocols.C_GRID if options.c is None else (options.c,)
        found = protocols.evaluate_many_shot(parts, of_set.metric, of_set.official_val, grid)
        results = protocols.on_dataset(found, options.set)
        results.protocol["published"] = of_set.published
        chosen_c = results.protocol["c"]
        if of_set.published is not None:
            published[f"many_shot_{of_set.metric}"] = of_set.published
        if options.c is None and chosen_c in (grid[0], grid[-1]):
            notes.append("the chosen C is at the end of the range that was tried")
    if options.json is not None:
        results.write(options.json)
    return TransferResult(results.metrics, published, chosen_c, tuple(notes))
