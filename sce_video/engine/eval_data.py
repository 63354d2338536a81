"""Loaders and label checks of whatever is judged."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from sce_video.engine.runner import VideoRunner


def build_eval_dataloader(cfg: dict | DataLoader, seed: int | None = None) -> DataLoader:
    """A loader that gives every video once, in order, over all processes.

    Fills in what an evaluation loader nearly always has: the sampler
    ``dict(type="DefaultSampler", shuffle=False, round_up=False)``, which repeats nothing and may
    give a process no video at all, the collate function ``sce_video.collate_views``, and
    ``on_error="raise"`` for a :class:`~sce_video.datasets.VideoDataset` that does not say.

    Args:
        cfg: A dataloader config as for mmengine's Runner, or a built loader.
        seed: Of the sampler and the workers.

    Raises:
        ValueError: the data set is to replace bad files by other videos.
    """
    if isinstance(cfg, DataLoader):
        return cfg
    cfg = {
        "sampler": {"type": "DefaultSampler", "shuffle": False, "round_up": False},
        "collate_fn": {"type": "sce_video.collate_views"},
        **cfg,
    }
    loader = VideoRunner.build_dataloader(cfg, seed=seed)
    dataset: Any = loader.dataset
    if getattr(dataset, "on_error", None) == "replace":
        if "on_error" in cfg["dataset"]:
            raise ValueError(
                "on_error='replace' would judge another video in the place of a bad file: "
                "set on_error='raise' or 'skip' in the data set"
            )
        dataset.on_error = "raise"
    return loader


def check_same_classes(
    queries: Any, bank: Any, names: tuple[str, str] = ("the queries have", "the bank has")
) -> None:
    """Raise ValueError if two data sets number their classes by different sub-folders.

    The folders are numbered in their sorted order, so a class that only one of the two has would
    shift the labels after it, and the figures would be wrong without a word.

    Args:
        queries: A data set; only a non-empty ``metainfo["classes"]`` is looked at.
        bank: Another one.
        names: What the two are called.
    """
    first, second = (
        tuple((getattr(d, "metainfo", None) or {}).get("classes", ())) for d in (queries, bank)
    )
    if first and second and first != second:
        only = [sorted(set(a) - set(b)) for a, b in ((first, second), (second, first))]
        raise ValueError(
            f"the sub-folders of the two data sets differ, so their labels do not agree: only "
            f"{names[0]} {only[0]}, only {names[1]} {only[1]}; give both the same classes "
            "or annotation lists"
        )


def different_steps(first: Any, second: Any) -> list[str]:
    """Where the pipelines of two loader configs differ, in words; built loaders are left alone."""
    pipelines = []
    for loader in (first, second):
        dataset = loader.get("dataset") if isinstance(loader, dict) else None
        pipeline = dataset.get("pipeline") if isinstance(dataset, dict) else None
        if pipeline is None:
            return []
        pipelines.append([dict(step) if isinstance(step, dict) else step for step in pipeline])
    return [
        f"step {number}: {one} and {other}"
        for number, (one, other) in enumerate(itertools.zip_longest(*pipelines))
        if one != other
    ]


def check_labels(dataset: Any, num_classes: int) -> None:
    """Raise ValueError unless every video has a label that the classifier has an output for.

    Args:
        dataset: With ``labels`` (N,), as :class:`~sce_video.datasets.VideoDataset`; data sets
            without are not looked at.
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
    where = dataset.place(first) if hasattr(dataset, "place") else f"video {first}"
    if labels[first] < 0:
        raise ValueError(
            f"{where} has no label ({len(wrong)} of {len(labels)} videos have none or a wrong "
            "one): recognition needs 'path label' on every line, or a sub-folder per class"
        )
    raise ValueError(
        f"{where} has label {labels[first]}, the classifier has {num_classes} classes, 0 to "
        f"{num_classes - 1} ({len(wrong)} of {len(labels)} labels are wrong): is "
        "model.cls_head.num_classes that of the data set?"
    )
