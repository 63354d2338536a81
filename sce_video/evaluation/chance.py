"""Chance levels: the values of accuracies and retrieval ranks that guessing would reach."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from sce_video.evaluation.rows import Rows

#: Metric name for the accuracy of always predicting the most frequent class.
MAJORITY = "majority_class"

_TOP = re.compile(r"(?:knn|linear)_top(\d+)")
_SHARES = re.compile(r"linear_mean_class|few_shot_(?:linear|class_mean)_\d+")
_RANK = re.compile(r"retrieval(?:_plain)?_r(\d+)")


def chance_levels(names: Iterable[str], rows: Rows, gallery: Rows | None) -> dict[str, float]:
    """Compute the expected values, 0 to 1, of metrics if features do not depend on classes.

    Top-k accuracy is then the accuracy of k different classes drawn at random, and R@k is the
    probability that one of k random gallery videos has the query's class. :data:`MAJORITY` is the
    accuracy of always predicting the gallery's most frequent class. Without a gallery, the gallery
    of a query consists of the videos in all other folds.

    Args:
        names: Names of metrics. Metrics without a chance level are left out.
        rows: Queries with labels and, if there is no gallery, with groups or folds.
        gallery: Labelled samples with which the queries are compared, or None.
    """
    counts, sizes = _gallery_counts(rows, gallery)
    own = counts.gather(1, rows.labels[:, None])[:, 0]
    classes = (counts > 0).sum(dim=1).double()
    found = {}
    for name in names:
        if match := _TOP.fullmatch(name):
            found[name] = float((int(match[1]) / classes).clamp(max=1).mean())
        elif _SHARES.fullmatch(name):
            found[name] = float((1 / classes).mean())
        elif match := _RANK.fullmatch(name):
            missed = torch.ones_like(sizes)
            for drawn in range(int(match[1])):
                missed *= ((sizes - own - drawn) / (sizes - drawn).clamp(min=1)).clamp(min=0)
            found[name] = float((1 - missed).mean())
    if found:
        most = counts.argmax(dim=1)
        found[MAJORITY] = float((most == rows.labels).double().mean())
    return found


def _gallery_counts(rows: Rows, gallery: Rows | None) -> tuple[Tensor, Tensor]:
    """Return each query's gallery size per class (N, classes) and in total (N,), as float64."""
    labels = rows.labels if gallery is None else torch.cat([rows.labels, gallery.labels])
    width = int(labels.max()) + 1
    if gallery is not None:
        counts = torch.bincount(gallery.labels, minlength=width).double().expand(len(rows), -1)
    else:
        folds = rows.tested_together
        assert folds is not None
        numbers = folds.unique(return_inverse=True)[1]
        pairs = torch.bincount(numbers * width + rows.labels)
        own = torch.nn.functional.pad(pairs, (0, -len(pairs) % width)).reshape(-1, width)
        counts = (torch.bincount(rows.labels, minlength=width) - own)[numbers].double()
    return counts, counts.sum(dim=1)
