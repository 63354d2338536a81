"""Resumable extraction of a dataset's features into a file, by local or remote processes.

The job of :mod:`sce_video.inference.embed_job` runs on the samples of a config's dataset. They are
embedded one by one or, if the loader cuts the views, batch by batch.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine.dist import get_world_size
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.transforms import PackVideo
from sce_video.evaluation.provenance import describe_evaluation
from sce_video.evaluation.rows import build_eval_dataloader, evaluating, sample_paths
from sce_video.inference.embed_file import FeatureFileRun
from sce_video.inference.embed_job import EmbedJob, job_workers, record_features
from sce_video.inference.features import Features
from sce_video.inference.multi_view import Batch, BatchRows, mean_representation
from sce_video.inference.network_input import ViewOptions
from sce_video.jobs import Item, Record, RunError, State, file_state
from sce_video.models.memory_format import move_to_device
from sce_video.registry import LOOPS
from sce_video.utils.cores import cores_of_process
from sce_video.utils.distributed import unwrap_model


@dataclass(frozen=True)
class RunnerNetwork:
    """Network of a runner, whose rows are mean representations.

    Attributes:
        model: Network without wrapper.
        checkpoint: Path of the checkpoint, for messages.
        device: Device of the network.
    """

    model: nn.Module
    checkpoint: str
    device: torch.device

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Compute the mean representations (n, D) over the views of each sample in a batch."""
        return mean_representation(max_views)(self.model, batch)

    def to(self, device: torch.device) -> RunnerNetwork:
        """Return the network on a device: itself, or a copy."""
        if device == self.device:
            return self
        return replace(self, model=move_to_device(copy.deepcopy(self.model), device), device=device)


class DatasetJob(EmbedJob):
    """Job that computes the mean representations of a dataset's samples.

    An item is a video. If the loader cuts the views, as for images, an item is a batch whose
    samples share forward passes.
    """

    def __init__(self, loop: FeatureExtractionLoop, network: RunnerNetwork, digest: str) -> None:
        super().__init__(
            cast(Any, network),
            ViewOptions(max_views=loop.max_views),
            settings={"fingerprint": digest},
            ray=loop.workers.ray,
            processes_per_gpu=loop.processes_per_gpu,
        )
        if get_world_size() == 1:
            self.device = network.device.type  # no index, so that processes spread over GPUs
        loader = loop.dataloader
        self._dataset, self._collate = cast(Any, loader.dataset), cast(Any, loader.collate_fn)
        pipeline: Any = getattr(loader.dataset, "pipeline", ())
        of_views = len(pipeline) > 0 and isinstance(pipeline[-1], PackVideo)
        self.item_size = 1 if of_views else loader.batch_size or 1
        self.unit = "videos" if of_views else "batches"

    def items(self) -> list[Item]:
        """Return the items of the dataset. Their keys sort in dataset order."""
        size, count = self.item_size, len(self._dataset)
        starts = range(0, count, size)
        return [self._item(range(start, min(start + size, count))) for start in starts]

    def samples(self, item: Item) -> list[Item]:
        return [self._item(range(i, i + 1)) for i in item.argument if len(item.argument) > 1]

    def _item(self, indices: range) -> Item:
        """Return the item for some samples with the state of their files; empty without files."""
        states: list[dict] = [{}]
        if hasattr(self._dataset, "path"):
            states = [file_state(str(self._dataset.path(index))) or {} for index in indices]
        state = states[0]
        if len(states) > 1:  # keep only a digest, because every record stores the state
            state = {"files": hashlib.sha256(json.dumps(states).encode()).hexdigest()}
        return Item(f"{indices.start:012}-{indices.stop:012}", state, indices)

    def source(self, item: Item) -> State:
        return self._item(item.argument).source

    def holds(self, item: Item, record: Record) -> bool:
        """Return whether an item is finished. The samples of a failed batch follow one by one."""
        return record.done or record.kind == "bad" or len(item.argument) > 1

    def describe(self, item: Item) -> str:
        return sample_paths(self._dataset, list(item.argument)[:1])[0]

    def read(self, item: Item) -> Batch:
        indices, dataset = list(item.argument), self._dataset
        try:
            joint = getattr(dataset, "__getitems__", None)
            samples = joint(indices) if joint else [dataset[index] for index in indices]
        except VideoDecodeError as error:  # raised if on_error is "raise"
            raise RunError(str(error)) from error
        return self._collate(samples)

    def features(self, item: Item, record: Record) -> Features:
        """Return the features of an item's samples; if it failed, all are listed as unreadable."""
        found = record_features(record, "")
        if not record.done:
            paths = sample_paths(self._dataset, list(item.argument))
            return replace(found, failures=[(path, found.reason) for path in paths])
        indices = record.facts["indices"]
        return replace(
            found,
            paths=sample_paths(self._dataset, indices),
            labels=np.array(record.facts["labels"], dtype=np.int64),
            indices=np.array(indices, dtype=np.int64),
            failures=[(str(path), str(why)) for path, why in record.facts["failures"]],
        )


