"""Data loaders for evaluation."""

from __future__ import annotations

import itertools
from typing import Any

from torch.utils.data import DataLoader

from sce_video.engine.runner import VideoRunner


def build_eval_dataloader(cfg: dict | DataLoader, seed: int | None = None) -> DataLoader:
    """A loader that gives every video once, in order, split over all ranks.

    Defaults for what the config leaves out: the sampler
    ``dict(type="DefaultSampler", shuffle=False, round_up=False)``, which repeats no sample and may
    give a rank no video at all; the collate function ``sce_video.collate_views``; and
    ``on_error="raise"`` for a :class:`~sce_video.datasets.VideoDataset`.

    Args:
        cfg: A dataloader config as for mmengine's Runner, or a built loader, which is returned.
        seed: Seed of the sampler and the workers.

    Raises:
        ValueError: the data set would replace unreadable files by other videos.
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
        if not isinstance(cfg["dataset"], dict) or "on_error" in cfg["dataset"]:
            raise ValueError(
                "on_error='replace' would evaluate another video instead of an unreadable file: "
                "set on_error='raise' or 'skip' in the data set"
            )
        dataset.on_error = "raise"
    return loader


def different_steps(first: Any, second: Any) -> list[str]:
    """Messages that name the steps in which the pipelines of two loader configs differ.

    Empty if they are equal or if one of the loaders is built already.
    """
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
