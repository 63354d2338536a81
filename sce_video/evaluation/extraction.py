"""Extract the features of a data set into one file: processes, ranks, shards, with resume."""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.registry import init_default_scope
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.transforms import PackVideo
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.evaluation.collecting import (
    PartialRows,
    build_eval_dataloader,
    complete,
    evaluating,
    sample_paths,
)
from sce_video.evaluation.features import write_features
from sce_video.evaluation.multi_view import mean_representation
from sce_video.evaluation.provenance import describe_run
from sce_video.jobs import (
    BatchJob,
    Facts,
    Item,
    Record,
    RecordStore,
    RunError,
    State,
    Workers,
    file_state,
    run_job,
    usable_cores,
)
from sce_video.jobs.shards import Shard, SharedFolder
from sce_video.registry import DATASETS, LOOPS, MODELS
from sce_video.utils.distributed import all_or_none, run_on_main_rank, unwrap_model
from sce_video.utils.progress import Progress

#: Seconds for the forward passes of an item, besides the time limit for decoding it.
_FORWARD_SECONDS = 600.0
_NO_LIMIT = 1e6  # seconds, which timers of all systems accept


def time_limit(decoding: float | None) -> float:
    """Seconds that an item may take, of which ``decoding`` for its files; None for no limit."""
    return _NO_LIMIT if decoding is None else decoding + _FORWARD_SECONDS


def modules_of(parts: Iterable[object]) -> list[str]:
    """The modules that define the classes of some objects, and register them when imported."""
    names = {type(part).__module__ for part in parts}
    return sorted(name for name in names if not name.startswith(("__", "builtins", "torch.")))


def prepare_process(modules: Iterable[str]) -> None:
    """Import modules, and compute with one thread, in a process of its own.

    A sum over a whole tensor depends on the number of threads, and a feature must not.
    """
    for name in modules:
        importlib.import_module(name)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)


def device_of_process(device: str) -> torch.device:
    """The device of this process: ``cuda`` without a number spreads the processes over all."""
    if device != "cuda":
        return torch.device(device)
    number = getattr(multiprocessing.current_process(), "_identity", ()) or (0,)  # 1, 2, ...
    return torch.device("cuda", number[-1] % max(1, torch.cuda.device_count()))


def failure_of(record: Record) -> str:
    """Why a file has no feature, for the lists of unreadable files."""
    if record.kind == "crash":
        return f"crashed the process that was reading it ({record.reason})"
    return record.reason


def explain_network_error(error: Exception, files: str) -> str:
    """Why a network fails, for the error that ends a run."""
    text = str(error).partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError):
        return f"the GPU's memory is full ({text}): take fewer --workers"
    return text if isinstance(error, ValueError) else f"the network fails for {files}: {text}"


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


