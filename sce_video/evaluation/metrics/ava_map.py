"""Frame mAP of spatio-temporal action detection, as on AVA."""

from __future__ import annotations

import math
from typing import Any

from sce_video.datasets import read_key_frames
from sce_video.datasets.ava import read_actions
from sce_video.evaluation.functional.ava import RESAMPLES, evaluate_ava, write_result_csv
from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS


@METRICS.register_module()
class AVAMeanAP(RowMetric):
    """``mAP`` (0 to 1) at IoU 0.5 over the scored actions that have ground truth.

    The rows are scores of person boxes; :class:`~sce_video.datasets.AVADataset` gives ``key`` and
    ``boxes`` of every key frame. The average precision of each action is added to results.json,
    and the 95 % bootstrap interval of the mean over videos.

    Args:
        ann_file: Key frames with ground truth, written by ``sce-video prepare ava``; None uses that
            of the data set.
        actions: ``ava_actions.json``, written by the same tool.
        csv: File for the detections in the official form (a line per box and action), relative to
            the work dir; None for no file.

    Raises:
        FileNotFoundError: ``actions`` does not exist.
        ValueError: ``actions`` is malformed.
    """

    kinds = ("detection",)

    def __init__(
        self,
        ann_file: str | None = None,
        actions: str = "data/ava/ava_actions.json",
        csv: str | None = None,
    ) -> None:
        super().__init__()
        self.ann_file = ann_file
        self.actions = read_actions(actions)
        self.csv = csv

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """See the class.

        Raises:
            ValueError: the data set gives no boxes, or there is no list of key frames.
        """
        if rows.counts is None or not {"key", "boxes"} <= rows.columns.keys():
            raise ValueError("AVAMeanAP needs scores of boxes, of an AVADataset")
        truth = {
            (frame.video, frame.timestamp): (frame.boxes, frame.actions)
            for frame in read_key_frames(self._find_list())
        }
        per_frame = rows.values.split(rows.counts.tolist())
        found = {
            key: (boxes, scores.numpy())
            for key, boxes, scores in zip(
                rows.columns["key"], rows.columns["boxes"], per_frame, strict=True
            )
            if len(scores)
        }
        result = evaluate_ava(truth, found, self.actions, resamples=RESAMPLES)
        if self.csv is not None:
            write_result_csv(self.folder / self.csv, found, self.actions)
        self.details = {"per_class": _per_class(result)}
        self.provenance = {
            "videos": len({video for video, _ in found}),
            "key_frames": result.key_frames,
            "boxes": result.detections,
        }
        self.text = result.table()
        self.intervals = {"mAP": result.interval and list(result.interval)}
        return {"mAP": 0.0 if math.isnan(result.mAP) else result.mAP}

    def _find_list(self) -> str:
        ann_file = self.ann_file or (self.dataset_meta or {}).get("ann_file")
        if ann_file is None:
            raise ValueError(
                "AVAMeanAP needs an ann_file with the key frames: the data set has none"
            )
        return ann_file


def _per_class(result: Any) -> dict[str, dict[str, Any]]:
    return {
        str(i): {
            "name": result.names[i],
            "AP": None if math.isnan(ap) else ap,
            "boxes": result.num_boxes[i],
        }
        for i, ap in result.per_class.items()
    }
