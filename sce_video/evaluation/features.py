"""Features of a data set: extracted with a frozen network, gathered over processes, saved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.evaluation.collecting import (
    BatchFunction,
    VideoRows,
    collect_rows,
    video_paths,
)
from sce_video.evaluation.multi_view import rows_of_views


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
    """

    features: Tensor
    labels: Tensor
    indices: Tensor
    paths: list[str]
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 1

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
    :func:`~sce_video.evaluation.collecting.collect_rows` for several processes and for errors.

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
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"features are saved as .npz, got {path}")
    described = {
        **(protocol or {}),
        "num_views": features.num_views,
        "failures": features.failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            np.savez(
                file,
                features=features.features.numpy().astype(np.float32),
                labels=features.labels.numpy(),
                indices=features.indices.numpy(),
                paths=np.array(features.paths, dtype=np.str_),
                protocol=np.array(json.dumps(described)),
            )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_features(path: str | Path) -> tuple[FeatureSet, dict]:
    """Read what :func:`save_features` wrote: the features and the protocol.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not such a file.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        protocol = json.loads(str(arrays["protocol"]))
        features = FeatureSet(
            features=torch.from_numpy(arrays["features"]),
            labels=torch.from_numpy(arrays["labels"]),
            indices=torch.from_numpy(arrays["indices"]),
            paths=[str(p) for p in arrays["paths"]],
            failures=[(p, why) for p, why in protocol.get("failures", [])],
            num_views=int(protocol.get("num_views", 1)),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not a feature file of this package: {error}") from error
    return features, protocol
