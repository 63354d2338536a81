"""Data loaders of evaluation."""

from __future__ import annotations

import itertools
from typing import Any

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
                "on_error='replace' would evaluate another video in place of a bad file: "
                "set on_error='raise' or 'skip' in the data set"
            )
        dataset.on_error = "raise"
    return loader


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
