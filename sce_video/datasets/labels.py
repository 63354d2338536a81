"""Check the labels of a data set against a classifier, and against those of another data set."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_same_classes(
    queries: Any, gallery: Any, names: tuple[str, str] = ("the queries have", "the gallery has")
) -> None:
    """Raise ValueError if the class folders of two data sets differ.

    Labels are the indices of the sorted folder names, so a class that only one of the two has would
    shift the labels after it, and every metric would be wrong without an error.

    Args:
        queries: A data set; only a non-empty ``metainfo["classes"]`` is compared.
        gallery: Another one.
        names: Names of the two in the message.
    """
    first, second = (
        tuple((getattr(d, "metainfo", None) or {}).get("classes", ())) for d in (queries, gallery)
    )
    if first and second and first != second:
        only = [sorted(set(a) - set(b)) for a, b in ((first, second), (second, first))]
        raise ValueError(
            f"the sub-folders of the two data sets differ, so their labels do not agree: only "
            f"{names[0]} {only[0]}, only {names[1]} {only[1]}; give both the same classes "
            "or annotation lists"
        )


def check_labels(dataset: Any, num_classes: int) -> None:
    """Raise ValueError unless every sample has a label in ``[0, num_classes)``.

    Args:
        dataset: With ``labels`` (N,), as :class:`~sce_video.datasets.VideoDataset`; a data set
            without that attribute is not checked.
        num_classes: Outputs of the classifier.
    """
    labels = getattr(dataset, "labels", None)
    if labels is None:
        return
    labels = np.asarray(labels)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong) == 0:
        return
    first = int(wrong[0])
    where = dataset.describe(first) if hasattr(dataset, "describe") else f"sample {first}"
    if labels[first] < 0:
        raise ValueError(
            f"{where} has no label ({len(wrong)} of {len(labels)} samples have no label or a wrong "
            "one): a classifier needs 'path label' on every line, or a sub-folder per class"
        )
    raise ValueError(
        f"{where} has label {labels[first]}, the classifier has {num_classes} classes, 0 to "
        f"{num_classes - 1} ({len(wrong)} of {len(labels)} labels are wrong): does "
        "model.cls_head.num_classes match the data set?"
    )
