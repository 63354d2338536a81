"""The rows that metrics are computed from, one per sample: from a data set, on all ranks.

A loader gives batches (:func:`build_eval_dataloader`), a row function (``multi_view.py``) the rows
of a batch; these are joined as they come from ranks and processes (:class:`PartialRows`), and
:func:`complete` puts them into the order of the data set and checks that none is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather, get_world_size
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets.labelled import read_groups
from sce_video.datasets.loading.worker_crashes import batches_without_crashes
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.inference.multi_view import PartialRows, RowFunction, rows_of_batch
from sce_video.utils.command import Progress
from sce_video.utils.distributed import all_or_none, gather_objects, unwrap_model


@dataclass(frozen=True)
class Rows:
    """Values, labels and paths of N samples, in the order of the data set.

    Attributes:
        values: (N, C) float32 on the CPU: features, or class probabilities, averaged over the views
            of a video. With ``counts``: (sum of counts, C), for example a row for each box.
        labels: (N,) int64; -1 means no label.
        indices: (N,) int64, indices in the data set; ascending and unique after collection.
        paths: N paths.
        failures: Files that could not be decoded, with the error.
        num_views: Views (clips x crops) of a video.
        source: File that the rows were read from, for messages; empty if computed.
        central: Same shape as ``values``, for the central view alone; None if not kept.
        counts: (N,) int64, number of rows of ``values`` of each sample; None where each has one.
        groups: (N,) int64; samples of one group are not compared with each other. None: no groups.
        folds: (N,) int64; samples of one fold, which has whole groups, are tested together. None:
            each group is a fold.
        columns: Further data of the samples from the data set: name to N entries.
        altered: Values of the same samples by alteration of their clips, see
            :data:`~sce_video.evaluation.alterations.ALTERATIONS`; of the shape of ``values``.
        clips: Rows of the single clips of the samples, whose ``groups`` are the numbers of their
            samples; None if not kept.
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
                    f"{self.name}: values of {name} of shape {tuple(values.shape)} are not "
                    f"of the same samples as those of shape {shape}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def name(self) -> str:
        """The name of the rows in messages: their file, if they have one."""
        return self.source or "the rows"

    @property
    def features(self) -> Tensor:
        """``values``, for rows of features; ``scores`` for those of class probabilities."""
        return self.values

    scores = features

    @property
    def tested_together(self) -> Tensor | None:
        """``folds``, or ``groups`` if each group is a fold; None if there are neither."""
        return self.groups if self.folds is None else self.folds

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
        """The samples selected by ``keep``: a bool mask (N,) or indices."""
        if self.counts is not None:
            raise ValueError("subset needs one row per sample, these have several (counts)")
        # A mask and indices select alike from a range.
        selected = torch.arange(len(self))[keep]
        chosen = selected.tolist()
        tensors: dict[str, Any] = {}
        for name in ("values", "labels", "indices", "central", "groups", "folds"):
            whole = getattr(self, name)
            tensors[name] = None if whole is None else whole[selected]
        return replace(
            self,
            paths=[self.paths[i] for i in chosen],
            columns={name: [column[i] for i in chosen] for name, column in self.columns.items()},
            altered={name: values[selected] for name, values in self.altered.items()},
            clips=None,
            **tensors,
        )


def mean_of_clips(rows: Rows) -> Rows:
    """Rows of N videos, each the mean of its ``counts`` rows of clips, which are kept."""
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
    """Raise ValueError naming file and video unless there are videos and all have a label.

    ``purpose`` names what needs the labels ("retrieval"), ``name`` rows that are of no file.
    """
    name = rows.source or name or "the feature set"
    if len(rows) == 0:
        raise ValueError(f"{name} holds no videos")
    missing = torch.nonzero(rows.labels < 0).flatten().tolist()
    if len(missing) == len(rows):
        raise ValueError(f"{name} has no 'labels' (or only -1), {purpose} needs them")
    if missing:
        raise ValueError(
            f"{name}: {purpose} needs labels, {len(missing)} of {len(rows)} videos have none "
            f"(-1), the first is {rows.paths[missing[0]]}"
        )


def check_finite(rows: Rows) -> None:
    """Raise ValueError naming the first video for which the network has given NaN or infinity."""
    for values in (rows.values, rows.central, *rows.altered.values()):
        if values is None:
            continue
        wrong = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
        if len(wrong):
            counts = torch.ones(len(rows), dtype=torch.long) if rows.counts is None else rows.counts
            sample = int(torch.searchsorted(counts.cumsum(0), wrong[0], right=True))
            raise ValueError(
                f"the output for {rows.paths[sample]} is not finite ({len(wrong)} of {len(values)} "
                "rows): the network has diverged. Take a checkpoint from before that"
            )


