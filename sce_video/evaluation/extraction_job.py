"""Extraction of features as a batch job: an item is a few consecutive samples of a data set."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.registry import init_default_scope
from torch import nn

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.transforms import PackVideo
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.evaluation.collecting import PartialRows, sample_paths
from sce_video.evaluation.job_processes import (
    device_of_process,
    explain_network_error,
    failure_of,
    modules_of,
    prepare_process,
)
from sce_video.evaluation.row_functions import mean_representation
from sce_video.jobs import BatchJob, Facts, Item, Record, RunError, State, file_state
from sce_video.registry import DATASETS, MODELS
from sce_video.utils.shard import Shard


@dataclass(frozen=True)
class Origin:
    """From what a process builds the data set and the network.

    Attributes:
        dataset: Config of the data set.
        model: Config of the network.
        weights: File of its state dict, which :meth:`ExtractionJob.save_weights` writes.
        imports: Modules to import first.
        scope: Default scope of the registries.
    """

    dataset: dict[str, Any]
    model: dict[str, Any]
    weights: Path
    imports: tuple[str, ...]
    scope: str


class ExtractionJob(BatchJob):
    """Gives the mean representations of consecutive samples.

    A video is an item of its own. Samples whose views are cut by the loader, such as images, share
    the forward passes of a batch, and an item is a batch.

    Args:
        dataset: The data set; it is not sent to the processes.
        model: The network in eval mode, likewise.
        origin: Replaces both in the processes.
        collate: Makes a batch of a list of samples.
        batch_size: Samples of a batch.
        max_views: Views of a video per forward pass.
        fingerprint: Of all that the features depend on.
        device: Device of the processes, see :func:`device_of_process`.
        gpus: Part of a GPU that a process takes of a Ray cluster.
    """

    name = "extract"

    def __init__(
        self,
        dataset: Any,
        model: nn.Module,
        origin: Origin,
        collate: Callable[[list[Any]], dict[str, Any]],
        batch_size: int,
        max_views: int,
        *,
        fingerprint: str,
        device: str,
        gpus: float = 0,
    ) -> None:
        self.settings = {"fingerprint": fingerprint}
        self.gpus = gpus
        pipeline: Any = getattr(dataset, "pipeline", ())
        of_views = len(pipeline) > 0 and isinstance(pipeline[-1], PackVideo)
        self.item_size = 1 if of_views else batch_size
        self.unit = "videos" if of_views else "batches"
        self._dataset: Any = dataset
        self._model: nn.Module | None = model
        self._origin = origin
        self._collate = collate
        self._max_views = max_views
        self._device = device
        self._modules = [*origin.imports, *modules_of([*model.modules(), dataset, *pipeline])]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_dataset": None, "_model": None}

    def ranges(self, shard: Shard) -> list[range]:
        """Indices of the items of a shard: every n-th item, so that all shards have as many."""
        size, count = self.item_size, len(self._dataset)
        starts = shard.part(range(0, count, size))
        return [range(start, min(start + size, count)) for start in starts]

    def shard_of(self, key: str, count: int) -> int:
        """Number, from 1, of the shard that an item belongs to."""
        return int(key.partition("-")[0]) // self.item_size % count + 1

    def item(self, indices: range) -> Item:
        """The item of these samples."""
        return Item(key_of(indices), self._state(indices), indices)

    def _state(self, indices: range) -> State:
        """State of the files; of what is no file, or does not exist, it is empty."""
        if not hasattr(self._dataset, "path"):
            return {}
        states = [file_state(str(self._dataset.path(index))) or {} for index in indices]
        if len(states) == 1:
            return states[0]
        return {"files": hashlib.sha256(json.dumps(states).encode()).hexdigest()}

    def source(self, item: Item) -> State:
        """State of the files."""
        return self._state(item.argument)

    def holds(self, item: Item, record: Record) -> bool:
        """Whether an item is finished; one of several samples that failed is done one by one."""
        return record.done or len(item.argument) > 1

    def save_weights(self) -> None:
        """Write the file of weights that the processes read."""
        assert self._model is not None
        save_checkpoint_file(self._model.state_dict(), self._origin.weights)

    def setup(self) -> None:
        """Build data set and network, unless this is the process that has them."""
        if self._model is not None:
            return
        prepare_process(self._modules)
        init_default_scope(self._origin.scope)
        model = MODELS.build(self._origin.model)
        weights = torch.load(self._origin.weights, map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
        self._model = model.to(device_of_process(self._device)).eval().requires_grad_(False)
        self._dataset = DATASETS.build(self._origin.dataset)

    def process(self, item: Item) -> Facts:
        """Rows as data; views, indices, labels and unreadable files as values."""
        batch = self._collate(self._samples(item.argument))
        indices = [int(index) for index in batch["index"]]
        facts = {
            "indices": indices,
            "labels": [int(label) for label in batch["label"]],
            "failures": [[str(path), str(why)] for path, why in batch.get("failures", [])],
        }
        if not indices:  # all samples were skipped
            return Facts({**facts, "views": 0}, b"")
        try:
            with torch.no_grad():
                rows = mean_representation(self._max_views)(self._model, batch)
        except Exception as error:  # of the network, which would fail for all samples
            name = self._name(item.argument[0])
            raise RunError(explain_network_error(error, name)) from error
        return Facts({**facts, "views": rows.num_views}, rows.values.numpy().tobytes())

    def _samples(self, indices: range) -> list[Any]:
        try:
            if hasattr(self._dataset, "__getitems__"):
                return self._dataset.__getitems__(list(indices))
            return [self._dataset[index] for index in indices]
        except VideoDecodeError as error:  # under on_error="raise"
            raise RunError(str(error)) from error

    def _name(self, index: int) -> str:
        (name,) = sample_paths(self._dataset, [index])
        return name

    def samples(self, indices: range, record: Record) -> PartialRows:
        """The samples of an item without their features; of one that failed as unreadable."""
        if not record.done:
            return PartialRows(failures=[(self._name(i), failure_of(record)) for i in indices])
        facts = record.facts
        return PartialRows(
            labels=facts["labels"],
            indices=facts["indices"],
            failures=[(str(path), str(why)) for path, why in facts["failures"]],
            num_views=facts["views"],
        )


def features_of(record: Record) -> np.ndarray:
    """(n, C) float32, the features of the readable samples of an item; (0, 0) without any."""
    if not record.done or not record.data:
        return np.empty((0, 0), dtype=np.float32)
    return np.frombuffer(record.data, np.float32).reshape(len(record.facts["indices"]), -1)


def key_of(indices: range) -> str:
    """Key of the item of these samples; keys are in the order of the data set."""
    return f"{indices.start:012}-{indices.stop:012}"


def fingerprint(provenance: dict[str, Any], dataset: Any) -> str:
    """SHA-256 of everything that the features depend on besides the files."""
    digest = hashlib.sha256(json.dumps(provenance, sort_keys=True, default=str).encode())
    for index in range(len(dataset)) if hasattr(dataset, "path") else ():
        digest.update(os.fsencode(str(dataset.path(index))) + b"\0")
    return digest.hexdigest()
