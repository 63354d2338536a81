"""Sense of time: evaluation of representations on clips with a changed order of frames."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.evaluation.alterations import ALTERATIONS, check_alterations
from sce_video.evaluation.functional.linear_probe import FittedProbe, fit_linear_probe, num_fits
from sce_video.evaluation.functional.neighbours import knn_scores, rank
from sce_video.evaluation.functional.statistics import pair_accuracy, top_k_hits
from sce_video.evaluation.metrics.base import (
    RowMetric,
    fit_progress,
    for_each_group,
    format_columns,
)
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS
from sce_video.utils.records import at

#: Pairs of Something-Something V2 classes that differ only in the direction of time
OPPOSITES: tuple[tuple[str, str], ...] = (
    ("Approaching something with your camera", "Moving away from something with your camera"),
    ("Burying something in something", "Digging something out of something"),
    ("Closing something", "Opening something"),
    ("Covering something with something", "Uncovering something"),
    ("Folding something", "Unfolding something"),
    (
        "Moving something and something away from each other",
        "Moving something and something closer to each other",
    ),
    ("Moving something away from something", "Moving something closer to something"),
    ("Moving something away from the camera", "Moving something towards the camera"),
    ("Moving something down", "Moving something up"),
    ("Picking something up", "Putting something on a surface"),
    ("Pulling something from behind of something", "Putting something behind something"),
    ("Pulling something from left to right", "Pulling something from right to left"),
    ("Pushing something from left to right", "Pushing something from right to left"),
    ("Pushing something off of something", "Pushing something onto something"),
    ("Putting something into something", "Taking something out of something"),
    (
        "Turning the camera downwards while filming something",
        "Turning the camera upwards while filming something",
    ),
    (
        "Turning the camera left while filming something",
        "Turning the camera right while filming something",
    ),
)


def class_pairs(
    classes: Sequence[str], pairs: str | Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Return the labels of the pairs with both names in ``classes``. "ssv2" is :data:`OPPOSITES`.

    ValueError is raised if the list is unknown, an entry is not a pair, or no pair has both
    classes.
    """
    if isinstance(pairs, str):
        if pairs != "ssv2":
            raise ValueError(
                f"unknown list of opposite classes {pairs!r}. Use ssv2, or give pairs of class "
                "names"
            )
        pairs = OPPOSITES
    label = {name: number for number, name in enumerate(classes)}
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(
                f"a pair of opposite classes must be two different names, got {pair!r}"
            )
    found = [(label[a], label[b]) for a, b in pairs if a in label and b in label]
    if not found:
        raise ValueError(
            "the labels contain no pair of opposite classes: the dataset has both classes of none "
            f"of the {len(pairs)} pairs, such as {tuple(pairs[0]) if pairs else ()}. Its "
            f"{len(label)} classes include {', '.join(map(repr, list(classes)[:3]))}"
        )
    return found


