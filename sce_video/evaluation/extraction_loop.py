"""Extract the features of a data set into one file, on any number of ranks, with resume."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader, Subset

from sce_video.evaluation.collecting import PartialRows, batch_rows, complete, evaluating
from sce_video.evaluation.dataloaders import build_eval_dataloader
from sce_video.evaluation.features import save_features
from sce_video.evaluation.npz_files import read_npz, write_npz
from sce_video.evaluation.provenance import describe_run
from sce_video.evaluation.row_functions import mean_representation
from sce_video.registry import LOOPS
from sce_video.utils.distributed import all_or_none, run_on_main_rank


@LOOPS.register_module()
class FeatureExtractionLoop(BaseLoop):
    """Write the mean representation of every video of ``test_dataloader`` to a .npz file.

    Every rank saves a part in ``<out>.parts/`` after each ``save_every`` videos. An interrupted
    run, even one with another number of ranks, resumes from these parts; at the end rank 0 joins
    them and removes the folder. With several machines the folder must be on shared storage.

    Args:
        runner: The runner; its model gives representations (``mode="tensor"``).
        dataloader: Loader, or its config, of the videos.
        evaluator: Must be empty: ``test_evaluator = []``.
        out: The .npz file, relative to the work dir.
        max_views: Views of a video per forward pass; bounds the device memory.
        save_every: Videos of a rank per part.

    Raises:
        ValueError: ``out`` is no .npz file or exists already, the parts are of another checkpoint,
            data set or pipeline, ``save_every`` is below 1, or an evaluator is given.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        out: str = "features.npz",
        max_views: int = 30,
        save_every: int = 500,
    ) -> None:
        if evaluator:
            raise ValueError("FeatureExtractionLoop computes no metrics: set test_evaluator = []")
        if not out.endswith(".npz"):
            raise ValueError(f"features are saved as .npz, got {out}")
        if save_every < 1:
            raise ValueError(f"save_every must be at least 1, got {save_every}")
        self.cfg = dict(dataloader) if isinstance(dataloader, dict) else None
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        self.path = Path(runner.work_dir) / out
        self.parts = self.path.with_name(self.path.name + ".parts")
        self.max_views = max_views
        self.save_every = save_every

    def run(self) -> dict[str, float]:
        """Embed the remaining videos and join the parts; returns ``videos`` and ``failures``."""
        dataset = self.dataloader.dataset
        provenance = describe_run(self.runner, dataset, 0, "features")
        del provenance["views"], provenance["test"]["views"]  # unknown before a video is decoded
        fingerprint = _fingerprint(provenance, dataset)
        done = run_on_main_rank(lambda: self._find_done(fingerprint))
        left = [i for i in range(len(dataset)) if i not in done]
        if done:
            self.runner.logger.info(
                f"resuming: {len(done)} videos were embedded before, {len(left)} are left"
            )
        with all_or_none("extracting features"), evaluating(self.runner.model) as model:
            for rows in self._portions(model, left):
                self._write_part(rows, fingerprint)
        return run_on_main_rank(lambda: self._join(provenance, fingerprint))

    def _find_done(self, fingerprint: str) -> set[int]:
        """Indices that earlier runs embedded or found unreadable."""
        if self.path.exists():
            raise ValueError(f"{self.path} exists: remove it, or give another --out")
        done: set[int] = set()
        for part in self._read_parts(fingerprint):
            done.update(part["indices"].tolist(), part["failed"].tolist())
        return done

    def _portions(self, model: Any, left: list[int]) -> Iterator[PartialRows]:
        """Yield rows of up to ``save_every`` videos of this rank's part of the indices ``left``."""
        if not left:
            return
        loader = self.dataloader
        if self.cfg is not None and len(left) < len(loader.dataset):
            subset = Subset(loader.dataset, left)
            loader = build_eval_dataloader({**self.cfg, "dataset": subset}, self.runner.seed)
        portion = PartialRows()
        function = mean_representation(self.max_views)
        for rows in batch_rows(model, loader, function, self.runner.logger.info):
            portion.add(rows)
            if len(portion.indices) + len(portion.failures) >= self.save_every:
                yield portion
                portion = PartialRows()
        if portion.indices or portion.failures:
            yield portion

    def _write_part(self, rows: PartialRows, fingerprint: str) -> None:
        index_of = {}
        if rows.failures:
            index_of = {path: i for i, path in _paths(self.dataloader.dataset)}
        values = torch.cat(rows.values) if rows.values else torch.empty(0, 0)
        arrays = {
            "values": values.numpy(),
            "labels": np.array(rows.labels, dtype=np.int64),
            "indices": np.array(rows.indices, dtype=np.int64),
            "failed": np.array([index_of[path] for path, _ in rows.failures], dtype=np.int64),
        }
        stored = {
            "fingerprint": fingerprint,
            "failures": rows.failures,
            "num_views": rows.num_views,
        }
        name = f"{time.time_ns()}_{get_rank()}_{os.getpid()}.npz"
        write_npz(self.parts / name, arrays, stored)

    def _read_parts(self, fingerprint: str) -> Iterator[dict[str, Any]]:
        """Yield the parts in the order in which they were written; refuse those of another job."""
        for path in sorted(self.parts.glob("*.npz")):
            arrays, stored = read_npz(path, "a part of a feature file", ("values", "indices"))
            if stored.get("fingerprint") != fingerprint:
                raise ValueError(
                    f"{path} is of another checkpoint, data set or pipeline: give another --out, "
                    f"or remove {self.parts}"
                )
            yield {**arrays, **stored}

    def _join(self, provenance: dict[str, Any], fingerprint: str) -> dict[str, float]:
        joined = PartialRows()
        for part in self._read_parts(fingerprint):
            joined.add(
                PartialRows(
                    values=[torch.from_numpy(part["values"])] if len(part["indices"]) else [],
                    labels=part["labels"].tolist(),
                    indices=part["indices"].tolist(),
                    failures=[(str(path), str(why)) for path, why in part["failures"]],
                    num_views=part["num_views"],
                )
            )
        rows = complete(joined, self.dataloader.dataset)
        save_features(self.path, rows, {**provenance, "views": rows.num_views, "videos": len(rows)})
        shutil.rmtree(self.parts)
        self.runner.logger.info(
            f"{len(rows)} videos of {rows.values.shape[1]} features each in {self.path}; "
            f"{len(rows.failures)} could not be decoded"
            + "".join(f"\n  {path}: {why}" for path, why in rows.failures)
        )
        return {"videos": float(len(rows)), "failures": float(len(rows.failures))}


def _paths(dataset: Any) -> Iterator[tuple[int, str]]:
    return ((i, str(dataset.path(i))) for i in range(len(dataset)))


def _fingerprint(provenance: dict[str, Any], dataset: Any) -> str:
    """SHA-256 of everything that the features depend on; parts of one job share it."""
    digest = hashlib.sha256(json.dumps(provenance, sort_keys=True, default=str).encode())
    for _, path in _paths(dataset):
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()
