"""Rows from which metrics are computed, one per sample, collected from a dataset on all ranks.

A loader yields batches (:func:`build_eval_dataloader`), and a row function (``multi_view.py``)
computes the rows of a batch. They are joined as they arrive from ranks and processes
(:class:`PartialRows`). :func:`complete` sorts them in dataset order, and checks that all exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_world_size
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets.labelled import read_groups
from sce_video.datasets.loading.failures import batches_without_crashes
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.inference.multi_view import PartialRows, RowFunction, rows_of_batch
from sce_video.utils.command import Progress
from sce_video.utils.distributed import (
    all_or_none,
    objects_on_main_rank,
    rows_on_main_rank,
    run_on_main_rank,
    unwrap_model,
)
from sce_video.utils.records import read_record


@dataclass(frozen=True)
class Rows:
    """Values, labels and paths of N samples, in dataset order.

    Attributes:
        values: (N, C) float32 features or class probabilities on the CPU, averaged over the views
            of a video. With ``counts``, (sum of counts, C), for example a row per box.
        labels: (N,) int64; -1 means no label.
        indices: (N,) int64 dataset indices, ascending and unique after collection.
        paths: N paths.
        failures: Files that could not be decoded, with the error.
        num_views: Number of views (clips x crops) per video.
        source: File from which the rows were read, for messages; empty if computed.
        central: Values of the central view only, in the shape of ``values``; None if not kept.
        counts: (N,) int64 number of rows in ``values`` per sample; None if each has one.
        groups: (N,) int64. Samples in one group are not compared with each other, and confidence
            intervals draw whole groups. None for no groups.
        folds: (N,) int64. Samples in one fold, which has whole groups, are tested together; None
            if each group is a fold.
        columns: Other data of the samples from the dataset: name to N entries.
        altered: Values of the same samples by alteration of their clips, in the shape of
            ``values`` (see :data:`~sce_video.evaluation.alterations.ALTERATIONS`).
        clips: Rows of the samples' single clips, whose ``groups`` are the numbers of their samples;
            None if not kept.
    """

    values: Tensor
    labels: Tensor
    indices: Tensor
    paths: list[str]
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 1
    source: str = ""
    central: Tensor | None = None
    counts: Tensor | None = None
    groups: Tensor | None = None
    folds: Tensor | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    altered: dict[str, Tensor] = field(default_factory=dict)
    clips: Rows | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if len(shape) != 2:
            raise ValueError(f"{self.name} must be (N, C), got shape {shape}")
        count = len(self.values) if self.counts is None else len(self.counts)
        names = ("labels", "indices", "paths", "groups", "folds")
        columns = {name: getattr(self, name) for name in names}
        wrong = [
            f"{len(one)} {name}"
            for name, one in (columns | self.columns).items()
            if one is not None and len(one) != count
        ]
        if wrong:
            raise ValueError(f"{self.name}: {count} rows do not match {', '.join(wrong)}")
        others = {f"{name} clips": values for name, values in self.altered.items()}
        for name, values in {"the central view": self.central, **others}.items():
            if values is not None and tuple(values.shape) != shape:
                raise ValueError(
                    f"{self.name}: values of {name} with shape {tuple(values.shape)} do not belong "
                    f"to the same samples as values with shape {shape}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def name(self) -> str:
        """Name of the rows in messages: their file, if they have one."""
        return self.source or "the rows"

    @property
    def features(self) -> Tensor:
        """Same as ``values``, for rows of features. ``scores`` is for class probabilities."""
        return self.values

    scores = features

    @property
    def tested_together(self) -> Tensor | None:
        """Folds, or groups if each group is a fold; None if there are neither."""
        return self.groups if self.folds is None else self.folds

    @property
    def kept_together(self) -> Tensor | None:
        """Groups, or folds if only they are known; a validation split contains whole ones."""
        return self.folds if self.groups is None else self.groups

    @property
    def num_classes(self) -> int:
        """C, for rows of class probabilities."""
        return self.values.shape[1]

    def refuse(self, wrong: Tensor, why: str) -> None:
        """Raise ValueError naming the first sample of the mask ``wrong`` (N,), if there is one."""
        if bool(wrong.any()):
            row = int(torch.nonzero(wrong)[0])
            raise ValueError(
                f"{self.name}: {why}: {int(wrong.sum())} of {len(self)} videos, the first is "
                f"row {row}, {self.paths[row]} (label {int(self.labels[row])})"
            )

    def subset(self, keep: Tensor) -> Rows:
        """Select samples by ``keep``, a bool mask (N,) or indices."""
        if self.counts is not None:
            raise ValueError(
                "subset needs one row per sample, but these samples have several (counts)"
            )
        # Indexing a range converts a mask to indices and leaves indices unchanged.
        selected = torch.arange(len(self))[keep]
        chosen = selected.tolist()
        names = ("values", "labels", "indices", "central", "groups", "folds")
        known = ((name, getattr(self, name)) for name in names)
        return replace(
            self,
            **{name: whole[selected] for name, whole in known if whole is not None},
            paths=[self.paths[i] for i in chosen],
            columns={name: [column[i] for i in chosen] for name, column in self.columns.items()},
            altered={name: values[selected] for name, values in self.altered.items()},
            clips=None,
        )


def mean_of_clips(rows: Rows) -> Rows:
    """Average the ``counts`` clip rows of each of N videos, and keep the clip rows."""
    if rows.counts is None:
        raise ValueError(f"{rows.name} are not rows of clips")
    parts = rows.values.split(rows.counts.tolist())
    video = torch.arange(len(rows)).repeat_interleave(rows.counts)
    clips = Rows(
        values=rows.values,
        labels=rows.labels[video],
        indices=rows.indices[video],
        paths=[rows.paths[i] for i in video.tolist()],
        groups=video,
    )
    means = torch.stack([part.mean(dim=0) for part in parts])
    return replace(rows, values=means, counts=None, clips=clips)


def check_labelled(rows: Rows, purpose: str, name: str = "") -> None:
    """Raise ValueError unless there are videos and all of them have labels.

    The message names the file, or ``name`` if there is none, and the first video. ``purpose`` is
    the evaluation that needs labels ("retrieval").
    """
    name = rows.source or name or "the feature set"
    if len(rows) == 0:
        raise ValueError(f"{name} contains no videos")
    missing = torch.nonzero(rows.labels < 0).flatten().tolist()
    if len(missing) == len(rows):
        raise ValueError(f"{name} has no 'labels' (or only -1), but {purpose} needs them")
    if missing:
        raise ValueError(
            f"{name}: {purpose} needs labels, but {len(missing)} of {len(rows)} videos have none "
            f"(-1), the first is {rows.paths[missing[0]]}"
        )


def check_finite(rows: Rows) -> None:
    """Raise ValueError that names the first video with NaN or infinity in the network's output."""
    for values in (rows.values, rows.central, *rows.altered.values()):
        if values is None:
            continue
        wrong = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(wrong):
            counts = torch.ones(len(rows), dtype=torch.long) if rows.counts is None else rows.counts
            sample = int(torch.searchsorted(counts.cumsum(0), wrong[0], right=True))
            raise ValueError(
                f"the output for {rows.paths[sample]} is not finite ({len(wrong)} of {len(values)} "
                "rows), because the network has diverged. Use an earlier checkpoint"
            )


