"""Transfer protocols on feature files: what is fitted on what, and the result with its provenance.

The classifiers are in ``functional/transfer.py``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sce_video.datasets.labels import read_label_table
from sce_video.evaluation.features import checkpoint_notes, describe_feature_file, load_features
from sce_video.evaluation.functional.transfer import (
    C_GRID,
    Labelled,
    low_shot_svm,
    many_shot,
    random_holdout,
)
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size

#: The sets of tab:many-shot: the metric as in linusericsson/ssl-transfer, ``linear.py``, whether
#: there is an official validation split, and the result of SCE in the table, percent.
MANY_SHOT_SETS = {
    "food101": ("top1", False, 77.7),
    "cifar10": ("top1", False, 94.8),
    "cifar100": ("top1", False, 80.4),
    "sun397": ("top1", False, 65.3),
    "cars": ("top1", False, 65.7),
    "aircraft": ("mean_class", True, 59.6),
    "voc2007": ("map11", True, 84.0),
    "dtd": ("top1", True, 77.1),
    "pets": ("mean_class", False, 90.9),
    "caltech101": ("mean_class", False, 92.7),
    "flowers": ("mean_class", True, 96.1),
}
#: tab:low-shot-voc, SCE: mAP in percent by images per class, None is all of trainval; with the
#: second decimal of the README of juliendenize/SCE, the table has one.
LOW_SHOT_PUBLISHED: dict[int | None, float] = {16: 79.47, 32: 83.05, 64: 85.47, None: 88.24}


class TransferParts(NamedTuple):
    """Features of the parts of a set, "train", "test" and, if given, "val".

    Labels of a part are (N,) class numbers, or (N, C) 1, -1, 0 from tables; ``provenance`` is that
    of the test features, and of each file under ``files``; ``notes`` are warnings for the user.
    """

    rows: dict[str, Rows]
    labels: dict[str, np.ndarray]
    provenance: dict[str, Any]
    notes: list[str]

    @property
    def failures(self) -> list[list[str]]:
        """Files of any part that could not be decoded, with the error."""
        found = (failure for rows in self.rows.values() for failure in rows.failures)
        return [list(pair) for pair in dict.fromkeys(found)]


def load_transfer_parts(
    files: dict[str, str | None], tables: str | Path | None = None
) -> TransferParts:
    """Read the feature files of "train", "val" and "test"; None where there is none.

    With ``tables``, a folder of ``{train,val,test}_labels.txt``, an image has several labels.

    Raises:
        ValueError: no labels, features of different sizes, or an image in two parts.
    """
    rows, labels, described, notes = {}, {}, {}, []
    for part in ("train", "val", "test"):
        path = files.get(part)
        if path is None:
            continue
        rows[part], provenance = load_features(path)
        if tables is None:
            check_labelled(rows[part], "transfer")
            labels[part] = rows[part].labels.numpy()
        else:
            table = read_label_table(Path(tables) / f"{part}_labels.txt")
            labels[part] = table.rows_of(rows[part].paths)
        described[part] = describe_feature_file(path, rows[part], provenance)
        if rows[part].failures:
            notes.append(f"{len(rows[part].failures)} images of {part} could not be decoded")
    test = described["test"]["protocol"]
    for part in rows:
        if part != "test":
            check_same_size(rows["test"], rows[part])
            paths = str(files["test"]), str(files[part])
            notes += checkpoint_notes(test, described[part]["protocol"], *paths)
    part_of: dict[str, str] = {}
    for path, part in ((path, name) for name in rows for path in rows[name].paths):
        if part_of.setdefault(path, part) != part:
            raise ValueError(
                f"{path} is in the features of {part_of[path]} and of {part}: each part needs "
                "the features of its own list"
            )
    version = None
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("scikit-learn")
    provenance = {
        **test,
        "kind": "representation",
        "failures": len(rows["test"].failures),
        "feature_size": rows["test"].values.shape[1],
        "images": {part: len(part_rows) for part, part_rows in rows.items()},
        "files": described,
        "scikit_learn": version,
    }
    return TransferParts(rows, labels, provenance, notes)


def evaluate_many_shot(
    parts: TransferParts, metric: str, official_val: bool, grid: Sequence[float] = C_GRID
) -> dict[str, Any]:
    """The content of results.json for many-shot linear transfer, by a metric of METRICS.

    Without an official validation split, "val", a fifth of "train" is held out. Raises ValueError:
    a validation part that is missing or not official, or see ``many_shot``.
    """
    if official_val and "val" not in parts.rows:
        raise ValueError("the set has an official validation split: give its features as --val")
    if not official_val and "val" in parts.rows:
        raise ValueError(
            "the set has no official validation split: a fifth of --train is held out, leave --val "
            "out"
        )
    tables = metric == "map11"
    data = {}
    for name, labels in parts.labels.items():
        if tables and labels.ndim == 1:
            raise ValueError("mAP needs tables of labels: give their folder as --labels")
        if not tables and labels.ndim == 2:
            raise ValueError(f"{metric} needs one label for each image: leave --labels out")
        features = parts.rows[name].values.numpy()
        data[name] = Labelled(features, labels == 1 if tables else labels)
    if not official_val:
        # Drawn from the rows as they are in the file, as in ssl-transfer.
        train, held = data["train"], random_holdout(len(data["train"].labels))
        data["val"] = Labelled(train.features[held], train.labels[held])
        data["train"] = Labelled(train.features[~held], train.labels[~held])
    result = many_shot(data["train"], data["val"], data["test"], metric, grid)
    metrics: dict[str, float] = {f"many_shot_{metric}": result.score}
    if result.validation:
        metrics[f"many_shot_val_{metric}"] = result.validation[result.c]
    provenance = {
        **parts.provenance,
        "protocol_name": "many_shot",
        "c": result.c,
        "validation": {f"{c:.6g}": value for c, value in result.validation.items()},
        "validation_split": "official" if official_val else "20 % of train, seed 0",
    }
    return {"metrics": metrics, "protocol": provenance, "failures": parts.failures}


def on_dataset(content: dict[str, Any], dataset: str | None) -> dict[str, Any]:
    """The results with the name of the set they were measured on, in their benchmark, too.

    The recipe of the features names what the network was pretrained on, as far as the checkpoint
    confirms it; the set is known here only. None is a set of one's own, which is no benchmark.
    """
    protocol = content["protocol"]
    stated = protocol.get("benchmark")
    benchmark = None
    if isinstance(stated, dict) and dataset is not None:
        benchmark = {**stated, "protocol": protocol["protocol_name"], "dataset": dataset}
    return {**content, "protocol": {**protocol, "benchmark": benchmark, "dataset": dataset}}


def evaluate_low_shot(
    parts: TransferParts, shots: Sequence[int | None], draws: int = 5, seed: int = 0
) -> dict[str, Any]:
    """The content of results.json for low-shot SVMs on the union of train and val.

    ``shots`` are images per class, None is all of train and val. Raises ValueError: no validation
    part, or a class without images.
    """
    if "val" not in parts.rows:
        raise ValueError("the training set of the SVMs is train and val: give --val too")
    paths = parts.rows["train"].paths + parts.rows["val"].paths
    order = np.argsort(np.array(paths))  # by image number, as VOC's own trainval lists
    features = np.concatenate([parts.rows[name].values.numpy() for name in ("train", "val")])
    positives = np.concatenate([parts.labels[name] == 1 for name in ("train", "val")])
    fitted = features[order].astype(np.float64), positives[order]
    test = parts.rows["test"].values.numpy().astype(np.float64), parts.labels["test"] == 1
    results = low_shot_svm(*fitted, *test, shots, draws, seed)
    named = {"full" if k is None else str(k): values for k, values in results.items()}
    settings = {"protocol_name": "low_shot_svm", "draws": draws, "seed": seed}
    provenance = {**parts.provenance, **settings, "map_of_draws": named}
    metrics = {f"low_shot_map_{k}": float(np.mean(values)) for k, values in named.items()}
    return {"metrics": metrics, "protocol": provenance, "failures": parts.failures}