def class_factors(classes: Sequence[str], template: str) -> dict[str, Tensor]:
    """Return (classes,) int64 numbers, by label, for each factor in a class name.

    In the template, "{appearance}_{motion}", a word in braces is a factor, which matches one or
    more characters, as few as possible. Everything else is literal text. A factor's values are
    numbered in alphabetical order.

    Raises:
        ValueError: If the template has no factors, a name does not match it, or a factor has only
            one value.
    """
    parts = re.split(r"\{(\w+)\}", template)
    names = parts[1::2]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "the template of the class names must have different factor names in braces, as in "
            f"'{{appearance}}_{{motion}}', got {template!r}"
        )
    # In the split, items with odd numbers are the names in braces.
    pattern = "".join(
        f"(?P<{part}>.+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    )
    matches = []
    for name in classes:
        if (match := re.fullmatch(pattern, name)) is None:
            raise ValueError(f"the class {name!r} does not match the template {template!r}")
        matches.append(match)
    factors = {}
    for factor in names:
        of_label = [match[factor] for match in matches]
        values = sorted(set(of_label))
        if len(values) < 2:
            raise ValueError(
                f"all classes have the same {factor} {values}, so it cannot be predicted"
            )
        factors[factor] = torch.tensor([values.index(value) for value in of_label])
    return factors


MEASURES = ("knn", "linear", "retrieval")
_PLAIN = "unaltered"
_COSINES = ("time_cosine", "time_centred_cosine")
_TITLES = {
    "time_knn": "kNN",
    "time_linear": "linear probe",
    "time_retrieval": "retrieval R@1",
    "time_pairs": "pairs of opposites",
    "time_cosine": "cosine with unaltered",
    "time_centred_cosine": "the same, mean subtracted",
}


@METRICS.register_module()
class SenseOfTime(RowMetric):
    """``time_MEASURE_CLIPS``: accuracy on unaltered, shuffled, reversed and still clips, 0 to 1.

    Measures are ``knn``, ``linear`` (probe) and ``retrieval`` (R@1, centred). If CLIPS is
    ``shuffled``, both gallery and queries are shuffled. If it is ``shuffled_from_unaltered``, only
    the queries are, so neighbours and probe use unaltered clips. ``time_cosine_shuffled`` is the
    mean cosine similarity of a sample and its altered version. ``time_centred_cosine_shuffled`` is
    the same after subtracting the mean of the unaltered queries from both.

    Args:
        alterations: Alterations of the clips, see
            :func:`~sce_video.evaluation.alterations.frame_order`.
        measures: Measures to compute. ``linear`` takes nearly all of the time. Without it, pairs
            and factors are not computed.
        pairs: Pairs of opposite classes as names, or "ssv2". They add ``time_pairs_CLIPS``, the
            linear probe's accuracy within pairs (mean over pairs, chance 0.5), and each pair's
            accuracy to results.json. See
            :func:`~sce_video.evaluation.functional.statistics.pair_accuracy`.
        factors: Template of the class names, "{appearance}_{motion}". It adds
            ``time_appearance_CLIPS`` and ``time_motion_CLIPS``, the accuracies of linear probes
            that are fitted to one factor each.
        k: Number of neighbours of kNN.
        temperature: Temperature of the neighbours' weights.
    """

    key = "sense_of_time"
    options = ("alterations", "measures", "pairs", "factors", "k", "temperature")
    needs_gallery = True
    kinds = ("representation",)

    def __init__(
        self,
        alterations: Sequence[str] = ALTERATIONS,
        measures: Sequence[str] = MEASURES,
        pairs: str | Sequence[Sequence[str]] | None = None,
        factors: str | None = None,
        k: int = 20,
        temperature: float = 0.07,
    ) -> None:
        super().__init__()
        self.alterations = tuple(alterations)
        check_alterations(self.alterations)
        if k < 1 or temperature <= 0:
            given = f"{k}, {temperature}"
            raise ValueError(f"k must be at least 1 and temperature positive, got {given}")
        self.measures = tuple(measures)
        if not measures or not set(measures) <= set(MEASURES):
            raise ValueError(f"measures must be some of {', '.join(MEASURES)}, got {self.measures}")
        if "linear" not in measures and (pairs is not None or factors is not None):
            raise ValueError("pairs and factors need the linear probe. Add linear to measures")
        self.pairs, self.factors, self.k, self.temperature = pairs, factors, k, temperature

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute all measures on unaltered and altered clips."""
        for part in (rows,) if gallery is None else (rows, gallery):
            self._check(part)
        classes: list[str] = []
        if self.pairs is not None or self.factors is not None:
            classes = list(at(self.dataset_meta, "classes") or ())
            if not classes:
                raise ValueError(
                    "pairs and factors need class names, which the dataset does not have. Use a "
                    "folder with a sub-folder for each class, or set class_file"
                )
        factors = {} if self.factors is None else class_factors(classes, self.factors)
        pairs: list[tuple[int, int]] = []
        opposites: dict[str, float] = {}
        if self.pairs is not None:
            present = set(rows.labels.tolist())
            pairs = [p for p in class_pairs(classes, self.pairs) if present.issuperset(p)]
            if not pairs:
                raise ValueError(
                    f"{rows.name}: every pair of opposite classes lacks samples of a class"
                )
        metrics: dict[str, float] = {}
        for name in self.measures:
            if name == "linear":
                found = self._probes("linear probes of altered clips:", rows, gallery)
            else:
                found = for_each_group(rows, gallery, partial(self._neighbours, name))
            metrics |= self._accuracies(name, found, rows.labels)
            if name == "linear" and pairs:
                table = torch.stack([pair_accuracy(s, rows.labels, pairs) for s in found.unbind(1)])
                opposites = self._named("pairs", table.mean(dim=1))
                self.details["pairs_of_opposites"] = [
                    {
                        "classes": [classes[a], classes[b]],
                        "samples": [int((rows.labels == label).sum()) for label in (a, b)],
                        **dict(zip(self._names(), column, strict=True)),
                    }
                    for (a, b), column in zip(pairs, table.T.tolist(), strict=True)
                ]
        for prefix, mean in (("", 0.0), ("centred_", rows.values.double().mean(dim=0))):
            # Subtract the same mean from both sides, because separate means would hide the effect
            # of the alteration.
            plain = rows.values.double() - mean
            for name in self.alterations:
                cosines = F.cosine_similarity(plain, rows.altered[name].double() - mean, dim=1)
                metrics[f"time_{prefix}cosine_{name}"] = float(cosines.mean())
        for factor, of_label in factors.items():
            queries = _relabelled(rows, of_label)
            training = None if gallery is None else _relabelled(gallery, of_label)
            found = self._probes(f"linear probes of {factor}:", queries, training)
            metrics |= self._accuracies(factor, found, queries.labels)
        metrics |= opposites
        # The table shows all of these values, and a list of 30 lines would obscure the other
        # metrics.
        own = [n.removesuffix(f"_{_PLAIN}") for n in metrics if n.endswith(f"_{_PLAIN}")]
        measures = [*(name for name in own if not name.endswith("_from")), *_COSINES]
        titles = {name: _TITLES.get(name, name.removeprefix("time_")) for name in measures}
        columns = [_PLAIN, *self.alterations]
        self.text = format_columns(metrics, columns, titles, "sense of time:")
        self.in_text = frozenset(metrics)
        return metrics

    def _check(self, rows: Rows) -> None:
        missing = [name for name in self.alterations if name not in rows.altered]
        if missing:
            raise ValueError(
                f"{rows.name} contain no features of {' and '.join(missing)} clips. Compute them "
                "with sce-video evaluate --protocols time, or with dump of MultiViewTestLoop"
            )
        if len(rows.labels.unique()) < 2:
            raise ValueError(
                f"{rows.name} have only one class ({rows.labels.unique().tolist()}), so every "
                "accuracy would be 1. Give two classes or more"
            )

    # -- scores: (n, combinations of tested and trained clips, classes) --------------------

    def _names(self) -> list[str]:
        """Return suffixes of the combinations, first the clips tested on their own gallery."""
        own = [_PLAIN, *self.alterations]
        return [*own, *(f"{name}_from_{_PLAIN}" for name in self.alterations)]

    def _combinations(self, queries: Rows, training: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features to test and features to train on, in the order of :meth:`_names`."""
        yield queries.values, training.values
        for name in self.alterations:
            yield queries.altered[name], training.altered[name]
        for name in self.alterations:
            yield queries.altered[name], training.values

    def _neighbours(self, measure: str, queries: Rows, training: Rows, num_classes: int) -> Tensor:
        """Compute class scores of kNN, or hits of retrieval."""
        own, others = queries.labels.to(self.device), training.labels.to(self.device)
        knn = partial(knn_scores, k=self.k, temperature=self.temperature, num_classes=num_classes)
        found = []
        for pair in self._combinations(queries, training):
            q, t = (values.to(self.device) for values in pair)
            if measure == "knn":
                found.append(knn(q, t, others).cpu())
            else:
                found.append(rank(q, t, own, others, k=1).hits[:, 0].cpu())
        return torch.stack(found, dim=1)

    def _probes(self, name: str, rows: Rows, gallery: Rows | None) -> Tensor:
        """Compute scores of linear probes fitted to unaltered clips and to each alteration."""
        fits = num_fits() * (1 + len(self.alterations))
        with fit_progress(name, fits, rows, gallery) as on_fit:

            def linear(queries: Rows, training: Rows, num_classes: int) -> Tensor:
                fitted: dict[int, FittedProbe] = {}  # by id(y), to fit each probe once
                groups = training.kept_together
                fit = partial(fit_linear_probe, groups=groups, device=self.device, on_fit=on_fit)
                scores = []
                for x, y in self._combinations(queries, training):
                    if id(y) not in fitted:
                        fitted[id(y)] = fit(y, training.labels)
                    scores.append(fitted[id(y)].scores(x, num_classes))
                return torch.stack(scores, dim=1)

            return for_each_group(rows, gallery, linear)

    # -- numbers ---------------------------------------------------------------------------

    def _accuracies(self, measure: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
        """Compute the top-1 accuracy of scores (n, combinations, classes), or mean hits."""
        hits = scores
        if scores.ndim == 3:
            hits = torch.stack([top_k_hits(one, labels, 1) for one in scores.unbind(1)], dim=1)
        return self._named(measure, hits.double().mean(dim=0))

    def _named(self, measure: str, values: Tensor) -> dict[str, float]:
        names = (f"time_{measure}_{name}" for name in self._names())
        return dict(zip(names, values.tolist(), strict=True))


def _relabelled(rows: Rows, of_label: Tensor) -> Rows:
    if int(rows.labels.max()) >= len(of_label):
        raise ValueError(
            f"{rows.name} have label {int(rows.labels.max())}, but the dataset names "
            f"{len(of_label)} classes"
        )
    return replace(rows, labels=of_label[rows.labels])
