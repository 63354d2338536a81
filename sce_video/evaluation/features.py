"""Features of a data set: extraction with a frozen network, and .npz files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from sce_video.datasets.video_list import MAX_LABEL
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.altered_clips import ALTERATIONS
from sce_video.evaluation.collecting import collect_rows
from sce_video.evaluation.functional.neighbours import count_not_finite
from sce_video.evaluation.multi_view import mean_representation
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
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size
from sce_video.published.sets import TRANSFER
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


class FeaturePair(NamedTuple):
    """Features of queries and of the gallery that they are compared with.

    Attributes:
        queries: Labelled features.
        gallery: Labelled features of the same size; None if no file was given.
        same_file: Whether both paths name the same file, or files of the same content.
        provenance: Provenance of the queries' features, and file, hash, number of videos and
            provenance of both (``query``, ``bank``).
        notes: Warnings about the pair for the user.
    """

    queries: Rows
    gallery: Rows | None
    same_file: bool
    provenance: dict[str, Any]
    notes: list[str]

    @property
    def failures(self) -> list[list[str]]:
        """Files of either set that could not be decoded, with the error, without repetition."""
        parts = [self.queries] if self.gallery is None else [self.queries, self.gallery]
        return [list(pair) for pair in dict.fromkeys(f for part in parts for f in part.failures)]


def load_feature_pair(query: str | Path, gallery: str | Path | None, purpose: str) -> FeaturePair:
    """The checked content of two feature files, queries and gallery.

    Args:
        query: A .npz file of features.
        gallery: Another, or the same; None if there is no gallery.
        purpose: Names what needs the labels in messages: "retrieval".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a feature file, no labels, features of different sizes; the file is named.
    """
    queries, query_provenance = load_features(query)
    check_labelled(queries, purpose)
    described = describe_feature_file(query, queries, query_provenance)
    stated = query_provenance.get("benchmark")
    if isinstance(stated, dict) and stated.get("protocol") in TRANSFER:  # these metrics are not its
        stated = None
    provenance: dict[str, Any] = {
        **query_provenance,
        "kind": "representation",
        "benchmark": stated,
        "videos": len(queries),
        "failures": len(queries.failures),
        "feature_size": queries.values.shape[1],
        "query": described,
    }
    if gallery is None:
        return FeaturePair(queries, None, False, provenance, [])
    if os.path.exists(gallery) and os.path.samefile(query, gallery):
        features, gallery_provenance, same_file = queries, query_provenance, True
        provenance["bank"] = {**described, "path": str(gallery)}
    else:
        features, gallery_provenance = load_features(gallery)
        check_labelled(features, purpose)
        check_same_size(queries, features)
        provenance["bank"] = describe_feature_file(gallery, features, gallery_provenance)
        same_file = provenance["bank"]["sha256"] == described["sha256"]
    provenance["bank_videos"] = len(features)
    provenance["bank_failures"] = len(features.failures)
    provenance["same_file"] = same_file
    notes = checkpoint_notes(query_provenance, gallery_provenance, query, gallery)
    return FeaturePair(queries, features, same_file, provenance, notes)


def describe_feature_file(
    path: str | Path, features: Rows, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Path, size, hash, number of rows and provenance of a feature file, for results."""
    return {
        "path": str(path),
        "bytes": os.path.getsize(path),
        "sha256": file_sha256(path),
        "videos": len(features),
        "protocol": provenance,
    }


def checkpoint_notes(
    first: dict[str, Any], second: dict[str, Any], query: str | Path, gallery: str | Path
) -> list[str]:
    """A note if the features of two files were made by different checkpoints, else none."""
    hashes = [
        provenance["checkpoint"].get("sha256")
        for provenance in (first, second)
        if isinstance(provenance.get("checkpoint"), dict)
    ]
    if len(hashes) == 2 and None not in hashes and hashes[0] != hashes[1]:
        return [
            f"the features were made by different checkpoints: {query} by {hashes[0][:12]}, "
            f"{gallery} by {hashes[1][:12]}"
        ]
    return []
