"""Metrics of frozen features: retrieval, kNN, linear probe, few-shot and collapse statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sce_video.evaluation.functional.few_shot import CLASSIFIERS, few_shot_hits, interval_of_mean
from sce_video.evaluation.functional.label_free import clip_hits, lidar, rankme
from sce_video.evaluation.functional.linear_probe import L2_GRID, fit_linear_probe, num_fits
from sce_video.evaluation.functional.neighbours import ROW_BLOCK, Ranking, knn_scores, rank
from sce_video.evaluation.functional.statistics import check_ranks, mean_class_accuracy, top_k_hits
from sce_video.evaluation.metrics.base import (
    RowMetric,
    check_comparable,
    fit_progress,
    for_each_group,
)
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size
from sce_video.models.losses import effective_rank, feature_std
from sce_video.registry import METRICS
from sce_video.utils.tensors import float64_device

#: Prefixes of metric names for centred and plain features
_PREFIXES = {"centred": "retrieval", "plain": "retrieval_plain"}


@METRICS.register_module()
class Retrieval(RowMetric):
    """``retrieval_r1, ...`` (centred features) and ``retrieval_plain_r1, ...``, 0 to 1.

    R@k is the share of queries with a hit among the first k neighbours, for every k in ``ks`` (at
    least 1). See :func:`~sce_video.evaluation.functional.neighbours.rank`.
    """

    key = "retrieval"
    options = ("ks",)
    needs_gallery = True
    kinds = ("representation",)

    def __init__(self, ks: Sequence[int] = (1, 5, 10)) -> None:
        super().__init__()
        check_ranks(ks)
        self.ks = tuple(ks)

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute R@k. Each fold is centred with the mean of its own gallery."""
        found: dict[str, Tensor] = {}
        for name, prefix in _PREFIXES.items():
            # Use a mean per fold, because a fold's test features must not affect other folds.
            hits = for_each_group(rows, gallery, partial(self._hits, name == "centred"))
            found |= {f"{prefix}_r{k}": hits[:, column] for column, k in enumerate(self.ks)}
        return self.means_of(found)

    def _hits(self, centred: bool, queries: Rows, gallery: Rows, num_classes: int) -> Tensor:
        tensors = (queries.values, gallery.values, queries.labels, gallery.labels)
        ranking = rank(*(t.to(self.device) for t in tensors), k=max(self.ks), centred=centred)
        return ranking.found(self.ks).cpu()


class RetrievalResult(NamedTuple):
    """R@k (0 to 1) by k with centred and plain features, and the rankings by these names.

    ``shared`` counts the queries whose path is also in the gallery. Each of them is excluded as its
    own neighbour. ``unseen`` counts the queries of classes that are not in the gallery.
    """

    centred: dict[int, float]
    plain: dict[int, float]
    rankings: dict[str, Ranking]
    shared: int
    unseen: int

    def metrics(self) -> dict[str, float]:
        """Return ``retrieval_r1, ...`` (centred) and ``retrieval_plain_r1, ...``, 0 to 1."""
        centred = {f"retrieval_r{k}": value for k, value in self.centred.items()}
        return centred | {f"retrieval_plain_r{k}": value for k, value in self.plain.items()}


def rank_gallery(
    queries: Rows,
    gallery: Rows,
    *,
    ks: Sequence[int] = (1, 5, 10),
    block: int = 1024,
    gallery_block: int = ROW_BLOCK,
) -> RetrievalResult:
    """Compute R@k of queries in a gallery, with centred and plain features.

    A gallery video with the query's path is excluded, so the two labelled sets may overlap or be
    the same. Centring uses the means of the whole sets. The ranks ``ks`` may have any order.
    ``block`` queries are compared with ``gallery_block`` gallery rows at a time. ValueError is
    raised if labels are missing, features have different sizes, a rank is below 1, or a query has
    no gallery video. The message names files and videos.
    """
    check_ranks(ks)
    for features in (queries, gallery):
        check_labelled(features, "retrieval")
    check_same_size(queries, gallery)
    # If the sets overlap, group by path, so that no video finds itself. Gallery videos that are not
    # queries get the group -1, which no query has.
    number = {path: i for i, path in enumerate(queries.paths)}
    own, others = (
        torch.tensor([number.get(path, -1) for path in part.paths]) for part in (queries, gallery)
    )
    shared = int(torch.isin(own, others).sum())
    rankings = {
        name: rank(
            *(queries.values, gallery.values, queries.labels, gallery.labels),
            k=max(ks),
            centred=name == "centred",
            groups=(own, others) if shared else None,
            block=block,
            gallery_block=gallery_block,
        )
        for name in _PREFIXES
    }
    alone = torch.nonzero(torch.isneginf(rankings["plain"].similarities[:, 0])).flatten().tolist()
    if alone:
        raise ValueError(
            f"{gallery.source or 'the gallery'} contains no video except the query itself for "
            f"{len(alone)} queries, the first is {queries.paths[alone[0]]}"
        )
    # Queries whose class is not in the gallery always count as misses, so report their number.
    unseen = int((~torch.isin(queries.labels, gallery.labels.unique())).sum())
    centred, plain = (
        dict(zip(ks, rankings[name].found(ks).double().mean(dim=0).tolist(), strict=True))
        for name in ("centred", "plain")
    )
    return RetrievalResult(centred, plain, rankings, shared, unseen)


