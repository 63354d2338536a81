"""Test loop of a classifier: many views of a video, the mean of their softmax vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.runner import BaseLoop, Runner
from torch import Tensor
from torch.utils.data import DataLoader

from sce_video.datasets.labels import check_labels, check_same_classes
from sce_video.evaluation.dataloaders import build_eval_dataloader
from sce_video.evaluation.multi_view import central_view, rows_of_views
from sce_video.evaluation.provenance import describe_run
from sce_video.evaluation.rows import BatchFunction, VideoRows, collect_rows, video_paths
from sce_video.evaluation.scores import ScoreSet, recognition_metrics, save_scores
from sce_video.registry import LOOPS
from sce_video.utils.atomic_file import write_json
from sce_video.utils.distributed import unwrap_model

_PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def class_scores(max_views: int, dtype: torch.dtype = torch.float32) -> BatchFunction:
    """The function of a batch that classifies every video.

    A row is twice as wide as there are classes: the mean of the softmax vectors of all views (not
    the softmax of the mean logits), then the softmax vector of the central view alone.

    Args:
        max_views: Views of a video that go through the network at a time.
        dtype: Below float32 the network runs in mixed precision; the softmax never does.
    """

    def function(model: Any, batch: dict[str, Any]) -> tuple[Tensor, int]:
        def probabilities(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs=view.unsqueeze(1), mode="tensor", stage="head")
            return logits.float().softmax(dim=1)

        videos = rows_of_views(model, batch, probabilities, max_views)
        central = [central_view(video) for video in batch.get("videos", ())]
        central = central or [len(videos[0]) // 2] * len(videos)
        rows = [torch.cat([v.mean(0), v[one]]) for v, one in zip(videos, central, strict=True)]
        return torch.stack(rows).cpu(), max(map(len, videos))

    return function


@LOOPS.register_module()
class RecognitionTestLoop(BaseLoop):
    """Classify a labelled set and report it with one view and with all views side by side.

    ::

        test_dataloader = dict(batch_size=4, num_workers=4, dataset=dict(...))
        test_evaluator = dict()
        test_cfg = dict(type="RecognitionTestLoop", max_views=30)

    The pipeline of the data set decides on the views: 10 clips x 3 crops by ``UniformClips`` and
    ``PackVideo``. ``test_evaluator`` must be empty, as for the
    :class:`~sce_video.evaluation.representation_loop.RepresentationTestLoop`.

    Args:
        runner: The runner; its model is a recogniser of mmaction2 with a ``cls_head``.
        dataloader: What is classified; every video is counted once.
        evaluator: Empty.
        max_views: Views of a video at a time; bounds the device's memory.
        precision: "float32", "bfloat16" or "float16".
        out: JSON file of results and protocol, relative to the work dir; None writes none.
        dump: A .npz file of the scores of every video, relative to the work dir; None for none.

    Raises:
        ValueError: no classifier, a label it has no output for, an evaluator that is not empty, an
            unknown precision.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        max_views: int = 30,
        precision: str = "float32",
        out: str | None = "results.json",
        dump: str | None = None,
    ) -> None:
        if evaluator:
            raise ValueError(
                "RecognitionTestLoop computes its own figures: set test_evaluator = dict()"
            )
        if precision not in _PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(_PRECISIONS)}: {precision!r}")
        super().__init__(runner, _labelled_dataloader(runner, dataloader))
        self.max_views = max_views
        self.precision = precision
        self.out = out
        self.dump = dump

    def run(self) -> dict[str, float]:
        """Classify, report on the first process; all processes get the figures."""
        self.runner.call_hook("before_test")
        self.runner.call_hook("before_test_epoch")
        function = class_scores(self.max_views, _PRECISIONS[self.precision])
        rows = collect_rows(
            self.runner.model, self.dataloader, function, log=self.runner.logger.info
        )
        answer: list[Any] = [None]
        if is_main_process():
            answer[0] = self._report(rows)
        broadcast_object_list(answer, src=0)
        if isinstance(answer[0], Exception):
            raise answer[0]
        metrics = answer[0]
        self.runner.call_hook("after_test_epoch", metrics=metrics)
        self.runner.call_hook("after_test")
        return metrics

    def _report(self, rows: VideoRows) -> dict[str, float] | Exception:
        """On the first process; an error is returned, so that the others hear of it."""
        try:
            dataset = self.dataloader.dataset
            scores = score_set(rows, dataset)
            metrics = recognition_metrics(scores)
            protocol = describe_run(self.runner, dataset, rows.num_views, "recognition")
            protocol["precision"] = self.precision
            protocol["num_classes"] = scores.scores.shape[1]
            protocol["videos"] = len(rows.indices)
            protocol["failures"] = len(rows.failures)
            folder = Path(self.runner.work_dir)
            if self.dump is not None:
                save_scores(folder / self.dump, scores, protocol)
            if self.out is not None:
                failures = [list(failure) for failure in rows.failures]
                content = {"metrics": metrics, "protocol": protocol, "failures": failures}
                write_json(folder / self.out, content)
            self.runner.logger.info("\n" + format_views(metrics, protocol))
        except (ValueError, RuntimeError, OSError) as error:
            return error
        return metrics


