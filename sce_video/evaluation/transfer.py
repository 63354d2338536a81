"""Transfer protocols on feature files: scikit-learn's linear classifiers on frozen features.

The many-shot protocol is logistic regression whose C is chosen on a validation split
(linusericsson/ssl-transfer, ``linear.py``; tab:many-shot). The low-shot protocol is an SVM per
class of VOC2007 (salesforce/PCL, ``eval_svm_voc.py``; tab:low-shot-voc).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sce_video.datasets.image_datasets import read_label_table
from sce_video.evaluation.feature_files import FeatureFile, checkpoint_notes, load_feature_file
from sce_video.evaluation.results import Results
from sce_video.evaluation.rows import Rows, check_same_size
from sce_video.published.paper_results import MANY_SHOT
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.records import at

_OFFICIAL_VALIDATION = ("aircraft", "voc2007", "dtd", "flowers")


@dataclass(frozen=True)
class ManyShotSet:
    """A dataset of the many-shot protocol.

    Attributes:
        metric: One of :data:`METRICS`, as in linusericsson/ssl-transfer, ``linear.py``.
        official_val: Whether it has an official validation split.
        published: Result of SCE in tab:many-shot, in percent; None for a dataset of your own.
    """

    metric: str
    official_val: bool
    published: float | None = None


#: The datasets in tab:many-shot.
MANY_SHOT_SETS = {
    name: ManyShotSet(metric, name in _OFFICIAL_VALIDATION, float(value))
    for name, metric, value in MANY_SHOT
}
#: mAP of SCE in tab:low-shot-voc, in percent, by the number of images per class. None means all of
#: trainval. The table has only one decimal, so the second decimal is from the README of
#: juliendenize/SCE.
LOW_SHOT_PUBLISHED: dict[int | None, float] = {16: 79.47, 32: 83.05, 64: 85.47, None: 88.24}
#: Values of C to try, starting with the weakest regularisation: 1/w for 45 weights w from 1e-6 to
#: 1e5.
C_GRID = tuple((1.0 / np.logspace(-6, 5, 45)).tolist())
#: Top-1 accuracy, mean per-class accuracy, and 11-point AP averaged over classes.
METRICS = ("top1", "mean_class", "map11")


class TransferParts(NamedTuple):
    """Features of the splits of a dataset: "train", "test" and, if given, "val".

    Labels of a split are (N,) class numbers, or (N, C) 1, -1, 0 from tables. ``provenance``
    describes the test features, and each file under ``files``. ``notes`` are warnings for the user.
    """

    rows: dict[str, Rows]
    labels: dict[str, np.ndarray]
    provenance: Mapping[str, object]
    notes: list[str]

    def results(self, metrics: dict[str, float], settings: Mapping[str, object]) -> Results:
        """Return the results, with the files of any part that could not be decoded."""
        failures = dict.fromkeys(pair for rows in self.rows.values() for pair in rows.failures)
        return Results(metrics, {**self.provenance, **settings}, tuple(failures))


def load_transfer_parts(
    files: dict[str, str | None], tables: str | Path | None = None
) -> TransferParts:
    """Read the feature files of "train", "val" and "test"; None if there is none.

    With ``tables``, a folder of ``{train,val,test}_labels.txt``, an image has several labels.

    Raises:
        ValueError: If labels are missing, feature sizes differ, or an image is in two parts.
    """
    read: dict[str, FeatureFile] = {}
    labels: dict[str, np.ndarray] = {}
    notes: list[str] = []
    purpose = "transfer" if tables is None else None
    for part in ("train", "val", "test"):
        if (path := files[part]) is None:
            continue
        read[part] = load_feature_file(path, purpose)
        rows = read[part].rows
        if tables is None:
            labels[part] = rows.labels.numpy()
        else:
            table = read_label_table(Path(tables) / f"{part}_labels.txt")
            labels[part] = table.rows_of(rows.paths)
        if rows.failures:
            notes.append(f"{len(rows.failures)} images of {part} could not be decoded")
    test = read["test"]
    part_of: dict[str, str] = {}
    for part, file in read.items():
        if part != "test":
            check_same_size(test.rows, file.rows)
            notes += checkpoint_notes(test, file)
        for path in file.rows.paths:
            if part_of.setdefault(path, part) != part:
                raise ValueError(
                    f"{path} is in the features of both {part_of[path]} and {part}. Give each part "
                    "the features of its own list"
                )
    version = None
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("scikit-learn")
    provenance = {
        **test.provenance,
        "kind": "representation",
        "failures": len(test.rows.failures),
        "feature_size": test.rows.values.shape[1],
        "images": {part: len(file.rows) for part, file in read.items()},
        "files": {part: file.described() for part, file in read.items()},
        "scikit_learn": version,
    }
    return TransferParts(
        {part: file.rows for part, file in read.items()}, labels, provenance, notes
    )


def on_dataset(results: Results, dataset: str | None) -> Results:
    """Return the results with the name of the dataset, which is also added to their benchmark.

    Feature files state what the network was pretrained on, but not the name of the dataset.

    Args:
        results: The results.
        dataset: Name of the dataset; None for a dataset of your own, which is not a benchmark.
    """
    stated = at(results.protocol, "benchmark", dict)
    benchmark = None
    if stated is not None and dataset is not None:
        name = results.protocol["protocol_name"]
        benchmark = {**stated, "protocol": name, "dataset": dataset}
    protocol = {**results.protocol, "benchmark": benchmark, "dataset": dataset}
    return replace(results, protocol=protocol)


def _sklearn(module: str) -> Any:
    """Import a module of scikit-learn, which is an extra."""
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise MissingPackageError(
            f"the transfer protocols use scikit-learn, which cannot be imported ({error}). Run "
            "pip install -c requirements/constraints.txt -e '.[transfer]'"
        ) from error


def _convergence_warnings_ignored() -> warnings.catch_warnings:
    """Ignore convergence warnings, because the protocol fixes the number of iterations."""
    category = _sklearn("exceptions").ConvergenceWarning
    return warnings.catch_warnings(action="ignore", category=category)


def _check_matrix(features: np.ndarray, labels: np.ndarray, name: str) -> None:
    """Raise ValueError unless features are a finite matrix (N, D) with N >= 1 rows of labels."""
    if features.ndim != 2 or len(features) != len(labels) or len(features) == 0:
        raise ValueError(
            f"{name}: features {features.shape} and labels {labels.shape} must be (N, D) and "
            "(N, ...) with one row or more"
        )
    if not np.isfinite(features).all():
        raise ValueError(f"{name}: some features are not finite")


# -- average precision ---------------------------------------------------------------------------


def eleven_point_ap(recall: np.ndarray, best: np.ndarray) -> float:
    """Average the highest precision at a recall of r or more over r = 0, 0.1, ..., 1.

    This is the definition of VOC2007 (Everingham et al. 2010, section 4.2), on scikit-learn's
    ``precision_recall_curve`` as in ssl-transfer. The curve begins at recall 0 with precision 1, so
    the term at r = 0 is always 1.
    """
    terms = best[np.searchsorted(recall, np.linspace(0, 1, 11), side="left")]
    terms[0] = 1.0
    return float(terms.mean())


def all_points_ap(recall: np.ndarray, best: np.ndarray) -> float:
    """Return the area under the highest precision at a recall of r or more, over all r.

    This is the definition that VOC has used since 2010, and that PCL uses.
    """
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def mean_average_precision(
    scores: np.ndarray, positives: np.ndarray, definition: Callable[[np.ndarray, np.ndarray], float]
) -> float:
    """Average over classes the average precision of scores (N, C) and positives (N, C) bool.

    The definition uses each recall and the highest precision at this recall or more, with one entry
    for each different score. Images of equal score enter together, so the result does not depend on
    their order. ValueError is raised for a class that no image shows.
    """
    values = []
    for column, (own, shown) in enumerate(zip(scores.T, positives.T, strict=True)):
        if not shown.any():
            raise ValueError(
                f"none of the {len(own)} images shows class {column}, so its precision is undefined"
            )
        order = np.argsort(-own, kind="stable")
        found = np.cumsum(shown[order])
        last = np.flatnonzero(np.append(np.diff(own[order]) != 0, True))  # last image of each score
        precision = found[last] / (last + 1)
        best = np.maximum.accumulate(precision[::-1])[::-1]
        values.append(definition(found[last] / found[-1], best))
    return float(np.array(values).mean())


# -- many-shot -----------------------------------------------------------------------------------


class Labelled(NamedTuple):
    """Features (N, D) of a split of a dataset, neither l2-normalised nor standardised, and labels.

    Labels are (N,) class numbers. For "map11", they are (N, C) bool, the classes that an image
    shows.
    """

    features: np.ndarray
    labels: np.ndarray


def evaluate_many_shot(
    parts: TransferParts, metric: str, official_val: bool, grid: Sequence[float] = C_GRID
) -> Results:
    """Compute the results of many-shot linear transfer, by a metric of METRICS.

    Without an official validation split, "val", a fifth of "train" is held out. ValueError is
    raised if a validation split is missing or not official, and by :func:`many_shot`.
    """
    if official_val and "val" not in parts.rows:
        raise ValueError("the dataset has an official validation split. Give its features as --val")
    if not official_val and "val" in parts.rows:
        raise ValueError(
            "the dataset has no official validation split, so a fifth of --train is held out. "
            "Remove --val"
        )
    tables = metric == "map11"
    data = {}
    for name, labels in parts.labels.items():
        if tables and labels.ndim == 1:
            raise ValueError("mAP needs tables of labels. Give their folder as --labels")
        if not tables and labels.ndim == 2:
            raise ValueError(f"{metric} needs one label per image. Remove --labels")
        features = parts.rows[name].values.numpy()
        data[name] = Labelled(features, labels == 1 if tables else labels)
    if not official_val:
        # Draw from the rows in file order, as in ssl-transfer.
        train, held = data["train"], random_holdout(len(data["train"].labels))
        data["val"] = Labelled(train.features[held], train.labels[held])
        data["train"] = Labelled(train.features[~held], train.labels[~held])
    score, c, validation = many_shot(data["train"], data["val"], data["test"], metric, grid)
    metrics = {f"many_shot_{metric}": score}
    if validation:
        metrics[f"many_shot_val_{metric}"] = validation[c]
    settings = {
        "protocol_name": "many_shot",
        "c": c,
        "validation": {f"{tried:.6g}": value for tried, value in validation.items()},
        "validation_split": "official" if official_val else "20 % of train, seed 0",
    }
    return parts.results(metrics, settings)


def random_holdout(count: int) -> np.ndarray:
    """Select a fifth of the rows, (count,) bool, to validate a set without an official split.

    They are the first row numbers after ``numpy.random.seed(0)`` and ``numpy.random.shuffle``, as
    in ssl-transfer. ValueError is raised if no row or all rows would be held out.
    """
    indices = list(range(count))
    np.random.RandomState(0).shuffle(indices)  # leaves the global generator unchanged
    held = indices[: int(np.floor(0.2 * count))]
    if not held:
        raise ValueError(f"cannot hold out 20 % of {count} training images")
    return np.isin(np.arange(count), held)


def many_shot(
    train: Labelled,
    val: Labelled,
    test: Labelled,
    metric: str = "top1",
    grid: Sequence[float] = C_GRID,
    max_iter: int = 100,
) -> tuple[float, float, dict[float, float]]:
    """Fit on train for every C, choose on val, fit on both, score on test.

    Every fit, in the order of the grid, starts from the previous solution and takes at most
    ``max_iter`` iterations of L-BFGS, which do not converge on large sets. If several values of C
    have the same validation score, the first of them is used. With a single C, nothing is fitted
    for validation. The bias is not penalised.

    Returns:
        The metric on test (0 to 1), the chosen C, and the metric on val for each C tried.

    Raises:
        ValueError: If the metric is unknown, the grid is empty, or the splits do not match.
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    if not grid or min(grid) <= 0:
        raise ValueError(f"all values of C in the grid must be positive, got {tuple(grid)}")
    parts = []
    for name, part in (("train", train), ("validation", val), ("test", test)):
        _check_matrix(part.features, part.labels, name)
        parts.append(Labelled(part.features.astype(np.float64), part.labels))
    train, val, test = parts

    def classifier() -> Any:
        kind = _sklearn("linear_model").LogisticRegression
        return kind(solver="lbfgs", warm_start=True, max_iter=max_iter)

    model = classifier()
    validation: dict[float, float] = {}
    with _convergence_warnings_ignored():
        # Because of warm_start, the order of the grid is part of the protocol.
        for c in grid if len(grid) > 1 else ():
            validation[c] = _fit_and_score(model, c, train, val, metric)
        best = max(validation, key=lambda c: validation[c]) if validation else grid[0]
        # Refit with the chosen C on everything except the test set.
        both = Labelled(*(np.concatenate(pair) for pair in zip(train, val, strict=True)))
        if not np.array_equal(np.unique(train.labels), np.unique(both.labels)):
            model = classifier()  # the old model starts from weights of another shape
        return _fit_and_score(model, best, both, test, metric), best, validation


