"""Test loop of action localisation: frame mAP with given person boxes, as on AVA."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, broadcast_object_list, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch.utils.data import DataLoader

from sce_video.datasets import read_key_frames, report_worker_crashes
from sce_video.datasets.ava_actions import read_actions
from sce_video.evaluation.dataloaders import build_eval_dataloader
from sce_video.evaluation.functional.ava_map import AvaResult, evaluate_ava, write_result_csv
from sce_video.evaluation.provenance import describe_run
from sce_video.evaluation.rows import evaluating
from sce_video.registry import LOOPS
from sce_video.utils.atomic_file import write_json
from sce_video.utils.distributed import all_or_none, unwrap_model

#: Index of a key frame to its scores (n, number of classes), as float32.
_Scores = dict[int, np.ndarray]


@LOOPS.register_module()
class DetectionTestLoop(BaseLoop):
    """Score the actions of the person boxes of every key frame; mean average precision at IoU 0.5.

    ::

        test_dataloader = dict(batch_size=1, collate_fn=dict(type="sce_video.collate_boxes"), ...)
        test_evaluator = dict()
        test_cfg = dict(type="DetectionTestLoop", actions="data/ava/ava_actions.json")

    Also the loop of ``val_cfg``, with ``out=None``.

    Args:
        runner: The runner; its model is an
            :class:`~sce_video.models.algorithms.action_detector.ActionDetector`.
        dataloader: Of an :class:`~sce_video.datasets.AVADataset`; every key frame counts once.
        evaluator: Empty.
        actions: File that ``tools/data/ava.py`` wrote.
        precision: "float32", "bfloat16" or "float16".
        out: JSON file of results, relative to the work dir; None writes none.
        csv: Official form of the results (one line a box and action), relative to the work dir.

    Raises:
        ValueError: an evaluator that is not empty, a faulty file of actions, a model without
            ``roi_head``.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        actions: str = "data/ava/ava_actions.json",
        precision: str = "float32",
        out: str | None = "results.json",
        csv: str | None = None,
    ) -> None:
        if evaluator:
            raise ValueError("DetectionTestLoop computes its own figures: the evaluator is dict()")
        if not hasattr(unwrap_model(runner.model), "roi_head"):
            name = type(unwrap_model(runner.model)).__name__
            raise ValueError(f"{name} has no roi_head: it scores no boxes")
        if isinstance(dataloader, dict):
            dataloader = {"collate_fn": {"type": "sce_video.collate_boxes"}, **dataloader}
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        self.actions = read_actions(actions)
        self.dtype = getattr(torch, precision)
        self.out = out
        self.csv = csv

    def run(self) -> dict[str, float]:
        """Score, report on the first process; all processes get the figures."""
        hooks = "test" if self.out is not None else "val"
        self.runner.call_hook(f"before_{hooks}")
        self.runner.call_hook(f"before_{hooks}_epoch")
        own: tuple[_Scores, list[tuple[str, str]]] = ({}, [])
        with all_or_none("scoring the key frames"), evaluating(self.runner.model) as model:
            own = self._score(model)
        scores: _Scores = {}
        failures: list[tuple[str, str]] = []
        for part, failed in all_gather_object(own):
            scores.update(part)
            failures += failed
        answer: list[Any] = [None]
        if is_main_process():
            answer[0] = self._report(scores, failures)
        broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        self.runner.call_hook(f"after_{hooks}_epoch", metrics=answer[0])
        self.runner.call_hook(f"after_{hooks}")
        return answer[0]

    def _score(self, model: Any) -> tuple[_Scores, list[tuple[str, str]]]:
        """Of this process's share."""
        scores: _Scores = {}
        failures = []
        with report_worker_crashes(self.dataloader):
            for batch in self.dataloader:
                failures += [(str(path), str(why)) for path, why in batch["failures"]]
                counts = [len(boxes) for boxes in batch["boxes"]]
                if sum(counts) == 0:  # nobody in sight, or all were skipped
                    rows = torch.empty(0, 0)
                else:
                    data = model.data_preprocessor(batch, False)
                    mixed = self.dtype != torch.float32
                    device = data["inputs"].device.type
                    with torch.autocast(device, self.dtype, enabled=mixed):
                        rows = model(**data, mode="tensor").float().cpu()
                parts = rows.split(counts) if sum(counts) else [rows] * len(counts)
                for index, part in zip(batch["index"].tolist(), parts, strict=True):
                    scores[index] = part.numpy()
        return scores, failures

    def _report(
        self, scores: _Scores, failures: list[tuple[str, str]]
    ) -> dict[str, float] | Exception:
        """On the first process; an error is returned, so that the others hear of it."""
        try:
            dataset: Any = self.dataloader.dataset
            missing = len(dataset) - len(scores) - len(failures)
            if missing > 0:
                raise RuntimeError(f"{missing} of {len(dataset)} key frames were not scored")
            truth = {
                (frame.video, frame.timestamp): (frame.boxes, frame.actions)
                for frame in read_key_frames(dataset.ann_file)
            }
            found = {
                dataset.key(i): (dataset.boxes(i), rows) for i, rows in scores.items() if rows.size
            }
            result = evaluate_ava(truth, found, self.actions)
            metrics = {"mAP": 0.0 if math.isnan(result.mAP) else result.mAP}
            if self.out is not None:
                self._write(result, metrics, found, failures)
            return metrics
        except (ValueError, RuntimeError, OSError) as error:
            return error

    def _write(
        self,
        result: AvaResult,
        metrics: dict[str, float],
        found: dict,
        failures: list[tuple[str, str]],
    ) -> None:
        folder = Path(self.runner.work_dir)
        protocol = describe_run(self.runner, self.dataloader.dataset, 1, "detection")
        protocol["videos"] = len({key[0] for key in found})
        protocol["key_frames"] = result.key_frames
        protocol["boxes"] = result.detections
        protocol["failures"] = len(failures)
        if self.csv is not None:
            write_result_csv(folder / self.csv, found, self.actions)
        content = {
            "metrics": metrics,
            "per_class": {
                str(i): {
                    "name": result.names[i],
                    "AP": None if math.isnan(ap) else ap,
                    "boxes": result.num_boxes[i],
                }
                for i, ap in result.per_class.items()
            },
            "protocol": protocol,
            "failures": [list(failure) for failure in failures],
        }
        assert self.out is not None
        write_json(folder / self.out, content)
        self.runner.logger.info("\n" + result.table())
