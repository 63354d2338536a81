"""Features of a data set: extraction with a frozen network, and .npz files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from sce_video.datasets.video_list import MAX_LABEL
from sce_video.evaluation.collecting import collect_rows
from sce_video.evaluation.functional.frame_order import ALTERATIONS
from sce_video.evaluation.functional.neighbours import count_not_finite
from sce_video.evaluation.npz_files import (
    RowStream,
    as_integers,
    as_matrix,
    as_strings,
    read_failures,
    read_npz,
    text_stream,
    write_npz,
)
from sce_video.evaluation.row_functions import mean_representation
from sce_video.evaluation.rows import Rows
from sce_video.utils.progress import Progress


def extract_features(
    model: nn.Module,
    dataloader: DataLoader,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    max_views: int = 30,
) -> Rows:
    """The mean representation over the views of every video of a data set, (N, C).

    ``model(inputs=[view], mode="tensor")[0]`` is the representation (n, C) of a view. See
    :func:`~sce_video.evaluation.collecting.collect_rows` for several ranks and for errors.

    Args:
        model: A model of this package, bare or wrapped; its train or eval mode is restored.
        dataloader: Gives batches as made by :func:`sce_video.collate_views`.
        device: The model is moved there first; None leaves it where it is.
        progress: Over the samples of all ranks.
        max_views: Views of a video per forward pass, where views are cut on the device.
    """
    return collect_rows(model, dataloader, mean_representation(max_views), device, progress)


def save_features(path: str | Path, features: Rows, provenance: dict | None = None) -> None:
    """Write ``features, labels, indices, paths`` and, as JSON text, ``protocol`` to a .npz file.

    Features of altered clips are ``features_shuffled`` and so on. The file is written atomically
    and read without pickle.

    Args:
        path: The file.
        features: ``values`` (N, C) are stored as float32.
        provenance: How the features were made; stored as ``protocol`` together with the number of
            views and the failures.

    Raises:
        ValueError: the name does not end in .npz.
    """
    values = features.values.detach().cpu().numpy().astype(np.float32, copy=False)
    write_features(path, features, values, values.shape[1], provenance)


def write_features(
    path: str | Path,
    samples: Rows,
    values: Iterable[np.ndarray],
    size: int,
    provenance: dict | None = None,
) -> None:
    """:func:`save_features` of features that are made while they are written.

    Args:
        path: The file.
        samples: All else of the N samples; its own ``values`` are not used.
        values: N features, (C,) float32 each, in the order of the samples.
        size: C.
        provenance: As of :func:`save_features`.
    """
    write_npz(
        path,
        {
            "features": RowStream((len(samples), size), np.dtype(np.float32), values),
            **{
                f"features_{name}": altered.cpu().numpy().astype(np.float32, copy=False)
                for name, altered in samples.altered.items()
            },
            "labels": samples.labels.cpu().numpy().astype(np.int64),
            "indices": samples.indices.cpu().numpy().astype(np.int64),
            "paths": text_stream(samples.paths),
        },
        {**(provenance or {}), "num_views": samples.num_views, "failures": samples.failures},
    )


def load_features(path: str | Path) -> tuple[Rows, dict]:
    """Read what :func:`save_features` wrote: the features and their provenance.

    ``features`` of another number type are converted to float32. Files of other programs may lack
    ``labels`` (then -1), ``indices`` (then 0, 1, ...) and ``protocol`` (then empty); nothing is
    unpickled. Large features written by :func:`save_features` are memory-mapped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a feature file, lengths differ, a label is out of range, or a feature
            is not finite; the message names the file and the video.
    """
    arrays, provenance = read_npz(path, "a feature file of this package", ("features", "paths"))
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
    num_views = provenance.get("num_views", 1)
    if not isinstance(num_views, int):
        raise ValueError(f"{path}: 'num_views' in its protocol must be a number, got {num_views!r}")
    failures = read_failures(path, provenance)
    altered = {
        name: torch.from_numpy(as_matrix(path, arrays[f"features_{name}"], f"features_{name}"))
        for name in ALTERATIONS
        if f"features_{name}" in arrays
    }
    features = Rows(matrix, labels, indices, paths, failures, num_views, str(path), altered=altered)
    _check_loaded(features)
    return features, provenance


def _check_loaded(features: Rows) -> None:
    for name, values in {"": features.values, **features.altered}.items():
        wrong, first = count_not_finite(values)
        if wrong:
            array = f"features_{name}".rstrip("_")
            raise ValueError(
                f"{features.source}: {wrong} of {len(features)} rows of '{array}' hold NaN or "
                f"infinity, the first is row {first}, {features.paths[first]}: "
                "the network that made them has diverged"
            )
    outside = (features.labels < -1) | (features.labels > MAX_LABEL)
    rows = torch.nonzero(outside).flatten().tolist()
    if rows:
        raise ValueError(
            f"{features.source}: {len(rows)} labels are out of range, the first is "
            f"{int(features.labels[rows[0]])} of {features.paths[rows[0]]}; "
            f"labels are 0 to {MAX_LABEL}, -1 means none"
        )
