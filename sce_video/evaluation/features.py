"""Features of a data set: extracted with a frozen network, gathered over processes, saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.evaluation.functional.neighbours import count_not_finite
from sce_video.evaluation.multi_view import rows_of_views
from sce_video.evaluation.npz_files import (
    as_integers,
    as_matrix,
    as_strings,
    read_failures,
    read_npz,
    write_npz,
)
from sce_video.evaluation.rows import BatchFunction, VideoRows, collect_rows, video_paths


@dataclass(frozen=True)
class FeatureSet:
    """Features of the videos of a data set, one row each, in the data set's order.

    Attributes:
        features: (N, C) float32, on the CPU.
        labels: (N,) int64; -1 is none.
        indices: (N,) int64, positions in the data set, ascending and unique.
        paths: N paths.
        failures: Files that could not be decoded, with the error.
        num_views: Views (clips x crops) whose representations were averaged.
        source: File that the features were read from, for messages; empty for none.
    """

    features: Tensor
    labels: Tensor
    indices: Tensor
    paths: list[str]
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        count = len(self.features)
        sizes = {
            "labels": len(self.labels),
            "indices": len(self.indices),
            "paths": len(self.paths),
        }
        wrong = [f"{size} {name}" for name, size in sizes.items() if size != count]
        if wrong:
            raise ValueError(f"{count} features do not go with {', '.join(wrong)}")

    def __len__(self) -> int:
        return len(self.features)

    def subset(self, keep: Tensor) -> FeatureSet:
        """The rows chosen by ``keep``: a bool mask (N,) or indices."""
        rows = torch.arange(len(self))[keep]
        return FeatureSet(
            self.features[rows],
            self.labels[rows],
            self.indices[rows],
            [self.paths[i] for i in rows.tolist()],
            self.failures,
            self.num_views,
            self.source,
        )


def mean_representation(max_views: int = 30) -> BatchFunction:
    """The function of a batch that averages h over all views of each video.

    Args:
        max_views: Views of a video that go through the network at a time.
    """

    def function(model: Any, batch: dict[str, Any]) -> tuple[Tensor, int]:
        def represent(view: Tensor) -> Tensor:
            return model(inputs=[view], mode="tensor")[0]

        videos = rows_of_views(model, batch, represent, max_views)
        mean = torch.stack([views.mean(dim=0) for views in videos]).cpu()
        return mean, max(map(len, videos))

    return function


def extract_features(
    model: nn.Module,
    dataloader: DataLoader,
    device: torch.device | str | None = None,
    log: Callable[[str], None] | None = None,
    max_views: int = 30,
) -> FeatureSet:
    """Mean representation over the views of every video of a data set.

    A view goes through ``model(inputs=[view], mode="tensor")``, which gives (n, C). See
    :func:`~sce_video.evaluation.rows.collect_rows` for several processes and for errors.

    Args:
        model: A model of this package, bare or wrapped; its mode is restored.
        dataloader: Batches as :func:`sce_video.collate_views` makes them.
        device: Move the model there first; None leaves it where it is.
        log: Called with a line of progress every half minute.
        max_views: Views of a video at a time, where the device cuts them.
    """
    rows = collect_rows(model, dataloader, mean_representation(max_views), device, log)
    return feature_set(rows, dataloader.dataset)


def feature_set(rows: VideoRows, dataset: Any) -> FeatureSet:
    """Collected rows as features, with the paths of their videos."""
    return FeatureSet(
        features=rows.values,
        labels=torch.tensor(rows.labels, dtype=torch.long),
        indices=torch.tensor(rows.indices, dtype=torch.long),
        paths=video_paths(dataset, rows.indices),
        failures=rows.failures,
        num_views=rows.num_views,
    )


def save_features(path: str | Path, features: FeatureSet, protocol: dict | None = None) -> None:
    """Write ``features, labels, indices, paths`` and, as JSON text, ``protocol`` to a .npz file.

    ``protocol`` also keeps the number of views and the failures. Written beside its place and
    moved there, so a broken run leaves no half file; loads without pickle.
    """
    write_npz(
        path,
        {
            "features": features.features.detach().cpu().numpy().astype(np.float32, copy=False),
            "labels": features.labels.cpu().numpy().astype(np.int64),
            "indices": features.indices.cpu().numpy().astype(np.int64),
            "paths": np.array(features.paths, dtype=np.str_),
        },
        {**(protocol or {}), "num_views": features.num_views, "failures": features.failures},
    )


def load_features(path: str | Path) -> tuple[FeatureSet, dict]:
    """Read what :func:`save_features` wrote: the features and the protocol.

    ``features`` of another float type are converted. Files of others may do without ``labels``
    (then -1), ``indices`` (then 0, 1, ...) and ``protocol`` (then empty); nothing is unpickled.
    Large features written by :func:`save_features` stay on disk until they are used.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not such a file, lengths differ, a label is below -1, or a feature
            is not finite; the file and the video are named.
    """
    arrays, protocol = read_npz(path, "a feature file of this package", ("features", "paths"))
    matrix = torch.from_numpy(as_matrix(path, arrays["features"], "features"))
    count = len(matrix)
    columns = {
        "labels": arrays.get("labels", np.full(count, -1)),
        "indices": arrays.get("indices", np.arange(count)),
    }
    labels, indices = (
        torch.from_numpy(as_integers(path, array, name, count)) for name, array in columns.items()
    )
    paths = as_strings(path, arrays["paths"], "paths", count)
    num_views = protocol.get("num_views", 1)
    if not isinstance(num_views, int):
        raise ValueError(f"{path}: 'num_views' in its protocol must be a number, got {num_views!r}")
    failures = read_failures(path, protocol)
    features = FeatureSet(matrix, labels, indices, paths, failures, num_views, str(path))
    _check_loaded(features)
    return features, protocol


def _check_loaded(features: FeatureSet) -> None:
    wrong, first = count_not_finite(features.features)
    if wrong:
        raise ValueError(
            f"{features.source}: {wrong} of {len(features)} rows of 'features' hold NaN or "
            f"infinity, the first is row {first}, {features.paths[first]}: "
            "the network that made them has diverged"
        )
    below = torch.nonzero(features.labels < -1).flatten().tolist()
    if below:
        raise ValueError(
            f"{features.source}: {len(below)} labels are out of range, the first is "
            f"{int(features.labels[below[0]])} of {features.paths[below[0]]}; "
            "labels are 0 or more, -1 means none"
        )


def check_labelled(features: FeatureSet, purpose: str) -> None:
    """Raise ValueError naming file and video unless there are videos and all have a label.

    Args:
        features: The features.
        purpose: What needs the labels: "retrieval".
    """
    name = features.source or "the feature set"
    if len(features) == 0:
        raise ValueError(f"{name} holds no videos")
    missing = torch.nonzero(features.labels < 0).flatten().tolist()
    if len(missing) == len(features):
        raise ValueError(f"{name} has no 'labels' (or only -1), {purpose} needs them")
    if missing:
        raise ValueError(
            f"{name}: {purpose} needs labels, {len(missing)} of {len(features)} videos have none "
            f"(-1), the first is {features.paths[missing[0]]}"
        )


def check_same_size(queries: FeatureSet, bank: FeatureSet) -> None:
    """Raise ValueError naming both files unless the features have the same size."""
    sizes = queries.features.shape[1], bank.features.shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"features of different sizes: {sizes[0]} in {queries.source or 'the queries'}, "
            f"{sizes[1]} in {bank.source or 'the bank'}; they must come from the same network"
        )