def check_same_size(queries: Rows, gallery: Rows) -> None:
    """Raise ValueError naming both files unless the features have the same size."""
    sizes = queries.values.shape[1], gallery.values.shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"features have different sizes: {sizes[0]} in {queries.source or 'the queries'}, "
            f"{sizes[1]} in {gallery.source or 'the gallery'}. Compute both with the same network"
        )


@dataclass(frozen=True)
class Grouping:
    """Division of samples into groups, and of groups into folds that are tested together.

    Attributes:
        pattern: Regular expression with one group, which is searched in the paths.
        group_file: File with the groups or folds of all samples, instead of a pattern.
        folds: Number of folds, or "loo" for one per group; None for the rule of
            :func:`~sce_video.evaluation.functional.folds.divide`.
    """

    pattern: str | None = None
    group_file: str | None = None
    folds: int | str | None = None

    @classmethod
    def from_config(cls, given: str | dict | None) -> Grouping | None:
        """Read ``group_pattern`` from a test's config; None if samples are not divided.

        Raises:
            ValueError: If it has unknown keys or values.
        """
        named = dict(given) if isinstance(given, dict) else {"pattern": given}
        grouping = read_record(cls, named, "group_pattern")
        return None if grouping.pattern is None and grouping.group_file is None else grouping

    def apply(
        self, rows: Rows, count: int, with_folds: bool = True
    ) -> tuple[Rows, dict[str, object]]:
        """Return rows with their groups and folds, and the entries for the provenance.

        Args:
            rows: Rows to divide.
            count: Number of samples in the dataset, some of which may be unreadable.
            with_folds: Whether the groups are divided into folds. A classifier is tested without
                folds, and its groups only determine the intervals.
        """
        given: Tensor | None = None
        groups: Tensor | None
        if self.group_file is None:
            assert self.pattern is not None
            groups, names = group_ids(rows.paths, self.pattern)
            source = self.pattern
        else:
            # The file has a line for every sample of the dataset, including unreadable ones.
            numbered = [
                np.unique(np.array(column)[rows.indices], return_inverse=True) if column else None
                for column in read_groups(self.group_file, count)
            ]
            groups, given = (None if n is None else torch.from_numpy(n[1]) for n in numbered)
            names = next(n[0].tolist() for n in numbered if n is not None)
            source = f"columns of the list, sha256 {file_sha256(self.group_file)[:12]}"
        if not with_folds:
            return replace(rows, groups=groups), {"interval_groups": source}
        folds = divide(rows.labels, groups, given=given, folds=self.folds)
        rows = replace(rows, groups=folds.groups, folds=folds.numbers)
        return rows, {"group_pattern": source, "groups": names, **folds.described()}


