"""Test and validation loops, which compute the rows of a dataset and then the metrics.

If a model has a grid of classifiers with joint scores, one classifier is selected first.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from sce_video.datasets.labelled import check_dataset_labels, check_same_classes, classes_of
from sce_video.datasets.video_list import video_of
from sce_video.evaluation.alterations import (
    split_alterations,
    split_networks,
    with_alterations,
    with_network,
)
from sce_video.evaluation.chance import MAJORITY, chance_levels
from sce_video.evaluation.feature_files import save_features
from sce_video.evaluation.functional.statistics import top_k_accuracy
from sce_video.evaluation.metrics.base import (
    RowMetric,
    check_comparable,
    compute_metrics,
    format_metrics,
    listed_metrics,
    metric_settings,
    needs_gallery,
    place_metrics,
    telling,
)
from sce_video.evaluation.provenance import describe_dataset, describe_evaluation
from sce_video.evaluation.results import Results, compute_results
from sce_video.evaluation.rows import (
    Grouping,
    Rows,
    build_eval_dataloader,
    check_finite,
    check_labelled,
    collect_rows,
    mean_of_clips,
    rows_without_values,
)
from sce_video.evaluation.scores import save_scores
from sce_video.inference.multi_view import row_function
from sce_video.registry import LOOPS, MODELS
from sce_video.utils.command import Progress
from sce_video.utils.distributed import run_on_main_rank, unwrap_model
from sce_video.utils.records import at
from sce_video.utils.storage import join

if TYPE_CHECKING:
    from sce_video.models.heads import GridPoint


def open_grid(model: Any) -> Sequence[GridPoint] | None:
    """Return the grid points of a model's classifiers; None if there is nothing to choose."""
    head: Any = getattr(unwrap_model(model), "cls_head", None)
    return None if getattr(head, "selected", 0) is not None else head.grid


@dataclass(frozen=True)
class ProbeSelection:
    """Accuracies of all probes in a grid on the selection set.

    Attributes:
        grid: Learning rate and weight decay of each probe.
        top1: Top-1 accuracy of each probe.
        paths: Videos in the selection set.
        failures: Number of these videos that could not be decoded.
        num_views: Number of views per video.
    """

    grid: Sequence[GridPoint]
    top1: Sequence[float]
    paths: Sequence[str]
    failures: int
    num_views: int

    @property
    def best(self) -> int:
        """Index of the best probe, the first one if several are equal."""
        return max(range(len(self.grid)), key=lambda index: self.top1[index])

    @property
    def sentence(self) -> str:
        """Sentence for the log about the selected probe."""
        return (
            f"best of {len(self.grid)} probes on {len(self.paths)} videos: "
            f"{self.grid[self.best].name}, top-1 {100 * self.top1[self.best]:.2f} (the worst "
            f"{100 * min(self.top1):.2f})"
        )

    def described(self) -> dict[str, object]:
        """Return the entries for a result's provenance."""
        pairs = zip(self.grid, self.top1, strict=True)
        points = [
            {**described_point(index, point), "top1": top1}
            for index, (point, top1) in enumerate(pairs)
        ]
        return {
            "selected": points[self.best],
            "rule": "highest top-1 on the selection set, the first of equal ones",
            "points": points,
            "videos": len(self.paths),
            "failures": self.failures,
        }


def described_point(index: int, point: GridPoint) -> dict[str, object]:
    """Return the entries that describe one probe of a grid in a result's provenance."""
    return {"index": index, "name": point.name, **point._asdict()}


def select_probe(rows: Rows, grid: Sequence[GridPoint]) -> ProbeSelection:
    """Compute each probe's top-1 accuracy from the mean scores (N, G * K) of G probes.

    Raises:
        ValueError: If a video has no label.
    """
    check_labelled(rows, "the selection of a probe", "the selection set")
    scores = rows.values.chunk(len(grid), dim=1)
    top1 = [top_k_accuracy(one, rows.labels, (1,))[1] for one in scores]
    return ProbeSelection(grid, top1, rows.paths, len(rows.failures), rows.num_views)


def different_steps(first: Any, second: Any) -> list[str]:
    """Return the steps in which the pipelines of two loader configs differ.

    Loaders that are already built are not compared.
    """
    pipelines = [at(loader, "dataset.pipeline") for loader in (first, second)]
    if None in pipelines:
        return []
    pairs = enumerate(itertools.zip_longest(*pipelines))
    return [f"step {i}: {one} and {other}" for i, (one, other) in pairs if one != other]


