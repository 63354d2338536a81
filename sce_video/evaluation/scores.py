"""Class scores of the videos of a dataset: .npz files and late fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sce_video.evaluation.feature_files import features_of, rows_of
from sce_video.evaluation.rows import Rows
from sce_video.inference.features import read_matrix, write_features

#: Largest allowed deviation from 1 of the sum of a video's probabilities (half precision is
#: inexact).
_SUM_TOLERANCE = 1e-2


def save_scores(path: str | Path, scores: Rows, provenance: dict | None = None) -> None:
    """Write ``scores, one_view_scores, labels, indices, paths, protocol`` to a .npz file.

    Scores (N, C) are stored as float32, and ``protocol`` is the provenance with the failures, as
    JSON text. The file is written atomically and read without pickle. ValueError is raised if the
    name does not end in .npz.
    """
    others = {}
    if scores.central is not None:
        others["one_view_scores"] = scores.central.detach().cpu().float().numpy()
    write_features(path, features_of(scores, provenance, others), name="scores")


def load_scores(path: str | Path) -> tuple[Rows, dict]:
    """Read what :func:`save_scores` wrote: the scores and their provenance.

    Files of other programs may lack ``one_view_scores``, ``indices`` and ``protocol``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a file of scores, lengths differ, a score is not finite, or a label
            is out of range. The message names the file and the video.
    """
    found = read_matrix(path, "a file of scores", "scores", ["labels"], ["one_view_scores"])
    one_view = {name: torch.from_numpy(values) for name, values in found.others.items()}
    loaded = replace(rows_of(found), central=one_view.get("one_view_scores"))
    for name, values in {"scores": loaded.values, **one_view}.items():
        finite = torch.isfinite(values).all(dim=1)
        loaded.refuse(~finite, f"{name!r} contains NaN or infinity")
    outside = (loaded.labels < -1) | (loaded.labels >= loaded.num_classes)
    loaded.refuse(
        outside, f"labels are out of range, because there are only {loaded.num_classes} classes"
    )
    return loaded, found.provenance


def weighted_mean(sets: Sequence[Rows], weights: Sequence[float] | None = None) -> Rows:
    """Average the class probabilities of several networks, or several inputs, by weights.

    The videos are matched by path, and the result is in the order of the first set. One-view scores
    are fused if all sets have them. The weights, by default equal ones, are divided by their sum.
    ValueError is raised for fewer than two sets, invalid weights, a video that one set lacks or
    contains twice, labels or numbers of classes that differ, or scores that are not probabilities.
    """
    if len(sets) < 2:
        raise ValueError(f"fusion needs at least two sets of scores, got {len(sets)}")
    given = [1.0] * len(sets) if weights is None else [float(weight) for weight in weights]
    if len(given) != len(sets):
        raise ValueError(f"{len(given)} weights {given} do not match {len(sets)} sets of scores")
    if not all(0 <= weight < float("inf") for weight in given) or sum(given) == 0:
        raise ValueError(f"weights must be finite and at least 0, and not all 0, got {given}")
    shares = [weight / sum(given) for weight in given]
    first = sets[0]
    # Match videos by path, because another run may have listed them in another order.
    aligned = [other.subset(_order(first, other)) for other in sets]
    for scores in sets:
        for values in (scores.values, scores.central):
            if values is not None:
                off = (values.double().sum(dim=1) - 1).abs() > _SUM_TOLERANCE
                wrong = off | (values < 0).any(dim=1) | ~torch.isfinite(values).all(dim=1)
                scores.refuse(wrong, "scores to fuse must be probabilities (softmax)")
    kept = [scores.central for scores in aligned if scores.central is not None]

    def mean(matrices: list[Tensor]) -> Tensor:
        # Compute in float64, so that the order of the sets does not affect the displayed values.
        weighted = (w * m.double() for w, m in zip(shares, matrices, strict=True))
        return sum(weighted, torch.zeros((), dtype=torch.float64)).float()

    return Rows(
        values=mean([scores.values for scores in aligned]),
        central=mean(kept) if len(kept) == len(sets) else None,
        labels=first.labels,
        indices=first.indices,
        paths=first.paths,
        failures=list(dict.fromkeys(pair for scores in sets for pair in scores.failures)),
    )


def _order(first: Rows, other: Rows) -> Tensor:
    """Return the rows (N,) of ``other`` for the videos of ``first``; check that both sets agree."""
    if other.num_classes != first.num_classes:
        raise ValueError(
            f"{other.name} has {other.num_classes} classes, {first.name} has {first.num_classes}"
        )
    row_of: dict[str, int] = {}
    for part, reference in ((first, other), (other, first)):
        row_of = {}  # maps the paths of ``other`` after the loop
        for row, path in enumerate(part.paths):
            if row_of.setdefault(path, row) != row:
                twice = f"in rows {row_of[path]} and {row}"
                raise ValueError(f"{part.name} contains {path} twice, {twice}")
        missing = [path for path in reference.paths if path not in row_of]
        if missing:
            raise ValueError(
                f"{part.name} lacks {len(missing)} videos of {reference.name}, the first is "
                f"{missing[0]}"
            )
    order = torch.tensor([row_of[path] for path in first.paths], dtype=torch.long)
    differ = torch.nonzero(other.labels[order] != first.labels).flatten().tolist()
    if differ:
        row = differ[0]
        raise ValueError(
            f"{len(differ)} labels differ, the first for {first.paths[row]}: "
            f"{int(first.labels[row])} in {first.name}, {int(other.labels[order[row]])} in "
            f"{other.name}"
        )
    return order