@METRICS.register_module()
class KNN(RowMetric):
    """``knn_top1, knn_top5`` (0 to 1) of :func:`.functional.neighbours.knn_scores`.

    ``k`` is the number of neighbours (at least 1) and ``temperature`` (above 0) scales the weights.
    """

    key = "knn"
    options = ("k", "temperature")
    needs_gallery = True
    kinds = ("representation",)

    def __init__(self, k: int = 20, temperature: float = 0.07) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.k = k
        self.temperature = temperature

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the kNN accuracies. Folds are masked, since nothing is fitted to a gallery."""
        folds = None
        if gallery is not None:
            check_comparable(rows, gallery)
        elif rows.tested_together is None:
            raise ValueError("kNN needs either a gallery or groups. Give one of them")
        else:
            folds = (rows.tested_together.to(self.device),) * 2
        # With folds, the rows themselves serve as the gallery, except for rows in the same fold.
        other = rows if gallery is None else gallery
        num_classes = int(max(rows.labels.max(), other.labels.max())) + 1
        options = {**self.settings(), "num_classes": num_classes, "groups": folds}
        tensors = (t.to(self.device) for t in (rows.values, other.values, other.labels))
        scores = knn_scores(*tensors, **options).cpu()
        return self.means_of({f"knn_top{k}": top_k_hits(scores, rows.labels, k) for k in (1, 5)})


@METRICS.register_module()
class LinearProbe(RowMetric):
    """``linear_top1, linear_top5, linear_mean_class`` (0 to 1) of a probe fitted to the gallery.

    The best weight decay in ``l2_grid`` is selected on ``val_fraction`` of the gallery or of its
    groups (see :func:`~sce_video.evaluation.functional.linear_probe.fit_linear_probe`).
    """

    key = "linear"
    options = ("l2_grid", "val_fraction", "seed", "max_iter")
    needs_gallery = True
    kinds = ("representation",)
    class_means = frozenset({"linear_mean_class"})

    def __init__(
        self,
        l2_grid: Sequence[float] = L2_GRID,
        val_fraction: float = 0.2,
        seed: int = 0,
        max_iter: int = 1000,
    ) -> None:
        super().__init__()
        self.l2_grid, self.val_fraction = tuple(l2_grid), val_fraction
        self.seed, self.max_iter = seed, max_iter

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the accuracies of a linear probe for each gallery."""
        with fit_progress("linear probe:", num_fits(self.l2_grid), rows, gallery) as on_fit:

            def score(queries: Rows, training: Rows, num_classes: int) -> Tensor:
                options = {**self.settings(), "groups": training.kept_together, "on_fit": on_fit}
                options["device"] = self.device
                probe = fit_linear_probe(training.values, training.labels, **options)
                return probe.scores(queries.values, num_classes)

            scores = for_each_group(rows, gallery, score)
        hits = {k: top_k_hits(scores, rows.labels, k) for k in (1, 5)}
        metrics = self.means_of({f"linear_top{k}": values for k, values in hits.items()})
        # This metric is not a mean over samples, so it is listed in class_means.
        self.outcomes["linear_mean_class"] = hits[1]
        return {**metrics, "linear_mean_class": mean_class_accuracy(scores, rows.labels)}