def check_same_size(queries: Rows, gallery: Rows) -> None:
    """Raise ValueError naming both files unless the features have the same size."""
    sizes = queries.values.shape[1], gallery.values.shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"features of different sizes: {sizes[0]} in {queries.source or 'the queries'}, "
            f"{sizes[1]} in {gallery.source or 'the gallery'}; they must come from the same network"
        )


@dataclass(frozen=True)
class Grouping:
    """Division of samples into groups, and of groups into folds that are tested together.

    Attributes:
        pattern: A regular expression with one group, searched in the paths.
        file: File with the groups or folds of all samples; instead of a pattern.
        folds: Number of folds, or "loo" for one of each group; None for the rule of
            :func:`~sce_video.evaluation.functional.folds.divide`.
    """

    pattern: str | None = None
    file: str | None = None
    folds: int | str | None = None

    @classmethod
    def from_config(cls, given: str | dict[str, Any] | None) -> Grouping | None:
        """Read ``group_pattern`` of a test's config; None if nothing is divided.

        Raises:
            ValueError: If it has other keys.
        """
        named = given if isinstance(given, dict) else {"pattern": given}
        if unknown := sorted(named.keys() - {"pattern", "file", "folds"}):
            known = "pattern or file, and folds"
            raise ValueError(f"group_pattern has {known}, got {', '.join(unknown)} too")
        grouping = cls(**named)
        return None if grouping.pattern is None and grouping.file is None else grouping

    def apply(self, rows: Rows, count: int) -> tuple[Rows, dict[str, Any]]:
        """Return rows with their groups and folds, and the entries of the provenance.

        Args:
            rows: The rows.
            count: Number of samples of the data set, of which some may be unreadable.
        """
        if self.file is None:
            assert self.pattern is not None
            numbers, names = group_ids(rows.paths, self.pattern)
            folds, source = divide(rows.labels, numbers, folds=self.folds), self.pattern
        else:
            # The file has a line for every sample of the data set, also for those without a row.
            numbered = [
                np.unique(np.array(column)[rows.indices], return_inverse=True) if column else None
                for column in read_groups(self.file, count)
            ]
            groups, given = (None if n is None else torch.from_numpy(n[1]) for n in numbered)
            names = next(n[0].tolist() for n in numbered if n is not None)
            source = f"columns of the list, sha256 {file_sha256(self.file)[:12]}"
            folds = divide(rows.labels, groups, given=given, folds=self.folds)
        rows = replace(rows, groups=folds.groups, folds=folds.numbers)
        return rows, {"group_pattern": source, "groups": names, **folds.described()}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[Any]:
    """Context in eval mode without gradients; yields the module inside a wrapper.

    Inside a DistributedDataParallel wrapper an evaluation forward communicates with no other rank,
    and ranks may differ in their number of batches.
    """
    # Module by module: a frozen layer may be in eval mode while the rest is in training mode.
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
) -> Rows:
    """The rows of a whole data set, in its order, computed in eval mode.

    Each rank processes the samples that its sampler gives it; every rank returns the rows of the
    whole data set. Every sample counts once: samples that a padding sampler repeats are dropped.
    The model is bare or wrapped, and keeps its modes; the loader gives batches as made by
    :func:`sce_video.collate_views`; ``progress`` is over the samples of all ranks.

    Raises:
        RuntimeError: a rank failed (raised on all ranks), or samples are missing although no
            failure was reported, for example because the sampler or loader drops the last ones.
    """
    if len(dataloader.dataset) == 0:  # type: ignore[arg-type]
        raise ValueError("the data set to evaluate is empty")
    own, ranks = PartialRows(), get_world_size()
    # If one rank fails, all do: the others would wait for its rows.
    with all_or_none("evaluating the data set"), evaluating(model) as inner:
        for batch in batches_without_crashes(dataloader):
            part = rows_of_batch(inner, batch, function)
            own.add(part)
            if progress is not None:
                # The other ranks are taken to be as far as this one.
                count = ranks * (len(part.indices) + len(part.failures))
                left = progress.total - progress.count  # a sampler may pad
                progress.advance(ranks * len(part.failures), min(count, left))
        if progress is not None:
            progress.finish()
    if ranks > 1:
        merged = PartialRows()
        # Small things as pickled objects, values as tensors.
        for part in gather_objects(replace(own, values=[], central=[])):
            merged.add(part)
        own = replace(merged, values=_gather(own.values), central=_gather(own.central))
    return complete(own, dataloader.dataset)


