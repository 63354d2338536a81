"""Extract the features of a data set into a file, in processes on one machine or many, with resume.

A batch job embeds the samples one by one or, where views are cut by the loader, batch by batch, to
records beside the file. ``rows.py`` makes the rows of a batch, and
``feature_files.py`` writes the file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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

from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.transforms import PackVideo
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.evaluation.feature_files import save_features
from sce_video.evaluation.multi_view import mean_representation
from sce_video.evaluation.npz_files import RowStream
from sce_video.evaluation.provenance import describe_run
from sce_video.evaluation.rows import (
    PartialRows,
    build_eval_dataloader,
    complete,
    evaluating,
    rows_of_batch,
    sample_paths,
)
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
    is_current,
    run_job,
    usable_cores,
)
from sce_video.models.modules.lora import merged_weights
from sce_video.registry import DATASETS, LOOPS, MODELS
from sce_video.utils.command import Progress
from sce_video.utils.distributed import all_or_none, run_on_main_rank, unwrap_model

#: Seconds for the forward passes of an item, besides the time limit for decoding it.
_FORWARD_SECONDS = 600.0
_NO_LIMIT = 1e6  # seconds, which timers of all systems accept


def time_limit(decoding: float | None) -> float:
    """Seconds that an item may take, of which ``decoding`` for its files; None for no limit."""
    return _NO_LIMIT if decoding is None else decoding + _FORWARD_SECONDS


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


class NetworkJob(BatchJob):
    """A batch job whose processes each have a network, as extraction and indexes.

    Args:
        network: That of this process; it is not sent to the others.
        parts: Objects whose classes the others must import, to register them.
        device: Of the processes; ``cuda`` without a number spreads them over all GPUs.
    """

    def __init__(self, network: Any, parts: Iterable[object], device: str) -> None:
        self.network: Any = network
        names = {type(part).__module__ for part in parts}
        self._modules = sorted(n for n in names if not n.startswith(("__", "builtins", "torch.")))
        self._device = device

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "network": None}

    def build(self, device: torch.device) -> Any:
        """The network, in a process that has none."""
        raise NotImplementedError

    def setup(self) -> None:
        """Build the network, unless this is the process that has it."""
        if self.network is not None:
            return
        for name in self._modules:
            importlib.import_module(name)
        # A sum over a whole tensor depends on the number of threads, and a feature must not.
        torch.set_num_threads(1)
        cv2.setNumThreads(0)
        device = torch.device(self._device)
        if self._device == "cuda":
            # (1,) of the first child process, and so on
            number = getattr(multiprocessing.current_process(), "_identity", ()) or (0,)
            device = torch.device("cuda", number[-1] % max(1, torch.cuda.device_count()))
        self.network = self.build(device)

    def run_network(self, function: Callable[[], Any], files: str) -> Any:
        """What a function of the network gives; an error would be one of all items: RunError."""
        try:
            with torch.no_grad():
                return function()
        except Exception as error:
            raise RunError(explain_network_error(error, files)) from error


class ExtractionJob(NetworkJob):
    """Gives the mean representations of consecutive samples.

    An item is a video; or, where the loader cuts the views, as of images, a batch, whose samples
    share forward passes. The ``fingerprint`` is that of all that the ``loop`` extracts from.
    """

    name = "extract"

    def __init__(self, loop: FeatureExtractionLoop, fingerprint: str) -> None:
        cfg, loader = loop.runner.cfg, loop.dataloader
        model, dataset = unwrap_model(loop.runner.model), loader.dataset
        pipeline: Any = getattr(dataset, "pipeline", ())
        device = next(model.parameters()).device
        if loop.workers.ray is not None or get_world_size() == 1:
            device = device.type  # the processes are spread over the GPUs
        super().__init__(model, [*model.modules(), dataset, *pipeline], str(device))
        imports = (cfg.get("custom_imports") or {}).get("imports", ())
        self._modules = [*imports, *self._modules]
        self.settings = {"fingerprint": fingerprint}
        self.gpus = loop.gpu_share if loop.workers.ray and str(device) == "cuda" else 0
        of_views = len(pipeline) > 0 and isinstance(pipeline[-1], PackVideo)
        self.item_size = 1 if of_views else loader.batch_size or 1
        self.unit = "videos" if of_views else "batches"
        self._dataset, self._collate = cast(Any, dataset), cast(Any, loader.collate_fn)
        # The on_error that holds here, which is not that of the config where it has none.
        of_data = {} if loop.cfg is None else dict(loop.cfg["dataset"])
        if "on_error" in of_data:
            of_data["on_error"] = dataset.on_error
        self._configs = of_data, dict(cfg.model), cfg.get("default_scope") or "sce_video"
        self._weights, self._max_views = loop.weights, loop.max_views

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_dataset": None}

    def ranges(self) -> list[range]:
        """Indices of the samples of each item."""
        size, count = self.item_size, len(self._dataset)
        return [range(start, min(start + size, count)) for start in range(0, count, size)]

    @staticmethod
    def key(indices: range) -> str:
        """Key of the item of these samples; keys are in the order of the data set."""
        return f"{indices.start:012}-{indices.stop:012}"

    def parts(self, indices: range, store: RecordStore) -> list[range]:
        """The item of these samples; of one that failed an item for each sample."""
        record = store.get(self.key(indices))
        if record is None or record.done:
            return [indices]
        return [range(index, index + 1) for index in indices]

    def item(self, indices: range) -> Item:
        """The item of these samples, with the state of their files; empty without a file."""
        states: list[dict[str, Any]] = [{}]
        if hasattr(self._dataset, "path"):
            states = [file_state(str(self._dataset.path(index))) or {} for index in indices]
        state = states[0]
        if len(states) > 1:  # it is stored with every record: that of a batch is one digest
            state = {"files": hashlib.sha256(json.dumps(states).encode()).hexdigest()}
        return Item(self.key(indices), state, indices)

    def source(self, item: Item) -> State:
        """State of the files now."""
        return self.item(item.argument).source

    def holds(self, item: Item, record: Record) -> bool:
        """Whether an item is finished; one of several samples that failed is done one by one."""
        return record.done or len(item.argument) > 1

    def build(self, device: torch.device) -> nn.Module:
        """The network; the data set, too."""
        of_data, of_model, scope = self._configs
        init_default_scope(scope)
        model = MODELS.build(of_model)
        weights = torch.load(self._weights, map_location="cpu", weights_only=True)
        # Strict: all weights are those of the process that started this one.
        model.load_state_dict(weights)
        self._dataset = DATASETS.build(of_data)
        return model.to(device).eval().requires_grad_(False)

    def process(self, item: Item) -> Facts:
        """Rows as data; views, indices, labels and unreadable files as values."""
        indices, dataset = list(item.argument), self._dataset
        try:
            joint = getattr(dataset, "__getitems__", None)
            samples = joint(indices) if joint else [dataset[index] for index in indices]
        except VideoDecodeError as error:  # under on_error="raise"
            raise RunError(str(error)) from error
        batch, name = self._collate(samples), sample_paths(dataset, indices[:1])[0]
        part = self.run_network(lambda: self._rows(batch, name), name)
        facts: dict[str, Any] = {"indices": part.indices, "labels": part.labels}
        facts |= {"failures": [*map(list, part.failures)], "views": part.num_views}
        return Facts(facts, b"".join(values.numpy().tobytes() for values in part.values))

    def _rows(self, batch: dict[str, Any], name: str) -> PartialRows:
        """The rows of a batch, whose first is ``name``; ValueError if they are not finite."""
        part = rows_of_batch(self.network, batch, mean_representation(self._max_views))
        if not all(bool(torch.isfinite(values).all()) for values in part.values):
            raise ValueError(
                f"the output for {name} is not finite: the network has diverged. Take a checkpoint "
                "from before that"
            )
        return part

    def recorded(self, indices: range, record: Record) -> tuple[PartialRows, np.ndarray]:
        """The samples of an item, of one that failed as unreadable; their features, else (0, 0)."""
        values, facts = np.empty((0, 0), np.float32), record.facts
        if not record.done:
            paths = sample_paths(self._dataset, list(indices))
            return PartialRows(failures=[(path, failure_of(record)) for path in paths]), values
        if record.data:
            values = np.frombuffer(record.data, np.float32).reshape(len(facts["indices"]), -1)
        samples = PartialRows(labels=facts["labels"], indices=facts["indices"])
        samples.failures = [(str(path), str(why)) for path, why in facts["failures"]]
        samples.num_views = facts["views"]
        return samples, values


@LOOPS.register_module()
class FeatureExtractionLoop(BaseLoop):
    """Write the mean representation of every video of ``test_dataloader`` to a .npz file.

    It is a batch job (docs/jobs.md): processes decode and embed, and every feature is saved at once
    to records in ``<out>.parts/``, from which an interrupted run resumes. Each rank embeds a part;
    the first one writes the file and removes the folder, which several machines share.

    Args:
        runner: Its model gives representations.
        dataloader: Config of the loader of the videos, or a loader: then this process embeds.
        evaluator: Must be empty: ``test_evaluator = []``.
        out: The .npz file, relative to the work dir.
        max_views: Views of a video per forward pass; bounds the device memory.
        workers: Processes of each rank; None for ``num_workers`` of the loader, but no more than
            there are cores; 0 works in this process. With ``ray`` processes at once, None for the
            whole cluster.
        ray: Address of a Ray cluster to work on, or ``auto``.
        processes_per_gpu: Processes that share a GPU of the cluster.

    Raises:
        ValueError: ``out`` exists, or the records are of another checkpoint, data set or pipeline.
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
            raise ValueError("FeatureExtractionLoop computes no metrics: set test_evaluator = []")
        if not out.endswith(".npz"):
            raise ValueError(f"features are saved as .npz, got {out}")
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        if get_world_size() > 1 and ray is not None:
            raise ValueError("--ray is for runs without --launcher: ranks have their own parts")
        self.cfg = None
        if isinstance(dataloader, dict):
            self.cfg = dict(dataloader)
            dataloader = {**dataloader, "num_workers": 0}  # the processes of the job decode
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        self.path = Path(runner.work_dir) / out
        self.parts = self.path.with_name(self.path.name + ".parts")
        self.weights = self.parts / "weights.pth"
        self.max_views, self.gpu_share = max_views, 1 / processes_per_gpu
        if self.cfg is None:
            workers = 0
        elif workers is None and ray is None:
            cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            workers = min(self.cfg.get("num_workers", 0), max(1, cores))
        decoding = getattr(self.dataloader.dataset, "timeout", None)
        seconds = time_limit(decoding and decoding * (self.dataloader.batch_size or 1))
        self.workers = Workers(workers, seconds, ray)

    def run(self) -> dict[str, float]:
        """Embed the samples that are due, each on one rank; ``videos`` and ``failures`` written."""
        dataset: Any = self.dataloader.dataset
        provenance = describe_run(self.runner, dataset, 0, "features")
        del provenance["views"], provenance["test"]["views"]  # unknown before a video is decoded
        # Paths and workers may change before the run is continued: not the resolved config.
        described = {k: v for k, v in provenance.items() if k != "resolved_config"}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
        for index in range(len(dataset)) if hasattr(dataset, "path") else ():
            digest.update(os.fsencode(str(dataset.path(index))) + b"\0")
        job = ExtractionJob(self, digest.hexdigest())
        due = run_on_main_rank(lambda: self._due(job))
        # Every n-th item: neighbours in a list are often alike in length.
        own = due[get_rank() :: get_world_size()]
        # SQLite allows one writer to a file, so each rank has its own.
        name = f"rank-{get_rank()}.sqlite" if get_rank() else "records.sqlite"
        with all_or_none("extracting features"), evaluating(self.runner.model):
            with RecordStore(self.parts / name, job.name) as store:
                self._embed(job, store, own, len(job.ranges()) - len(due))
        return run_on_main_rank(lambda: self._write(job, provenance))

    @contextmanager
    def _joined(self, job: ExtractionJob) -> Iterator[RecordStore]:
        """The records of all ranks of this run and of earlier ones, which had others."""
        with RecordStore(self.parts / "records.sqlite", job.name) as store:
            # Of several records of an item the latest counts.
            for path in sorted(self.parts.glob("rank-*.sqlite")):
                store.absorb(path)
            if any(settings != job.settings for settings in store.settings()):
                raise ValueError(
                    f"{self.parts} is of another checkpoint, data set or pipeline: give another "
                    f"--out, or remove {self.parts}"
                )
            yield store

    def _due(self, job: ExtractionJob) -> list[range]:
        """The items to embed, after a check that the file and the records are of this run."""
        if self.path.exists():
            raise ValueError(f"{self.path} exists: remove it, or give another --out")
        with self._joined(job) as store:
            items = (job.item(part) for whole in job.ranges() for part in job.parts(whole, store))
            due = [item.argument for item in items if not is_current(job, item, store)]
            known = len(store)
        if known:
            done = f"{known} {job.unit} were embedded before"
            self.runner.logger.info(f"resuming: {done}, {len(due)} are left")
        if self.workers.count != 0:
            save_checkpoint_file(merged_weights(job.network.state_dict()), self.weights)
        return due

    def _embed(self, job: ExtractionJob, store: RecordStore, due: list[range], known: int) -> None:
        """Embed items; then the samples of batches that failed, one by one."""
        progress = Progress(known + len(due), "embedding", begin=known, unit=job.unit)

        def report(_item: Item, record: Record | None) -> None:
            bad = record is None or not record.done or bool(record.facts["failures"])
            if is_main_process():
                progress.advance(bad)

        workers = self.workers.at_most(len(due))
        run_job(job, map(job.item, due), store, workers, report)
        # One bad file would cost all others of its batch.
        failed = [one for indices in due for one in job.parts(indices, store) if one != indices]
        if failed:
            run_job(job, map(job.item, failed), store, workers)
        if is_main_process():
            progress.finish()

    def _write(self, job: ExtractionJob, provenance: dict[str, Any]) -> dict[str, float]:
        """Write the file, with the features of one block in memory at a time."""
        with self._joined(job) as store:

            def recorded() -> Iterator[tuple[PartialRows, np.ndarray]]:
                """Samples of every item; of a batch that failed those of each sample."""
                for part in (part for whole in job.ranges() for part in job.parts(whole, store)):
                    yield job.recorded(part, cast(Record, store.get(job.key(part))))

            # Two passes: first all but the features, which do not fit into memory.
            joined, size = PartialRows(), 0
            for part, features in recorded():
                joined.add(part)
                size = size or features.shape[1]
            samples = complete(joined, self.dataloader.dataset)
            assert samples.indices.tolist() == joined.indices, "items in the order of the data set"
            values = (row for _, features in recorded() for row in features)
            described = {**provenance, "views": samples.num_views, "videos": len(samples)}
            stream = RowStream((len(samples), size), np.dtype(np.float32), values)
            save_features(self.path, samples, described, stream)
        # Only after the file is complete under its name.
        shutil.rmtree(self.parts, ignore_errors=True)
        self.runner.logger.info(
            f"{len(samples)} videos of {size} features each in {self.path}; "
            f"{len(samples.failures)} could not be decoded"
            + "".join(f"\n  {path}: {why}" for path, why in samples.failures)
        )
        return {"videos": float(len(samples)), "failures": float(len(samples.failures))}
