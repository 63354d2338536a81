"""What guessing reaches: the numbers that accuracies and retrieval ranks stand next to."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from sce_video.evaluation.rows import Rows

#: Name of the accuracy of always naming the most frequent class.
MAJORITY = "majority_class"

_TOP = re.compile(r"(?:knn|linear)_top(\d+)")
_SHARES = re.compile(r"linear_mean_class|few_shot_(?:linear|class_mean)_\d+")
_RANK = re.compile(r"retrieval(?:_plain)?_r(\d+)")


def chance_levels(names: Iterable[str], rows: Rows, gallery: Rows | None) -> dict[str, float]:
    """Expected values, 0 to 1, of metrics if features have nothing to do with classes.

    Top-k accuracy is then that of k different classes drawn at random, and R@k the chance that one
    of k random videos of the gallery has the class of the query. :data:`MAJORITY` is the accuracy
    of always naming the most frequent class of the gallery. Without a gallery, that of a query are
    the videos of all other folds.

    Args:
        names: Names of metrics; those without a chance level are left out.
        rows: Queries with labels and, without a gallery, with groups or folds.
        gallery: Labelled samples that they are compared with, or None.
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
    """Samples of each class (N, classes) in the gallery of each query, and of all, (N,) float64."""
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
