"""The rows that metrics are computed from: one entry per sample of a data set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


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
        columns: Further data of the samples from the data set: name to N entries.
        altered: Values of altered clips of the same samples, see
            :mod:`~sce_video.evaluation.altered_clips`: alteration to a matrix of the shape
            of ``values``.

    Raises:
        ValueError: ``values`` is no matrix, or lengths differ.
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
    columns: dict[str, list[Any]] = field(default_factory=dict)
    altered: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ValueError(f"{self.name} must be (N, C), got shape {tuple(self.values.shape)}")
        count = len(self.values) if self.counts is None else len(self.counts)
        sizes = {
            "labels": len(self.labels),
            "indices": len(self.indices),
            "paths": len(self.paths),
            **({} if self.groups is None else {"groups": len(self.groups)}),
            **{name: len(column) for name, column in self.columns.items()},
        }
        wrong = [f"{size} {name}" for name, size in sizes.items() if size != count]
        if wrong:
            raise ValueError(f"{self.name}: {count} rows do not match {', '.join(wrong)}")
        if self.central is not None and self.central.shape != self.values.shape:
            raise ValueError(
                f"{self.name} of shape {tuple(self.values.shape)} do not match values of the "
                f"central view of shape {tuple(self.central.shape)}"
            )
        for name, values in self.altered.items():
            if values.shape != self.values.shape:
                raise ValueError(
                    f"{self.name}: values of {name} clips of shape {tuple(values.shape)} are not "
                    f"of the same samples as those of shape {tuple(self.values.shape)}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def name(self) -> str:
        """The name of the rows in messages: their file, if they have one."""
        return self.source or "the rows"

    @property
    def features(self) -> Tensor:
        """``values``, for rows of features."""
        return self.values

    @property
    def scores(self) -> Tensor:
        """``values``, for rows of class probabilities."""
        return self.values

    @property
    def num_classes(self) -> int:
        """C, for rows of class probabilities."""
        return self.values.shape[1]

    def subset(self, keep: Tensor) -> Rows:
        """The samples selected by ``keep``: a bool mask (N,) or indices.

        Raises:
            ValueError: samples have several rows each (``counts``).
        """
        if self.counts is not None:
            raise ValueError("subset needs one row per sample, these have several (counts)")
        selected = torch.arange(len(self))[keep]
        chosen = selected.tolist()
        return replace(
            self,
            values=self.values[selected],
            labels=self.labels[selected],
            indices=self.indices[selected],
            paths=[self.paths[i] for i in chosen],
            central=None if self.central is None else self.central[selected],
            groups=None if self.groups is None else self.groups[selected],
            columns={name: [column[i] for i in chosen] for name, column in self.columns.items()},
            altered={name: values[selected] for name, values in self.altered.items()},
        )


def check_labelled(rows: Rows, purpose: str, name: str = "") -> None:
    """Raise ValueError naming file and video unless there are videos and all have a label.

    Args:
        rows: The rows.
        purpose: Names what needs the labels in messages: "retrieval".
        name: Name of the rows in messages if they were not read from a file.
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


def check_same_size(queries: Rows, gallery: Rows) -> None:
    """Raise ValueError naming both files unless the features have the same size."""
    sizes = queries.values.shape[1], gallery.values.shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"features of different sizes: {sizes[0]} in {queries.source or 'the queries'}, "
            f"{sizes[1]} in {gallery.source or 'the gallery'}; they must come from the same network"
        )