def _fit_and_score(model: Any, c: float, fit: Labelled, part: Labelled, metric: str) -> float:
    """Fit with ``multi_class="multinomial"`` in any version, and return a split's metric.

    For two classes, ssl-transfer's multinomial model penalises one weight vector for each, w/2 and
    -w/2. This equals the binary model with 2 C, which newer versions of scikit-learn fit.
    """

    def fitted(labels: np.ndarray) -> Any:
        count = len(np.unique(labels))
        if count < 2:
            raise ValueError("all training images belong to one class, or none shows a class")
        return model.set_params(C=2 * c if count == 2 else c).fit(fit.features, labels)

    if metric == "map11":
        scores = [fitted(column).decision_function(part.features) for column in fit.labels.T]
        return mean_average_precision(np.stack(scores, axis=1), part.labels, eleven_point_ap)
    hits = fitted(fit.labels).predict(part.features) == part.labels
    if metric == "top1":
        return float(hits.mean())
    classes = np.unique(part.labels)
    return float(np.mean([hits[part.labels == label].mean() for label in classes]))


# -- low-shot ------------------------------------------------------------------------------------


def evaluate_low_shot(
    parts: TransferParts, shots: Sequence[int | None], draws: int = 5, seed: int = 0
) -> Results:
    """Compute the results of low-shot SVMs on the union of train and val.

    ``shots`` are images per class, and None means all of train and val. ValueError is raised
    without a validation split, or for a class without images.
    """
    if "val" not in parts.rows:
        raise ValueError("the SVMs are trained on train and val. Give --val as well")
    paths = parts.rows["train"].paths + parts.rows["val"].paths
    order = np.argsort(np.array(paths))  # sort by image number, like VOC's own trainval
    features = np.concatenate([parts.rows[name].values.numpy() for name in ("train", "val")])
    positives = np.concatenate([parts.labels[name] == 1 for name in ("train", "val")])
    fitted = features[order].astype(np.float64), positives[order]
    test = parts.rows["test"].values.numpy().astype(np.float64), parts.labels["test"] == 1
    results = low_shot_svm(*fitted, *test, shots, draws, seed)
    named = {"full" if k is None else str(k): values for k, values in results.items()}
    metrics = {f"low_shot_map_{k}": float(np.mean(values)) for k, values in named.items()}
    settings = {"protocol_name": "low_shot_svm", "draws": draws, "seed": seed}
    return parts.results(metrics, {**settings, "map_of_draws": named})