def rows_without_values(dataset: Any) -> Rows | None:
    """Return the labels and paths of a dataset as rows of no columns; None if it has none."""
    if not (hasattr(dataset, "labels") and hasattr(dataset, "path")):
        return None
    labels = torch.as_tensor(np.asarray(dataset.labels), dtype=torch.int64)
    paths = [str(dataset.path(i)) for i in range(len(labels))]
    return Rows(torch.zeros(len(labels), 0), labels, torch.arange(len(labels)), paths)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Any]:
    """Yield the unwrapped module in evaluation mode without gradients.

    In a DistributedDataParallel wrapper, an evaluation forward pass does not communicate with other
    ranks, and ranks may have different numbers of batches.
    """
    # Save the mode of each module, because a frozen layer may be in evaluation mode during
    # training.
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield unwrap_model(model)
    finally:
        for module, training in modes:
            module.training = training


def collect_rows(
    model: nn.Module,
    dataloader: DataLoader,
    function: RowFunction,
    progress: Progress | None = None,
) -> Rows | None:
    """Compute the rows of a whole dataset in evaluation mode, on all ranks.

    Each rank processes the samples that its sampler yields. Every sample counts once, so samples
    that a padding sampler repeats are dropped.

    Args:
        model: Bare or wrapped model. Its module modes are restored.
        dataloader: Loader of batches that :func:`sce_video.collate_views` made.
        function: Function that computes the rows of a batch.
        progress: Progress over the samples of all ranks; None for none.

    Returns:
        On rank 0, all rows in dataset order. None on the other ranks, which send their rows to rank
        0 and keep none.

    Raises:
        RuntimeError: If a rank failed (raised on all ranks), or samples are missing although no
            failure was reported, for example because the sampler or loader drops the last ones.
    """
    if len(dataloader.dataset) == 0:  # type: ignore[arg-type]
        raise ValueError("the dataset to evaluate is empty")
    own, ranks = PartialRows(), get_world_size()
    # If one rank fails, all ranks must fail, because the others would wait for its rows forever.
    with all_or_none("evaluating the dataset"), evaluating(model) as inner:
        for batch in batches_without_crashes(dataloader):
            part = rows_of_batch(inner, batch, function)
            own.add(part)
            if progress is not None:
                # Assume that all ranks have processed as many samples as this one.
                count = ranks * (len(part.indices) + len(part.failures))
                left = progress.total - progress.count  # a padding sampler may repeat samples
                progress.advance(ranks * len(part.failures), min(count, left))
        if progress is not None:
            progress.finish()
    joined = _joined(own) if ranks > 1 else own
    # Append the rows to a list instead of returning them, because results are sent to all ranks.
    rows: list[Rows] = []
    run_on_main_rank(lambda: rows.append(complete(joined, dataloader.dataset)))
    return rows[0] if rows else None


def _joined(own: PartialRows) -> PartialRows:
    """Return the rows of all ranks on rank 0, and none on the others."""
    joined = PartialRows()
    # Pickle and send the small objects first, then send the values as tensors.
    for part in objects_on_main_rank(replace(own, values=[], central=[])) or ():
        joined.add(part)
    values, central = (rows_on_main_rank(parts) for parts in (own.values, own.central))
    joined.values += [] if values is None else [values]
    joined.central += [] if central is None or not len(central) else [central]
    return joined


