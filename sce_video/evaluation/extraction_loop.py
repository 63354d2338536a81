"""Features of a data set into one file, resumable and over several processes."""

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
from mmengine.dist import broadcast_object_list, get_rank, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader, Subset

from sce_video.evaluation.dataloaders import build_eval_dataloader
from sce_video.evaluation.features import feature_set, mean_representation, save_features
from sce_video.evaluation.npz_files import read_npz, write_npz
from sce_video.evaluation.provenance import describe_run
from sce_video.evaluation.rows import VideoRows, append_rows, assemble, batch_rows, evaluating
from sce_video.registry import LOOPS
from sce_video.utils.distributed import all_or_none


@LOOPS.register_module()
class FeatureExtractionLoop(BaseLoop):
    """The mean representation of every video of ``test_dataloader``, written to a .npz file.

    Every process writes what it has done to ``<out>.parts/`` every ``save_every`` videos. A run
    that was broken off, even one of another number of processes, goes on from these parts; when
    all is done the first process joins them and removes the folder. On several machines the
    folder must be one that all of them see.

    Args:
        runner: The runner; its model gives representations (``mode="tensor"``).
        dataloader: What is embedded.
        evaluator: Empty: ``test_evaluator = dict()``.
        out: The .npz file, relative to the work dir.
        max_views: Views of a video at a time; bounds the device's memory.
        save_every: Videos of a process between two parts.

    Raises:
        ValueError: ``out`` is no .npz file, it exists with other contents, or an evaluator is
            given.
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
            raise ValueError("FeatureExtractionLoop judges nothing: set test_evaluator = dict()")
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
        """Embed what is left, then join; returns the number of videos and of failures."""
        dataset = self.dataloader.dataset
        protocol = describe_run(self.runner, dataset, 0, "features")
        del protocol["views"], protocol["test"]["views"]  # known once a video was decoded
        fingerprint = _fingerprint(protocol, dataset)
        done = self._find_done(fingerprint)
        left = [i for i in range(len(dataset)) if i not in done]
        if done:
            self.runner.logger.info(
                f"{len(done)} videos were embedded before, {len(left)} are left"
            )
        with all_or_none("extracting features"), evaluating(self.runner.model) as model:
            for rows in self._portions(model, left):
                self._write_part(rows, fingerprint)
        counts: list[Any] = [None]
        if is_main_process():
            counts[0] = self._join(protocol, fingerprint)
        broadcast_object_list(counts, src=0)
        if isinstance(counts[0], Exception):
            raise counts[0]
        return counts[0]

    def _find_done(self, fingerprint: str) -> set[int]:
        """Indices that earlier runs embedded or found unreadable; the first process looks."""
        answer: list[Any] = [None]
        if is_main_process():
            try:
                if self.path.exists():
                    raise ValueError(f"{self.path} exists: remove it, or give another --out")
                answer[0] = set()
                for part in self._read_parts(fingerprint):
                    answer[0].update(part["indices"].tolist(), part["failed"].tolist())
            except (ValueError, OSError) as error:
                answer[0] = error
        broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    def _portions(self, model: Any, left: list[int]) -> Iterator[VideoRows]:
        """Rows of up to ``save_every`` videos, of this process's share of what is left."""
        if not left:
            return
        loader = self.dataloader
        if self.cfg is not None and len(left) < len(loader.dataset):
            subset = Subset(loader.dataset, left)
            loader = build_eval_dataloader({**self.cfg, "dataset": subset}, self.runner.seed)
        portion, values = VideoRows(torch.empty(0, 0), [], [], [], 0), []
        function = mean_representation(self.max_views)
        for rows in batch_rows(model, loader, function, self.runner.logger.info):
            append_rows(portion, rows)
            if rows.indices:
                values.append(rows.values)
            if len(portion.indices) + len(portion.failures) >= self.save_every:
                portion.values = torch.cat(values) if values else portion.values
                yield portion
                portion, values = VideoRows(torch.empty(0, 0), [], [], [], 0), []
        if portion.indices or portion.failures:
            portion.values = torch.cat(values) if values else portion.values
            yield portion

    def _write_part(self, rows: VideoRows, fingerprint: str) -> None:
        places = {path: i for i, path in _paths(self.dataloader.dataset)} if rows.failures else {}
        arrays = {
            "values": rows.values.numpy(),
            "labels": np.array(rows.labels, dtype=np.int64),
            "indices": np.array(rows.indices, dtype=np.int64),
            "failed": np.array([places[path] for path, _ in rows.failures], dtype=np.int64),
        }
        stored = {
            "fingerprint": fingerprint,
            "failures": rows.failures,
            "num_views": rows.num_views,
        }
        name = f"{time.time_ns()}_{get_rank()}_{os.getpid()}.npz"
        write_npz(self.parts / name, arrays, stored)

    def _read_parts(self, fingerprint: str) -> Iterator[dict[str, Any]]:
        """Parts of this very job, in the order in which they were written."""
        for path in sorted(self.parts.glob("*.npz")):
            arrays, stored = read_npz(path, "a part of a feature file", ("values", "indices"))
            if stored.get("fingerprint") != fingerprint:
                raise ValueError(
                    f"{path} is of another checkpoint, data set or pipeline: give another --out, "
                    f"or remove {self.parts}"
                )
            yield {**arrays, **stored}

    def _join(self, protocol: dict[str, Any], fingerprint: str) -> dict[str, float] | Exception:
        """On the first process; an error is returned, so that the others hear of it."""
        try:
            rows, values = VideoRows(torch.empty(0, 0), [], [], [], 0), []
            for part in self._read_parts(fingerprint):
                if len(part["indices"]):
                    values.append(torch.from_numpy(part["values"]))
                failures = [(str(path), str(why)) for path, why in part["failures"]]
                found = part["labels"].tolist(), part["indices"].tolist(), failures
                append_rows(rows, VideoRows(torch.empty(0, 0), *found, part["num_views"]))
            rows.values = torch.cat(values) if values else rows.values
            dataset = self.dataloader.dataset
            rows = assemble(rows, len(dataset))
            protocol = {**protocol, "views": rows.num_views, "videos": len(rows.indices)}
            save_features(self.path, feature_set(rows, dataset), protocol)
            shutil.rmtree(self.parts)
            self.runner.logger.info(
                f"{len(rows.indices)} videos, {rows.values.shape[1]} numbers each, in {self.path}; "
                f"{len(rows.failures)} could not be decoded"
                + "".join(f"\n  {path}: {why}" for path, why in rows.failures)
            )
        except (ValueError, RuntimeError, OSError) as error:
            return error
        return {"videos": float(len(rows.indices)), "failures": float(len(rows.failures))}


def _paths(dataset: Any) -> Iterator[tuple[int, str]]:
    return ((i, str(dataset.path(i))) for i in range(len(dataset)))


def _fingerprint(protocol: dict[str, Any], dataset: Any) -> str:
    """Of all that the features depend on: a part of another job must not be joined."""
    digest = hashlib.sha256(json.dumps(protocol, sort_keys=True, default=str).encode())
    for _, path in _paths(dataset):
        digest.update(os.fsencode(path) + b"\0")
    return digest.hexdigest()