@LOOPS.register_module()
class FeatureExtractionLoop(BaseLoop):
    """Write the mean representation of every video of ``test_dataloader`` to a .npz file.

    It is a batch job (docs/jobs.md): processes decode and embed, and every feature is saved at once
    to records in ``<out>.parts/``, from which an interrupted run resumes, also with another number
    of processes, ranks or shards. Each rank works on one shard. Who finishes last writes the file
    and removes the folder, which is on shared storage where there are several machines.

    Args:
        runner: The runner; its model gives representations (``mode="tensor"``).
        dataloader: Config of the loader of the videos, or a loader, whose samples are embedded in
            this process.
        evaluator: Must be empty: ``test_evaluator = []``.
        out: The .npz file, relative to the work dir.
        max_views: Views of a video per forward pass; bounds the device memory.
        workers: Processes of each rank; None for ``num_workers`` of the loader, but no more than
            there are cores; 0 works in this process. With ``ray`` processes at once, None for the
            whole cluster.
        ray: Address of a Ray cluster to work on, or ``auto``.
        processes_per_gpu: Processes that share a GPU of the cluster.
        shard: Part ``i/n`` of the data set, for runs without a launcher.

    Raises:
        ValueError: ``out`` is no .npz file or exists already, the records are of another
            checkpoint, data set or pipeline, a wrong number, or an evaluator is given.
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
        shard: str = "1/1",
    ) -> None:
        if evaluator:
            raise ValueError("FeatureExtractionLoop computes no metrics: set test_evaluator = []")
        if not out.endswith(".npz"):
            raise ValueError(f"features are saved as .npz, got {out}")
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        self.cfg = dict(dataloader) if isinstance(dataloader, dict) else None
        unused = {**dataloader, "num_workers": 0} if isinstance(dataloader, dict) else dataloader
        super().__init__(runner, build_eval_dataloader(unused, runner.seed))
        self.path = Path(runner.work_dir) / out
        self.parts = self.path.with_name(self.path.name + ".parts")
        self.max_views = max_views
        self.shard = self._shard(shard, ray)
        self.workers = self._workers(workers, ray)
        self.gpu_share = 1 / processes_per_gpu

    def _shard(self, shard: str, ray: str | None) -> Shard:
        parsed, ranks = Shard.parse(shard), get_world_size()
        if ranks > 1 and (parsed.count > 1 or ray is not None):
            raise ValueError("--shard and --ray are for runs without --launcher: ranks are shards")
        return parsed if ranks == 1 else Shard(get_rank() + 1, ranks)

    def _workers(self, count: int | None, ray: str | None) -> Workers:
        assert isinstance(self.dataloader, DataLoader)
        dataset: Any = self.dataloader.dataset
        if self.cfg is None:
            count = 0
        elif count is None and ray is None:
            cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            count = min(self.cfg.get("num_workers", 0), max(1, cores))
        decoding = getattr(dataset, "timeout", None)
        batch = self.dataloader.batch_size or 1
        return Workers(count, time_limit(decoding and decoding * batch), ray)

    def run(self) -> dict[str, float]:
        """Embed the videos of this shard that are due, and write the file if no other is missing.

        Returns:
            ``videos`` and ``failures`` of the file, or of the shard if others are missing.
        """
        provenance = describe_run(self.runner, self.dataloader.dataset, 0, "features")
        del provenance["views"], provenance["test"]["views"]  # unknown before a video is decoded
        run_on_main_rank(self._check_unused)
        # Paths and workers may change before the run is continued: not the resolved config.
        described = {k: v for k, v in provenance.items() if k != "resolved_config"}
        job = self._job(fingerprint(described, self.dataloader.dataset))
        found: dict[str, float] | None = None
        with all_or_none("extracting features"), evaluating(self.runner.model):
            with SharedFolder(self.parts, job.name).open(self.shard, self._is_own(job)) as store:
                self._check_store(store, job)
                self._embed(job, store)
                counts = self._counts(job, store)
                if self.shard.count == 1:
                    found = self._write(job, store, provenance)
        if get_world_size() > 1:
            found = run_on_main_rank(lambda: self._join(job, provenance))
        elif found is None:
            found = self._join(job, provenance)
        if self.path.exists() and is_main_process():
            shutil.rmtree(self.parts, ignore_errors=True)
        return found or counts

    def _check_unused(self) -> None:
        if self.path.exists():
            raise ValueError(f"{self.path} exists: remove it, or give another --out")

    def _check_store(self, store: RecordStore, job: ExtractionJob) -> None:
        if any(settings != job.settings for settings in store.settings()):
            raise ValueError(
                f"{self.parts} is of another checkpoint, data set or pipeline: give another --out, "
                f"or remove {self.parts}"
            )

    def _job(self, digest: str) -> ExtractionJob:
        runner, loader = self.runner, self.dataloader
        dataset, model = loader.dataset, unwrap_model(runner.model)
        cfg = runner.cfg
        described = {} if self.cfg is None else dict(self.cfg["dataset"])
        if "on_error" in described:
            described["on_error"] = dataset.on_error
        device = next(model.parameters()).device
        if self.workers.ray is not None or get_world_size() == 1:
            device = device.type  # the processes are spread over the GPUs
        origin = Origin(
            dataset=described,
            model=dict(cfg.model),
            weights=self.parts / f"weights{self.shard.suffix}.pth",
            imports=tuple((cfg.get("custom_imports") or {}).get("imports", ())),
            scope=cfg.get("default_scope") or "sce_video",
        )
        return ExtractionJob(
            dataset,
            model,
            origin,
            loader.collate_fn,
            loader.batch_size or 1,
            self.max_views,
            fingerprint=digest,
            device=str(device),
            gpus=self.gpu_share if self.workers.ray and str(device) == "cuda" else 0,
        )

    def _is_own(self, job: ExtractionJob) -> Callable[[Record], bool]:
        return lambda record: job.shard_of(record.key, self.shard.count) == self.shard.number

    def _embed(self, job: ExtractionJob, store: RecordStore) -> None:
        """Embed what is due; then the samples of items that failed, one by one."""
        items, known = job.ranges(self.shard), len(store)
        if known:
            self.runner.logger.info(
                f"resuming: {known} {job.unit} were embedded before, {len(items) - known} are left"
            )
        if self.workers.count != 0:
            job.save_weights()
        progress = Progress(len(items), "embedding", begin=known, unit=job.unit)

        def report(item: Item, record: Record | None) -> None:
            failed = record is None or not record.done or bool(record.facts["failures"])
            if is_main_process():
                progress.advance(failed)

        workers = self.workers.at_most(len(items))
        run_job(job, map(job.item, items), store, workers, report)
        if job.item_size > 1:  # of batches that ended their process, the samples one by one
            records = self._records(job, store, self.shard)
            single = [one for one, record in records if record is None or not record.done]
            run_job(job, map(job.item, single), store, workers)
        if is_main_process():
            progress.finish()

    def _records(
        self, job: ExtractionJob, store: RecordStore, shard: Shard
    ) -> Iterator[tuple[range, Record | None]]:
        """Indices and record of every item; of a batch that failed those of its samples."""
        for indices in job.ranges(shard):
            record = store.get(key_of(indices))
            if len(indices) == 1 or (record is not None and record.done):
                yield indices, record
                continue
            for index in indices:
                one = range(index, index + 1)
                yield one, store.get(key_of(one))

    def _counts(self, job: ExtractionJob, store: RecordStore) -> dict[str, float]:
        """Videos and failures of this shard."""
        counts = {"videos": 0.0, "failures": 0.0}
        for indices, record in self._records(job, store, self.shard):
            assert record is not None
            failures = len(record.facts["failures"]) if record.done else 1
            counts["videos"] += len(indices) - failures
            counts["failures"] += failures
        return counts

    def _join(self, job: ExtractionJob, provenance: dict[str, Any]) -> dict[str, float] | None:
        """Write the file if all shards have finished; None if one is missing, or another wrote it.

        The lock is waited for: of two shards that finish at once the second sees both.
        """
        with RecordStore(self.parts / "joint.sqlite", job.name, wait=3600.0) as joint:
            if self.path.exists():
                return None
            SharedFolder(self.parts, job.name).absorb_into(joint)
            self._check_store(joint, job)
            missing = sum(r is None for _, r in self._records(job, joint, Shard()))
            if missing:
                self.runner.logger.info(f"{missing} videos of other shards are still to do")
                return None
            return self._write(job, joint, provenance)

    def _write(
        self, job: ExtractionJob, store: RecordStore, provenance: dict[str, Any]
    ) -> dict[str, float]:
        """Write the file, with the features of one block in memory at a time."""
        joined, size = PartialRows(), 0
        for indices, record in self._records(job, store, Shard()):
            assert record is not None
            joined.add(job.samples(indices, record))
            size = size or features_of(record).shape[1]
        samples = complete(joined, self.dataloader.dataset)
        assert samples.indices.tolist() == joined.indices, "items in the order of the data set"
        values = (
            row
            for _, record in self._records(job, store, Shard())
            for row in features_of(cast(Record, record))
        )
        described = {**provenance, "views": samples.num_views, "videos": len(samples)}
        write_features(self.path, samples, values, size, described)
        self.runner.logger.info(
            f"{len(samples)} videos of {size} features each in {self.path}; "
            f"{len(samples.failures)} could not be decoded"
            + "".join(f"\n  {path}: {why}" for path, why in samples.failures)
        )
        return {"videos": float(len(samples)), "failures": float(len(samples.failures))}