def complete(partial: PartialRows, dataset: Any) -> Rows:
    """Sort rows by index without repeated samples, and check that no sample is missing.

    If an index is repeated, its first row is kept. Without ``values``, the rows have size 0. The
    dataset provides its length and, if it has them, its ``path`` and ``row_columns``.

    Raises:
        RuntimeError: If a sample has no row and was not reported as unreadable.
    """
    # A padding sampler repeats samples, so that all ranks have the same number. Keep only the first
    # row of a sample.
    first: dict[int, int] = {}
    for slot, index in enumerate(partial.indices):
        first.setdefault(index, slot)
    indices = sorted(first)
    failures = list(dict.fromkeys(partial.failures))
    missing = set(range(len(dataset))) - set(indices)
    unreadable = {path for path, _ in failures}
    lost = len(missing) - len(unreadable)
    if hasattr(dataset, "path"):  # an unreadable file may contain several samples
        lost = sum(str(dataset.path(i)) not in unreadable for i in missing)
    if lost > 0 or not indices:
        raise RuntimeError(
            f"{len(indices)} of {len(dataset)} videos were evaluated and {len(failures)} reported "
            "as unreadable, so the rest is missing. Check drop_last and the sampler"
        )
    order = torch.tensor([first[i] for i in indices], dtype=torch.long)
    counts, slots = None, order
    if partial.counts:
        # The rows of sample i are those from ends[i] - counts[i] to ends[i] - 1.
        ends = list(itertools.accumulate(partial.counts))
        ranges = [range(ends[i] - partial.counts[i], ends[i]) for i in order.tolist()]
        counts = torch.tensor([len(one) for one in ranges], dtype=torch.long)
        slots = torch.tensor([row for one in ranges for row in one], dtype=torch.long)
    nothing = torch.empty(len(partial.indices), 0)
    return Rows(
        values=_in_order(partial.values or [nothing], slots),
        labels=torch.tensor(partial.labels, dtype=torch.long)[order],
        indices=torch.tensor(indices, dtype=torch.long),
        paths=sample_paths(dataset, indices),
        failures=failures,
        num_views=partial.num_views,
        central=_in_order(partial.central, slots) if partial.central else None,
        counts=counts,
        columns=dataset.row_columns(indices) if hasattr(dataset, "row_columns") else {},
    )


def _in_order(parts: list[Tensor], slots: Tensor) -> Tensor:
    """Return some rows of joined matrices, and avoid a second copy of all rows."""
    rows = parts[0] if len(parts) == 1 else torch.cat(parts)
    return rows if torch.equal(slots, torch.arange(len(rows))) else rows[slots]


def sample_paths(dataset: Any, indices: list[int]) -> list[str]:
    """Return ``dataset.path(i)`` of the samples, or ``#i`` if the dataset has no such method."""
    return [str(dataset.path(i)) if hasattr(dataset, "path") else f"#{i}" for i in indices]


def build_eval_dataloader(cfg: dict | DataLoader, seed: int | None = None) -> DataLoader:
    """Build a loader that yields every video once, in order, split over all ranks.

    Missing entries in the config have these defaults: the sampler ``dict(type="DefaultSampler",
    shuffle=False, round_up=False)``, which repeats no sample and may leave a rank without videos,
    the collate function ``sce_video.collate_views``, and ``on_error="raise"`` for a
    :class:`~sce_video.datasets.VideoDataset`. ValueError is raised if the dataset would replace
    unreadable files by other videos. A built loader is returned unchanged.
    """
    if isinstance(cfg, DataLoader):
        return cfg
    from sce_video.engine.runner import VideoRunner  # a search needs no runner

    sampler = {"type": "DefaultSampler", "shuffle": False, "round_up": False}
    cfg = {"sampler": sampler, "collate_fn": {"type": "sce_video.collate_views"}, **cfg}
    loader = VideoRunner.build_dataloader(cfg, seed=seed)
    dataset: Any = loader.dataset
    # "replace" is a dataset's default, which is meant for training.
    if getattr(dataset, "on_error", None) == "replace":
        if not isinstance(cfg["dataset"], dict) or "on_error" in cfg["dataset"]:
            raise ValueError(
                "on_error='replace' would evaluate another video instead of an unreadable file. "
                "Set on_error='raise' or 'skip' in the dataset"
            )
        dataset.on_error = "raise"
    return loader