@LOOPS.register_module()
class FeatureExtractionLoop(BaseLoop):
    """Write the mean representation of every video in ``test_dataloader`` to a .npz file.

    It is a batch job (docs/jobs.md). Processes decode and embed. Every feature is saved immediately
    to records in ``<out>.parts/``, from which an interrupted run resumes. Each rank embeds a part
    of the videos. Rank 0 writes the file and removes the folder, which several machines share.

    Args:
        runner: Runner whose model returns representations.
        dataloader: Config of the videos' loader. With a built loader, only this process embeds.
        evaluator: Must be empty: ``test_evaluator = []``.
        out: The .npz file, relative to the work folder.
        max_views: Number of views of a video per forward pass, which limits the device memory.
        workers: Number of processes per rank; None for the loader's ``num_workers``, but at most
            the number of cores; 0 works in this process. With ``ray``, number of parallel
            processes, None for the whole cluster.
        ray: Address of a Ray cluster to work on, or ``auto``; None for no cluster.
        processes_per_gpu: Number of processes that share a GPU of the cluster.

    Raises:
        ValueError: If ``out`` exists, or the records come from another checkpoint, dataset or
            pipeline.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        out: str = "features.npz",
        max_views: int = 30,
        workers: int | None = None,
        ray: str | None = None,
        processes_per_gpu: int = 4,
    ) -> None:
        if evaluator:
            raise ValueError("FeatureExtractionLoop computes no metrics. Set test_evaluator to []")
        if not out.endswith(".npz"):
            raise ValueError(f"features are saved as .npz, got {out}")
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        if get_world_size() > 1 and ray is not None:
            raise ValueError("--ray cannot be combined with --launcher. Remove one of them")
        self.cfg = None
        if isinstance(dataloader, dict):
            self.cfg = dict(dataloader)
            dataloader = {**dataloader, "num_workers": 0}  # the job's processes decode instead
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        self.path = Path(runner.work_dir) / out
        self.max_views, self.processes_per_gpu = max_views, processes_per_gpu
        if self.cfg is None:
            workers = 0
        elif workers is None and ray is None:
            workers = min(self.cfg.get("num_workers", 0), cores_of_process())
        decoding = getattr(self.dataloader.dataset, "timeout", None)
        seconds = decoding and decoding * (self.dataloader.batch_size or 1)
        self.workers = job_workers(workers, seconds, ray)

    def run(self) -> dict[str, float]:
        """Embed the remaining samples; return the numbers of ``videos`` and ``failures``."""
        dataset: Any = self.dataloader.dataset
        runner = self.runner
        provenance = describe_evaluation(runner, dataset, 0, "features")
        del provenance["views"], provenance["test"]["views"]  # unknown until a video is decoded
        # Leave out the resolved config, because paths and workers may change before a run resumes.
        described = {k: v for k, v in provenance.items() if k != "resolved_config"}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
        for index in range(len(dataset)) if hasattr(dataset, "path") else ():
            digest.update(os.fsencode(str(dataset.path(index))) + b"\0")
        model = unwrap_model(runner.model)
        device = next(model.parameters()).device
        network = RunnerNetwork(model, str(runner.cfg.get("load_from")), device)

        def finish(found: Features) -> Features:
            described = {"views": found.num_views, "videos": len(found)}
            # List an unreadable file once, even if it contains several samples.
            failures = [*dict.fromkeys(found.failures)]
            return replace(
                found,
                failures=failures,
                provenance={**provenance, **described, "num_views": found.num_views},
            )

        job = DatasetJob(self, network, digest.hexdigest())
        with evaluating(runner.model):
            found = FeatureFileRun(self.path, job, job.items, self.workers).run(finish)
        runner.logger.info(
            f"{len(found)} videos in {self.path}; {len(found.failures)} could not be decoded"
            + "".join(f"\n  {path}: {why}" for path, why in found.failures)
        )
        return {"videos": float(len(found)), "failures": float(len(found.failures))}