def low_shot_svm(
    train: np.ndarray,
    train_positives: np.ndarray,
    test: np.ndarray,
    test_positives: np.ndarray,
    shots: Sequence[int | None],
    draws: int = 5,
    seed: int = 0,
) -> dict[int | None, list[float]]:
    """Compute the all-points mAP (0 to 1) of every draw, by K. None uses the whole set once.

    A draw consists of K images for each class. An image drawn for several classes occurs once per
    class, and a class with fewer than K images contributes all of them. The draws of every K begin
    with ``random.Random(seed)``, so a draw of K images is part of the draw of 2 K.

    The features are (N, D) for train and val together, in the order of the image names, and (M, D)
    for test. Each feature is divided by its l2 norm plus 1e-5. Positives are (N, C) and (M, C)
    bool, and "difficult" images count as negatives.
    """
    _check_matrix(test, test_positives, "test")
    train, test = (x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5) for x in (train, test))
    results: dict[int | None, list[float]] = {}
    for count in shots:
        if count is not None and count < 1:
            raise ValueError(f"the number of images per class must be at least 1, got {count}")
        # Use the same seed for every K, so that the draws do not depend on which other values of K
        # are used.
        generator = random.Random(seed)
        results[count] = []
        for _ in range(1 if count is None else draws):
            chosen = list(range(len(train))) if count is None else []
            for column in train_positives.T if count is not None else ():
                images = np.flatnonzero(column).tolist()
                generator.shuffle(images)
                chosen += images[:count]
            scores = svm_scores(train[chosen], train_positives[chosen], test)
            results[count].append(mean_average_precision(scores, test_positives, all_points_ap))
    return results


def svm_scores(train: np.ndarray, positives: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Compute (M, C) distances of features (M, D) to the hyperplane of one SVM per class.

    They are fitted to features (N, D) and positives (N, C) bool. All other images are the negatives
    of a class, with half the weight. ValueError is raised for shapes that do not match, or a class
    without positives or negatives.
    """
    _check_matrix(train, positives, "train")
    # These are PCL's settings.
    loss = {"penalty": "l2", "loss": "squared_hinge", "dual": True, "intercept_scaling": 1.0}
    solver = {"tol": 1e-4, "max_iter": 2000, "random_state": 0, "class_weight": {1: 2, -1: 1}}
    scores = []
    with _convergence_warnings_ignored():
        for number, column in enumerate(positives.T):
            if column.all() or not column.any():
                what = "negative" if column.all() else "positive"
                raise ValueError(f"class {number} has no {what} training image")
            model = _sklearn("svm").LinearSVC(C=0.5, **loss, **solver)
            fitted = model.fit(train, np.where(column, 1, -1))
            scores.append(fitted.decision_function(features))
    return np.stack(scores, axis=1)