@LOOPS.register_module()
class RecognitionValLoop(BaseLoop):
    """Watch a training: the accuracy on a labelled set, files that cannot be decoded counted.

    The same code as the test's, usually with one view of a video. The training is not disturbed:
    the mode of every module is afterwards what it was.

    Args:
        runner: The runner; its model is a recogniser of mmaction2 with a ``cls_head``.
        dataloader: What is classified.
        evaluator: Empty: ``val_evaluator = dict()``.
        max_views: Views of a video at a time.

    Raises:
        ValueError: as :class:`RecognitionTestLoop`.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list | None = None,
        max_views: int = 30,
    ) -> None:
        if evaluator:
            raise ValueError(
                "RecognitionValLoop computes its own figures: set val_evaluator = dict()"
            )
        super().__init__(runner, _labelled_dataloader(runner, dataloader))
        train_loop = getattr(runner, "_train_loop", None)
        if isinstance(train_loop, BaseLoop):  # not where a loop is tried on its own
            check_same_classes(
                train_loop.dataloader.dataset,
                self.dataloader.dataset,
                ("the training has", "the validation has"),
            )
        self.max_views = max_views

    def run(self) -> dict[str, float]:
        """Classify and log ``top1``, ``top5`` and ``mean_class_accuracy``."""
        self.runner.call_hook("before_val")
        self.runner.call_hook("before_val_epoch")
        function = class_scores(self.max_views)
        rows = collect_rows(self.runner.model, self.dataloader, function)
        if rows.failures:
            self.runner.logger.warning(
                f"{len(rows.failures)} of {len(self.dataloader.dataset)} validation videos could "
                f"not be decoded and do not count, the first is {': '.join(rows.failures[0])}"
            )
        metrics = recognition_metrics(score_set(rows, self.dataloader.dataset))
        metrics = {name: v for name, v in metrics.items() if not name.startswith("one_view")}
        self.runner.call_hook("after_val_epoch", metrics=metrics)
        self.runner.call_hook("after_val")
        return metrics


def _labelled_dataloader(runner: Runner, cfg: DataLoader | dict) -> DataLoader:
    """The loader, once it is clear that the model can classify what it gives."""
    model: Any = unwrap_model(runner.model)
    if not hasattr(model, "cls_head"):
        raise ValueError(
            f"{type(model).__name__} has no classifier (cls_head) to test: representations "
            "are judged by test_cfg = dict(type='RepresentationTestLoop', ...)"
        )
    dataloader = build_eval_dataloader(cfg, runner.seed)
    check_labels(dataloader.dataset, model.cls_head.num_classes)
    return dataloader


def score_set(rows: VideoRows, dataset: Any) -> ScoreSet:
    """Rows of :func:`class_scores` as scores, with the paths of their videos."""
    mean, one = rows.values.chunk(2, dim=1)
    return ScoreSet(
        scores=mean,
        one_view_scores=one,
        labels=torch.tensor(rows.labels, dtype=torch.long),
        indices=torch.tensor(rows.indices, dtype=torch.long),
        paths=video_paths(dataset, rows.indices),
        failures=rows.failures,
    )


def format_views(metrics: dict[str, float], protocol: dict[str, Any]) -> str:
    """The figures in percent, one view beside all views."""
    views = protocol["views"]
    clips = protocol.get("clips", views)
    many = f"{clips} x {protocol.get('crops', 1)}"
    checkpoint = protocol["checkpoint"]
    lines = [
        f"{checkpoint.get('path') or checkpoint['source']}: {protocol['videos']} videos, "
        f"{protocol['failures']} could not be decoded",
        f"  {'':<22}{'1 view':>10}{many + ' views':>16}",
    ]
    for name, title in (
        ("top1", "top-1"),
        ("top5", "top-5"),
        ("mean_class_accuracy", "mean class accuracy"),
    ):
        one, all_views = metrics[f"one_view_{name}"], metrics[name]
        lines.append(f"  {title:<22}{100 * one:>8.2f} %{100 * all_views:>14.2f} %")
    return "\n".join(lines)