def in_both(queries: Any, gallery: Any) -> list[str]:
    """Return the queries whose video, or another segment of it, is in the gallery.

    Datasets without paths are not compared.
    """
    if not (hasattr(queries, "path") and hasattr(gallery, "path")):
        return []
    known = {video_of(str(gallery.path(i))) for i in range(len(gallery))}
    paths = (str(queries.path(i)) for i in range(len(queries)))
    return [path for path in paths if video_of(path) in known]


#: Model property that leads to each kind of rows.
_WHY = {
    "representation": "no classifier (cls_head)",
    "recognition": "a classifier (cls_head)",
    "detection": "a head for boxes (roi_head)",
}


@LOOPS.register_module()
class MultiViewTestLoop(BaseLoop):
    r"""Evaluate a model on a labelled set with the metrics of ``test_evaluator``.

    The model determines the row of a sample. It is the mean over views of the representations or,
    for a model with a ``cls_head``, of the class probabilities. For a model with a ``roi_head``, it
    contains the scores of the boxes. The dataset's pipeline determines the views. The samples are
    split over the ranks. ::

        test_dataloader = dict(batch_size=8, num_workers=2, dataset=dict(...))
        test_evaluator = [dict(type="KNN", k=20), dict(type="LinearProbe"), dict(type="Retrieval")]
        test_cfg = dict(
            type="MultiViewTestLoop",
            gallery_dataloader=dict(batch_size=8, num_workers=2, dataset=dict(...)),
            # or, leave one person out: group_pattern=r"person(\d+)",
        )

    Args:
        runner: The runner.
        dataloader: Loader, or its config, of the samples to evaluate (the queries of a gallery).
        evaluator: Metrics of this package, mmengine or mmaction2 (``AccMetric``).
        gallery_dataloader: Loader, or its config, of the labelled set that provides neighbours and
            trains the linear probe.
        group_pattern: Regular expression with one group, which is searched in the paths, to use
            instead of a gallery. Each fold of whole groups is the test set once, with all others as
            its gallery. ``dict(pattern=..., folds=5)`` chooses the number of folds, or "loo" for
            one fold per group. The default is "loo" below 20 groups, else 10
            (``functional.folds.divide``). For a classifier, which needs no gallery, the intervals
            draw whole groups.
        max_views: Number of views of a video per forward pass, which limits the device memory.
        precision: "float32", "bfloat16" or "float16".
        out: JSON file for results and provenance, relative to the work folder. The outcomes of the
            videos are written next to it for paired tests (``results_outcomes.npz``). None writes
            no files.
        dump: A .npz file for the scores or features of every video, relative to the work folder.
            Those of the gallery are written to ``NAME_bank.npz``. None writes no file.
        selection_dataloader: Loader of a labelled set that is neither trained on nor tested. It is
            used to select one probe of an attentive-probe grid by top-1 accuracy before the test.

    Raises:
        ValueError: If there is no metric, the model does not support one of the metrics, there is
            neither a gallery nor a group pattern although a metric needs one, or there are both,
            labels and classes do not match, a grid of probes has no selection set, or the precision
            is unknown.
    """

    _stage = "test"

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list,
        gallery_dataloader: DataLoader | dict | None = None,
        group_pattern: str | dict | None = None,
        max_views: int = 30,
        precision: str = "float32",
        out: str | None = "results.json",
        dump: str | None = None,
        selection_dataloader: DataLoader | dict | None = None,
    ) -> None:
        self.kind, self.function = row_function(runner.model, max_views, precision)
        super().__init__(runner, build_eval_dataloader(dataloader, runner.seed))
        if self.kind == "recognition":
            classes = unwrap_model(runner.model).cls_head.num_classes
            check_dataset_labels(self.dataloader.dataset, classes)
        self.metrics = self._build_metrics(evaluator)
        self.clips = any(getattr(metric, "needs_clips", False) for metric in self.metrics)
        if self.clips:
            self.function = row_function(runner.model, max_views, precision, clips=True)[1]
        needed = (name for m in self.metrics for name in getattr(m, "alterations", ()))
        self.alterations = tuple(dict.fromkeys(needed))
        if self.alterations:
            self.function = with_alterations(self.function, self.alterations)
        self.gallery_dataloader: DataLoader | None = None
        if needs_gallery(self.metrics):
            self._build_gallery(dataloader, gallery_dataloader, group_pattern)
        self.selection_dataloader = self._build_selection(selection_dataloader)
        self.selection: ProbeSelection | None = None
        self.grouping = Grouping.from_config(group_pattern)
        if needs_gallery(self.metrics):
            self._check_classes()
        self.precision = precision
        #: Network with random weights to evaluate in the same pass, and the rows that it produces
        self.random: nn.Module | None = None
        self.random_rows: list[Rows] = []
        #: Metrics of the last test to log, without those that are meaningless alone
        self.shown: dict[str, float] = {}
        self.out, self.dump = out, dump

    def compare_with_random(self, seed: int = 0) -> None:
        """Also evaluate the same network with random weights in the same pass over the videos.

        The model must return representations. The seed determines the random weights.
        """
        if self.kind != "representation":
            return
        # Keep the test's random numbers unchanged. The network is built on the CPU, so the GPU
        # generators need neither saving nor seeding.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            network: Any = MODELS.build(self.runner.cfg.model)
            network.init_weights()
        self.random = network.to(next(self.runner.model.parameters()).device).eval()
        self.function = with_network(self.function, self.random)

    def _build_metrics(self, evaluator: Evaluator | dict | list) -> list[BaseMetric]:
        if not evaluator:
            raise ValueError(
                f"{self._stage}_evaluator names no metric. Set it, for example to "
                "[dict(type='TopKAccuracy')]"
            )
        if not isinstance(evaluator, Evaluator):
            evaluator = self.runner.build_evaluator(evaluator)
        dataset: Any = self.dataloader.dataset
        metainfo = getattr(dataset, "metainfo", None) or {}
        for metric in evaluator.metrics:
            metric.dataset_meta = {**metainfo, "ann_file": getattr(dataset, "ann_file", None)}
            if isinstance(metric, RowMetric) and metric.kinds and self.kind not in metric.kinds:
                raise ValueError(
                    f"{type(metric).__name__} is a metric of {' and '.join(metric.kinds)}, but "
                    f"{type(unwrap_model(self.runner.model)).__name__} is evaluated by "
                    f"{self.kind}, because it has {_WHY[self.kind]}"
                )
        place_metrics(evaluator.metrics, self.runner.model, self.runner.work_dir)
        self.evaluator = evaluator
        return evaluator.metrics

    def _build_gallery(
        self, queries: Any, gallery: DataLoader | dict | None, group_pattern: Any
    ) -> None:
        if self._stage == "val":
            names = [type(metric).__name__ for metric in self.metrics if needs_gallery([metric])]
            raise ValueError(
                f"{', '.join(names)} of val_evaluator needs a gallery, which validation does not "
                "have. Use an OnlineEvaluationHook with a gallery"
            )
        if (gallery is None) == (group_pattern is None):
            raise ValueError(
                "these metrics need a gallery. Set either gallery_dataloader (a labelled set) or "
                "group_pattern (leave one group out) in test_cfg, but not both"
            )
        if gallery is None:
            return
        self.gallery_dataloader = build_eval_dataloader(gallery, self.runner.seed)
        check_same_classes(
            classes_of(self.dataloader.dataset), classes_of(self.gallery_dataloader.dataset)
        )
        differing = different_steps(queries, gallery)
        if differing:
            self.runner.logger.warning(
                "the pipelines of the test videos and the gallery differ, so their features may "
                f"not be comparable: {'; '.join(differing)}. Change "
                "test_cfg.gallery_dataloader.dataset.pipeline to match "
                "test_dataloader.dataset.pipeline"
            )
        if shared := in_both(self.dataloader.dataset, self.gallery_dataloader.dataset):
            self.runner.logger.warning(
                f"{len(shared)} of {len(self.dataloader.dataset)} test videos, or segments of the "
                f"same recordings, are also in the gallery, for example {shared[0]}. They find "
                "themselves, so all numbers are too high. Remove them from one of the two sets"
            )

    def _check_classes(self) -> None:
        """Raise ValueError for a class that could never be predicted, before videos are read."""
        rows, gallery = rows_without_values(self.dataloader.dataset), None
        if self.gallery_dataloader is not None:
            gallery = rows_without_values(self.gallery_dataloader.dataset)
        if rows is not None and self.grouping is not None:
            rows, _ = self.grouping.apply(rows, len(rows.labels))
        if rows is not None and (gallery is None) == (self.gallery_dataloader is None):
            check_comparable(rows, gallery)

    def _build_selection(self, selection: DataLoader | dict | None) -> DataLoader | None:
        """Return the loader of the selection set, or None if there is nothing to select."""
        if self._stage == "val" or open_grid(self.runner.model) is None:
            return None  # validation reports all probes, so none is selected
        if selection is None:
            raise ValueError(
                "cannot test a grid of probes without selecting one. Set "
                "test_cfg.selection_dataloader to a labelled set for the selection, or "
                "model.cls_head.selected to an index"
            )
        loader = build_eval_dataloader(selection, self.runner.seed)
        names = "the test has", "the selection set has"
        check_same_classes(classes_of(self.dataloader.dataset), classes_of(loader.dataset), names)
        check_dataset_labels(loader.dataset, unwrap_model(self.runner.model).cls_head.num_classes)
        return loader

    def run(self) -> dict[str, float]:
        """Compute the rows on all ranks and the metrics on rank 0; all ranks return them."""
        call_hook = self.runner.call_hook
        # Rows and gallery are None on all ranks except rank 0, which alone uses them.
        rows: Any
        gallery: Any = None
        call_hook(f"before_{self._stage}")
        call_hook(f"before_{self._stage}_epoch")
        # Select the probe before the test, because the test's rows come from the selected probe.
        if self.selection_dataloader is not None:
            head = unwrap_model(self.runner.model).cls_head
            head.select(None)  # returns the joint scores of all probes
            seen: Any = self._collect(self.selection_dataloader, "selection")
            self.selection = run_on_main_rank(lambda: select_probe(seen, head.grid))
            head.select(self.selection.best)
            self.runner.logger.info(self.selection.sentence)
        rows = self._collect(self.dataloader, self._stage)
        if self.gallery_dataloader is not None:
            # Collect the queries first. They are usually fewer than the gallery videos, so errors
            # in them are found sooner.
            gallery = self._collect(self.gallery_dataloader, "gallery")
        # Only rank 0 has the rows from all ranks, so it computes metrics and writes files and logs.
        metrics = run_on_main_rank(lambda: self._evaluate(rows, gallery))
        call_hook(f"after_{self._stage}_epoch", metrics=self.shown or metrics)
        call_hook(f"after_{self._stage}")
        return metrics

    def _collect(self, dataloader: DataLoader, name: str) -> Rows | None:
        """Return the rows of a dataset on rank 0, and None on the others."""
        # Training has its own progress bar, so validation writes to the log instead.
        write = self.runner.logger.info if self._stage == "val" else None
        data: Any = dataloader.dataset
        progress = None
        if is_main_process():
            unit = f"{getattr(data, 'kind', 'video')}s"
            progress = Progress(len(data), f"{name} set:", unit=unit, write=write, quiet=True)
        rows = collect_rows(self.runner.model, dataloader, self.function, progress=progress)
        if rows is None:
            return None
        rows = mean_of_clips(rows) if self.clips else rows
        parts: tuple[Rows, ...] = (rows,) if self.random is None else split_networks(rows)
        if self.alterations:
            parts = tuple(split_alterations(part, self.alterations) for part in parts)
        self.random_rows += parts[1:]
        return parts[0]

    def _evaluate(self, rows: Rows, gallery: Rows | None) -> dict[str, float]:
        # Skip this check in validation, because training has alarms and ends by itself if the loss
        # becomes NaN.
        for part in (rows, gallery):
            if part is not None:
                check_finite(part)
        provenance = self._describe(rows, gallery)
        if self.grouping is not None:
            count, compares = len(self.dataloader.dataset), needs_gallery(self.metrics)
            rows, described = self.grouping.apply(rows, count, with_folds=compares)
            provenance |= described
        if self.dump is not None:
            path = join(self.runner.work_dir, self.dump)
            if self.kind == "detection":
                raise ValueError(
                    "scores of boxes cannot be dumped as .npz. Set csv of AVAMeanAP instead"
                )
            save = save_scores if self.kind == "recognition" else save_features
            save(path, rows, provenance)
            if gallery is not None:
                save(path.removesuffix(".npz") + "_bank.npz", gallery, provenance)
        if needs_gallery(self.metrics):
            check_comparable(rows, gallery)
        if rows.num_views == 1:  # one-view metrics would equal the other metrics
            rows = replace(rows, central=None)
        results = compute_results(self.metrics, rows, gallery, provenance)
        baselines = self._baselines(results.metrics, rows, gallery)
        for name, found in baselines.items():
            results.details[name.replace(" ", "_")] = found
        if self.out is not None:
            results.write(join(self.runner.work_dir, self.out))
        self.shown = telling(results.metrics, results.protocol, at(baselines, "chance"))
        self.runner.logger.info("\n" + self._text(results, baselines))
        return results.metrics

    def _text(self, results: Results, baselines: dict[str, dict[str, float]]) -> str:
        """Return the results for the log."""
        listed, texts = listed_metrics(self.metrics, results.metrics)
        lines = [format_metrics(listed, results.protocol, results.intervals, baselines)]
        if (most := at(baselines, f"chance.{MAJORITY}")) is not None:
            lines.append(f"  always the most frequent class: {100 * most:.2f} %")
        return "\n".join([*lines, *results.drawn, *texts])

    def _baselines(
        self, metrics: dict[str, float], rows: Rows, gallery: Rows | None
    ) -> dict[str, dict[str, float]]:
        """Return the values of chance and random weights by metric; empty for boxes."""
        if self.kind == "detection":
            return {}
        if self.kind == "recognition":
            most = float(rows.labels.bincount().max()) / len(rows)
            return {"chance": {"top1": 1 / rows.values.shape[1], MAJORITY: most}}
        found = {}
        if needs_gallery(self.metrics) and (chance := chance_levels(metrics, rows, gallery)):
            found["chance"] = chance
        if self.random_rows:
            own, *others = self.random_rows
            own = replace(own, groups=rows.groups, folds=rows.folds, central=None)
            # Use copies, because the metrics must keep the tested network's outcomes and texts.
            numbers = compute_metrics(copy.deepcopy(self.metrics), own, next(iter(others), None))
            found["random weights"] = numbers
        return found

    def _describe(self, rows: Rows, gallery: Rows | None) -> dict[str, Any]:
        """Return the provenance, which contains everything that the metrics depend on."""
        dataset = self.dataloader.dataset
        described = describe_evaluation(self.runner, dataset, rows.num_views, self.kind)
        settings = metric_settings(self.metrics)
        if settings:
            described["protocols"] = settings
        described |= {"precision": self.precision, "videos": len(rows)}
        described["failures"] = len(rows.failures)
        if self.kind != "detection":
            name = {"recognition": "num_classes", "representation": "feature_size"}[self.kind]
            described[name] = rows.values.shape[1]
        if gallery is not None and self.gallery_dataloader is not None:
            bank = describe_dataset(self.gallery_dataloader.dataset, gallery.num_views)
            described |= {"bank_videos": len(gallery), "bank_failures": len(gallery.failures)}
            described["bank"] = bank
        head: Any = getattr(unwrap_model(self.runner.model), "cls_head", None)
        grid = getattr(head, "grid", ())
        if self.selection is not None and self.selection_dataloader is not None:
            tested = len(set(self.selection.paths).intersection(rows.paths))
            if tested:
                self.runner.logger.warning(
                    f"the probe was selected on {tested} of the {len(rows)} test videos, so the "
                    "result is too optimistic. Use other videos in test_cfg.selection_dataloader"
                )
            data: Any = self.selection_dataloader.dataset
            described["selection"] = {
                **self.selection.described(),
                "data": describe_dataset(data, self.selection.num_views),
                "tested_videos": tested,
            }
        elif len(grid) > 1 and head.selected is not None:
            named = described_point(head.selected, grid[head.selected])
            described["selection"] = {"selected": named, "rule": "given by the config"}
        return described