@METRICS.register_module()
class FewShot(RowMetric):
    """``few_shot_linear_1, ..., few_shot_class_mean_1, ...``: accuracy (0 to 1) from few labels.

    Each value is the mean over ``draws`` (2 or more) of labelled samples. results.json contains
    95 % confidence intervals over these draws, with fixed queries, under ``few_shot``. ``shots``
    are numbers of labelled samples per class, and ``l2`` (above 0) is the linear classifier's
    weight decay. See :func:`~sce_video.evaluation.functional.few_shot.few_shot_hits`.
    """

    key = "few_shot"
    options = ("shots", "draws", "l2", "seed")
    needs_gallery = True
    kinds = ("representation",)

    def __init__(
        self,
        shots: Sequence[int] = (1, 2, 5, 10, 20, 50),
        draws: int = 5,
        l2: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not shots or min(shots) < 1 or len(set(shots)) < len(shots):
            raise ValueError(f"shots must be distinct numbers of at least 1, got {tuple(shots)}")
        if draws < 2:
            raise ValueError(f"an interval needs at least two draws, got draws={draws}")
        if l2 <= 0:
            raise ValueError(f"l2 must be above 0, got {l2}")
        self.shots, self.draws, self.l2, self.seed = tuple(shots), draws, l2, seed

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the mean accuracy over draws for each number of shots."""
        fits = self.draws * len(self.shots)
        with fit_progress("few-shot classifiers:", fits, rows, gallery) as on_fit:

            def hits(queries: Rows, training: Rows, num_classes: int) -> Tensor:
                tensors = (queries.values, queries.labels, training.values, training.labels)
                options = {**self.settings(), "device": self.device, "on_fit": on_fit}
                return few_shot_hits(*tensors, **options)

            accuracy = for_each_group(rows, gallery, hits).double().mean(dim=0)
        metrics: dict[str, float] = {}
        table: list[dict[str, object]] = []
        for kind, name in enumerate(CLASSIFIERS):
            for column, shots in enumerate(self.shots):
                draws = accuracy[:, column, kind]  # accuracy is (draws, shots, 2)
                mean, half = interval_of_mean(draws)
                row = {"classifier": name, "shots": shots, "mean": mean}
                ends = [mean - half, mean + half]
                table.append({**row, "interval": ends, "draws": draws.tolist()})
                metrics[f"few_shot_{name}_{shots}"] = mean
        self.details = {"few_shot": table}
        return metrics


@METRICS.register_module()
class FeatureStatistics(RowMetric):
    """``feature_std`` (0 when collapsed, about 1 when well spread), ``effective_rank`` (1 to C)."""

    kinds = ("representation",)

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute :func:`~sce_video.models.losses.feature_std` and ``effective_rank``."""
        values = rows.values.to(float64_device(self.device))
        return {
            "feature_std": float(feature_std(values)),
            "effective_rank": float(effective_rank(values)),
        }


class _ClipMetric(RowMetric):
    """Base class of metrics that use single clips of videos and no labels."""

    needs_clips = True
    kinds = ("representation",)

    def clips_of(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the features (M, C) of the clips and the numbers (M,) of their videos.

        Raises:
            ValueError: If only the means over the clips are known.
        """
        if rows.clips is None or rows.clips.groups is None:
            raise ValueError(
                f"{type(self).__name__} needs the features of single clips, but {rows.name} are "
                "means over clips"
            )
        device = float64_device(self.device)
        return rows.clips.values.to(device), rows.clips.groups.to(device)


@METRICS.register_module()
class RankMe(_ClipMetric):
    """``rankme`` (1 to C): effective rank of the features of all clips.

    See :func:`~sce_video.evaluation.functional.label_free.rankme`.
    """

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the effective rank."""
        return {"rankme": rankme(self.clips_of(rows)[0])}


@METRICS.register_module()
class LiDAR(_ClipMetric):
    """``lidar`` (1 to C): rank of the LDA matrix computed from several clips per video.

    See :func:`~sce_video.evaluation.functional.label_free.lidar`.
    """

    key = "lidar"
    options = ("delta",)

    def __init__(self, delta: float = 1e-4) -> None:
        super().__init__()
        if delta <= 0:
            raise ValueError(f"delta must be positive, got {delta}")
        self.delta = delta

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the rank with the regularisation ``delta``."""
        return {"lidar": lidar(*self.clips_of(rows), delta=self.delta)}


@METRICS.register_module()
class ClipRetrieval(_ClipMetric):
    """``clip_retrieval_r1`` (0 to 1): share of clips whose nearest clip is from the same video.

    See :func:`~sce_video.evaluation.functional.label_free.clip_hits`.
    """

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the retrieval rate. A video's outcome is the rate of its clips."""
        clips, videos = self.clips_of(rows)
        hits = clip_hits(clips, videos).double().cpu()
        counts = torch.bincount(videos.cpu(), minlength=len(rows))
        shares = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, videos.cpu(), hits)
        return self.means_of({"clip_retrieval_r1": shares / counts})