def _gather(parts: list[Tensor]) -> list[Tensor]:
    """The rows of all ranks, in rank order, one matrix (n, C) per rank that has rows."""
    own = torch.cat(parts) if parts else torch.empty(0, 0)
    shapes = gather_objects(tuple(own.shape))
    rows, width = (max(shape[i] for shape in shapes) for i in (0, 1))
    # Tensors padded to one shape: pickled values would need several times the memory.
    padded = torch.zeros(rows, width)
    padded[: len(own), : own.shape[1]] = own
    gathered = all_gather(padded)
    return [part[: shape[0]] for part, shape in zip(gathered, shapes, strict=True) if shape[0]]


def complete(partial: PartialRows, dataset: Any) -> Rows:
    """Rows sorted by index without repeated samples, after a check that no sample is missing.

    Of a repeated index the first is kept; without ``values`` the rows have size 0. The data set
    gives its length and, where it has them, its ``path`` and ``row_columns``.

    Raises:
        RuntimeError: some samples have no row and were not reported as unreadable.
    """
    # A padding sampler repeats samples, to give all ranks as many: the first row counts.
    first: dict[int, int] = {}
    for slot, index in enumerate(partial.indices):
        first.setdefault(index, slot)
    indices = sorted(first)
    failures = list(dict.fromkeys(partial.failures))
    missing = set(range(len(dataset))) - set(indices)
    unreadable = {path for path, _ in failures}
    lost = len(missing) - len(unreadable)
    if hasattr(dataset, "path"):  # one unreadable file may hold several samples
        lost = sum(str(dataset.path(i)) not in unreadable for i in missing)
    if lost > 0 or not indices:
        raise RuntimeError(
            f"{len(indices)} of {len(dataset)} videos were evaluated and {len(failures)} reported "
            "as unreadable: the rest is missing. Is drop_last set, or does the sampler skip some?"
        )
    order = torch.tensor([first[i] for i in indices], dtype=torch.long)
    counts, slots = None, order
    if partial.counts:
        # Sample i has the rows from ends[i] - counts[i] to ends[i] - 1.
        ends = list(itertools.accumulate(partial.counts))
        ranges = [range(ends[i] - partial.counts[i], ends[i]) for i in order.tolist()]
        counts = torch.tensor([len(one) for one in ranges], dtype=torch.long)
        slots = torch.tensor([row for one in ranges for row in one], dtype=torch.long)
    values = torch.cat(partial.values) if partial.values else torch.empty(len(partial.indices), 0)
    return Rows(
        values=values[slots],
        labels=torch.tensor(partial.labels, dtype=torch.long)[order],
        indices=torch.tensor(indices, dtype=torch.long),
        paths=sample_paths(dataset, indices),
        failures=failures,
        num_views=partial.num_views,
        central=torch.cat(partial.central)[slots] if partial.central else None,
        counts=counts,
        columns=dataset.row_columns(indices) if hasattr(dataset, "row_columns") else {},
    )


def sample_paths(dataset: Any, indices: list[int]) -> list[str]:
    """``dataset.path(i)`` of the samples, or ``#i`` if the data set has no such method."""
    return [str(dataset.path(i)) if hasattr(dataset, "path") else f"#{i}" for i in indices]


def build_eval_dataloader(cfg: dict | DataLoader, seed: int | None = None) -> DataLoader:
    """A loader, of a config or built, that gives every video once, in order, split over all ranks.

    Defaults for what the config leaves out: the sampler ``dict(type="DefaultSampler",
    shuffle=False, round_up=False)``, which repeats no sample and may give a rank no video at all;
    the collate function ``sce_video.collate_views``; and ``on_error="raise"`` for a
    :class:`~sce_video.datasets.VideoDataset`. Raises ValueError: the data set would replace
    unreadable files by other videos.
    """
    if isinstance(cfg, DataLoader):
        return cfg
    from sce_video.engine.runner import VideoRunner  # a search needs the rows, and no runner

    sampler = {"type": "DefaultSampler", "shuffle": False, "round_up": False}
    cfg = {"sampler": sampler, "collate_fn": {"type": "sce_video.collate_views"}, **cfg}
    loader = VideoRunner.build_dataloader(cfg, seed=seed)
    dataset: Any = loader.dataset
    # "replace" is the default of a data set, for training.
    if getattr(dataset, "on_error", None) == "replace":
        if not isinstance(cfg["dataset"], dict) or "on_error" in cfg["dataset"]:
            raise ValueError(
                "on_error='replace' would evaluate another video instead of an unreadable file: "
                "set on_error='raise' or 'skip' in the data set"
            )
        dataset.on_error = "raise"
    return loader