@LOOPS.register_module()
class MultiViewValLoop(MultiViewTestLoop):
    """Validate a model during training with the metrics of ``val_evaluator``.

    It works like :class:`MultiViewTestLoop`, usually with one view per video. Files that cannot be
    decoded are left out of the metrics. For a grid of attentive probes, the metrics belong to the
    probe that is best on these samples, and ``top1_<point>`` is added for each probe. ValueError is
    also raised if the class folders differ from those of the training set, or a metric needs a
    gallery.
    """

    _stage = "val"

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list,
        max_views: int = 30,
        precision: str = "float32",
    ) -> None:
        super().__init__(
            runner, dataloader, evaluator, max_views=max_views, precision=precision, out=None
        )
        train_loop = getattr(runner, "_train_loop", None)
        if isinstance(train_loop, BaseLoop):  # already built by Runner.train
            names = "the training has", "the validation has"
            trained = classes_of(train_loop.dataloader.dataset)
            check_same_classes(trained, classes_of(self.dataloader.dataset), names)

    def _evaluate(self, rows: Rows, gallery: Rows | None) -> dict[str, float]:
        if rows.failures:
            self.runner.logger.warning(
                f"{len(rows.failures)} of {len(self.dataloader.dataset)} validation videos could "
                f"not be decoded and are left out, the first is {': '.join(rows.failures[0])}"
            )
        # Validation uses only one view, so one-view metrics would equal the others.
        rows, grid = replace(rows, central=None), open_grid(self.runner.model)
        if grid is None:
            return compute_metrics(self.metrics, rows)
        selection = select_probe(rows, grid)
        self.runner.logger.info(selection.sentence)
        scores = rows.values.chunk(len(grid), dim=1)[selection.best]
        pairs = zip(grid, selection.top1, strict=True)
        accuracies = {f"top1_{point.name}": top1 for point, top1 in pairs}
        return compute_metrics(self.metrics, replace(rows, values=scores)) | accuracies
