"""Metrics of class scores: accuracy over all views and the central view, and frame mAP of boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from sce_video.datasets.ava import read_actions, read_key_frames
from sce_video.evaluation.functional.frame_map import RESAMPLES, evaluate_ava, write_result_csv
from sce_video.evaluation.functional.statistics import check_ranks, mean_class_accuracy, top_k_hits
from sce_video.evaluation.metrics.base import RowMetric
from sce_video.evaluation.rows import Rows
from sce_video.registry import METRICS
from sce_video.utils.records import at


@METRICS.register_module()
class TopKAccuracy(RowMetric):
    """``top1, top5`` (0 to 1) and, with several views, ``one_view_top1, one_view_top5``.

    Every k in ``ks`` is at least 1. With k classes or fewer, the top-k accuracy is 1.
    """

    kinds = ("recognition",)

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        super().__init__()
        check_ranks(ks)
        self.ks = tuple(ks)

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the top-k accuracies over all views and the central view."""
        hits = {
            f"{prefix}top{k}": top_k_hits(scores, rows.labels, k)
            for prefix, scores in _all_and_one_view(rows)
            for k in self.ks
        }
        return self.means_of(hits)


@METRICS.register_module()
class MeanClassAccuracy(RowMetric):
    """``mean_class_accuracy``: top-1 accuracy averaged over the classes that occur.

    With one-view scores, ``one_view_mean_class_accuracy`` is added.
    """

    kinds = ("recognition",)
    class_means = frozenset({"mean_class_accuracy", "one_view_mean_class_accuracy"})

    def compute(self, rows: Rows, gallery: Rows | None = None) -> dict[str, float]:
        """Compute the mean class accuracy over all views and the central view."""
        metrics = {}
        for prefix, scores in _all_and_one_view(rows):
            name = f"{prefix}mean_class_accuracy"
            self.outcomes[name] = top_k_hits(scores, rows.labels, 1)
            metrics[name] = mean_class_accuracy(scores, rows.labels)
        return metrics


def _all_and_one_view(rows: Rows) -> Iterator[tuple[str, Tensor]]:
    """Yield a prefix and scores (N, C) for all views, then for the central view if stored."""
    if len(rows) == 0:
        raise ValueError(f"{rows.name} contain no videos, so they have no accuracy")
    outside = (rows.labels < 0) | (rows.labels >= rows.num_classes)
    rows.refuse(outside, f"accuracy needs labels from 0 to {rows.num_classes - 1}")
    yield "", rows.values
    if rows.central is not None:
        yield "one_view_", rows.central


@METRICS.register_module()
class AVAMeanAP(RowMetric):
    """``mAP`` (0 to 1) at IoU 0.5 over the scored actions that have ground truth.

    The rows are scores of person boxes. :class:`~sce_video.datasets.AVADataset` provides ``key``
    and ``boxes`` for every key frame. Each action's average precision and the 95 % bootstrap
    interval of the mean over videos are added to results.json.

    Args:
        ann_file: List of key frames with ground truth. None uses the dataset's list.
        actions: Path of ``ava_actions.json``. ``sce-video prepare ava`` writes both files.
        csv: File for the detections in the official format (a line per box and action), relative
            to the work folder; None for no file.
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
        """Compute the mAP; raise ValueError if the dataset has no boxes or key-frame list."""
        if rows.counts is None or not {"key", "boxes"} <= rows.columns.keys():
            raise ValueError("AVAMeanAP needs scores of boxes from an AVADataset")
        ann_file = self.ann_file or at(self.dataset_meta, "ann_file")
        if ann_file is None:
            raise ValueError(
                "AVAMeanAP needs an ann_file with the key frames, because the dataset has none"
            )
        frames = read_key_frames(ann_file)
        truth = {(frame.video, frame.timestamp): (frame.boxes, frame.actions) for frame in frames}
        # Each row of the matrix belongs to a box, so regroup the rows by key frame.
        per_frame = rows.values.split(rows.counts.tolist())
        scored = zip(rows.columns["key"], rows.columns["boxes"], per_frame, strict=True)
        found = {key: (boxes, scores.numpy()) for key, boxes, scores in scored if len(scores)}
        result = evaluate_ava(truth, found, self.actions, resamples=RESAMPLES)
        if self.csv is not None:
            write_result_csv(self.folder / self.csv, found, self.actions)
        self.details["per_class"] = {
            str(i): {
                "name": result.names[i],
                "AP": None if math.isnan(ap) else ap,
                "boxes": result.num_boxes[i],
            }
            for i, ap in result.per_class.items()
        }
        self.provenance = {
            "videos": len({video for video, _ in found}),
            "key_frames": result.key_frames,
            "boxes": result.detections,
        }
        self.text = result.table()
        self.intervals = {"mAP": result.interval and list(result.interval)}
        # If no scored action has ground truth, mAP is NaN, which JSON cannot store.
        return {"mAP": 0.0 if math.isnan(result.mAP) else result.mAP}
