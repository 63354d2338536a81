"""Accuracy from a few labelled samples of each class: nearest class mean and linear classifier.

Class means follow prototypical networks (Snell et al. 2017), and draws follow low-shot SVMs (Goyal
et al. 2019). Nothing is tuned, because so few labels leave none for validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.functional.linear_probe import fit_logistic, standardiser
from sce_video.evaluation.functional.neighbours import check_features
from sce_video.evaluation.functional.statistics import CONFIDENCE, check_class_numbers
from sce_video.utils.tensors import float64_device

#: Names of the classifiers, in the column order of :func:`few_shot_hits`.
CLASSIFIERS = ("linear", "class_mean")


def draw_shots(labels: Tensor, shots: Sequence[int], seed: int) -> list[Tensor]:
    """Draw samples of labels (N,) for each number of shots. Larger draws contain smaller ones.

    For each entry k of ``shots``, the result contains ``k * number of classes`` indices in
    ascending order. ValueError is raised if a class has fewer samples.
    """
    classes, counts = labels.unique(return_counts=True)
    scarce = int(counts.argmin())
    if int(counts[scarce]) < max(shots):
        raise ValueError(
            f"cannot draw {max(shots)} shots of each class, because class {int(classes[scarce])} "
            f"has only {int(counts[scarce])} labelled samples. Give fewer shots"
        )
    # Each number of shots takes the first samples of the same permutation, so the draws are nested.
    generator, order = torch.Generator().manual_seed(seed), []
    for label in classes:
        members = torch.nonzero(labels == label).flatten()
        order.append(members[torch.randperm(len(members), generator=generator)[: max(shots)]])
    columns = torch.stack(order)  # (classes, max(shots))
    return [columns[:, :k].flatten().sort().values for k in shots]


def few_shot_hits(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    *,
    shots: Sequence[int],
    draws: int = 5,
    l2: float = 0.01,
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_fit: Callable[[], None] = lambda: None,
) -> Tensor:
    """Classify queries by a few gallery samples of each class, and return which are correct.

    Features are divided by their norm. ``class_mean`` predicts the class whose mean has the largest
    cosine with the query. ``linear`` is multinomial logistic regression on features standardised by
    the drawn samples, with the fixed weight decay ``l2``, solved to the end by L-BFGS.

    Queries are (N, C) with labels (N,), the gallery (M, C) with labels (M,). ``shots`` samples of
    each class are drawn ``draws`` times, and draw i uses the seed ``seed + i``. The global random
    state is neither used nor changed. ``on_fit`` is called after each of the ``draws * len(shots)``
    fits. The result is (N, draws, len(shots), 2) bool, with the last axis in the order of
    :data:`CLASSIFIERS`.

    Raises:
        ValueError: If features or labels cannot be used, there is only one class, or a class has
            fewer samples than shots.
    """
    check_features(queries, "queries")
    check_features(gallery, "gallery")
    check_class_numbers(query_labels, len(queries), "labels of the queries")
    check_class_numbers(gallery_labels, len(gallery), "labels of the gallery")
    classes, targets = gallery_labels.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"few-shot evaluation needs two classes or more, but all labels are {classes.tolist()}"
        )
    # Compute in float64, because fits to a few samples are ill-conditioned.
    device = float64_device(device)
    x = F.normalize(queries.to(device).double(), dim=1)
    y = F.normalize(gallery.to(device).double(), dim=1)
    hits = torch.zeros(len(x), draws, len(shots), len(CLASSIFIERS), dtype=torch.bool)
    for draw in range(draws):
        for column, rows in enumerate(draw_shots(targets, shots, seed + draw)):
            known, wanted = y[rows.to(device)], targets[rows]
            mean, scale = standardiser(known)
            weight, bias = fit_logistic(
                (known - mean) / scale, wanted.to(known.device), len(classes), l2
            )
            linear = ((x - mean) / scale) @ weight + bias
            members = F.one_hot(wanted).to(known)  # sums suffice: all classes are equally large
            means = F.normalize(members.T @ known, dim=1)
            for kind, scores in enumerate((linear, x @ means.T)):
                predicted = classes[scores.argmax(dim=1).cpu()]
                hits[:, draw, column, kind] = predicted == query_labels.cpu()
            on_fit()
    return hits


def interval_of_mean(values: Tensor) -> tuple[float, float]:
    """Return the mean of independent values (n,) and half its 95 % Student-t interval."""
    from scipy.stats import t  # imported here because it takes 0.5 s

    mean, deviation = float(values.double().mean()), float(values.double().std())
    width = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return mean, width * deviation / math.sqrt(len(values))
