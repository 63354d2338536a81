"""Features of a data set, in memory and in :mod:`.npz files <sce_video.evaluation.npz_files>`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.datasets.video_list import MAX_LABEL
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.functional.neighbours import count_not_finite
from sce_video.evaluation.multi_view import ALTERATIONS, mean_representation
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
from sce_video.evaluation.rows import (
    Rows,
    check_labelled,
    check_same_size,
    collect_rows,
    mean_of_clips,
)
from sce_video.published.sets import TRANSFER


def extract_features(model: nn.Module, dataloader: DataLoader, clips: bool = False) -> Rows:
    """The mean representation over the views of every video of a data set, (N, C).

    With ``clips`` the rows of the single clips are kept as well.
    ``model(inputs=[view], mode="tensor")[0]`` is the representation (n, C) of a view. See
    :func:`~sce_video.evaluation.rows.collect_rows` for batches, several ranks and errors.
    """
    rows = collect_rows(model, dataloader, mean_representation(clips=clips))
    return mean_of_clips(rows) if clips else rows


def sample_columns(rows: Rows) -> dict[str, np.ndarray | RowStream]:
    """Labels, indices and paths of rows, as they are written; :func:`read_rows` reads them."""
    labels, indices = (t.cpu().numpy().astype(np.int64) for t in (rows.labels, rows.indices))
    return {"labels": labels, "indices": indices, "paths": text_stream(rows.paths)}


def read_rows(
    path: str | Path, what: str, name: str, required: Sequence[str], others: Iterable[str]
) -> tuple[Rows, dict[str, Tensor], dict]:
    """Rows of a matrix in an .npz file, the ``others`` that it has, and the provenance."""
    arrays, provenance = read_npz(path, what, (name, *required))
    # No copy: a large matrix stays in the file until its rows are used.
    names = [key for key in (name, *others) if key in arrays]
    matrices = {key: torch.from_numpy(as_matrix(path, arrays[key], key)) for key in names}
    values = matrices.pop(name)
    arrays = {"labels": np.full(len(values), -1), "indices": np.arange(len(values)), **arrays}
    labels, indices = (
        torch.from_numpy(as_integers(path, arrays[key], key, len(values)))
        for key in ("labels", "indices")
    )
    paths = as_strings(path, arrays["paths"], "paths", len(values))
    num_views = provenance.get("num_views", 1)
    if not isinstance(num_views, int):
        raise ValueError(f"{path}: 'num_views' in its protocol must be a number, got {num_views!r}")
    failures = read_failures(path, provenance)
    rows = Rows(values, labels, indices, paths, failures, num_views, str(path))
    return rows, matrices, provenance


def save_features(
    path: str | Path,
    features: Rows,
    provenance: dict | None = None,
    stream: RowStream | None = None,
) -> None:
    """Write ``features, labels, indices, paths`` and, as JSON text, ``protocol`` to a .npz file.

    Features (N, C) are stored as float32, those of altered clips as ``features_shuffled`` and so
    on; ``protocol`` is the provenance with the number of views and the failures. A ``stream`` gives
    the features while they are written, instead of the ``values`` of the rows. The file is written
    atomically and read without pickle. Raises ValueError: the name does not end in .npz.
    """
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(values.detach().cpu().numpy(), dtype=np.float32)
        for name, values in _matrices(features).items()
    }
    arrays |= {"features": stream or arrays["features"], **sample_columns(features)}
    described = {"num_views": features.num_views, "failures": features.failures}
    write_npz(path, arrays, {**(provenance or {}), **described})


def _matrices(features: Rows) -> dict[str, Tensor]:
    altered = {f"features_{name}": values for name, values in features.altered.items()}
    return {"features": features.values, **altered}


def load_features(path: str | Path) -> tuple[Rows, dict]:
    """Read what :func:`save_features` wrote: the features and their provenance.

    Files of other programs may hold another number type and lack ``labels`` (then -1), ``indices``
    (then 0, 1, ...) and ``protocol`` (then empty). Large features of ours are memory-mapped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a feature file, lengths differ, a label is out of range, or a feature
            is not finite; the message names the file and the video.
    """
    others = [f"features_{name}" for name in ALTERATIONS]
    what = "a feature file of this package"
    features, found, provenance = read_rows(path, what, "features", ["paths"], others)
    altered = {name.removeprefix("features_"): values for name, values in found.items()}
    features = replace(features, altered=altered)
    for name, values in _matrices(features).items():
        wrong, first = count_not_finite(values)
        if wrong:
            raise ValueError(
                f"{features.source}: {wrong} of {len(features)} rows of '{name}' hold NaN or "
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
    return features, provenance


class FeaturePair(NamedTuple):
    """Labelled features of queries and, if there is one, of the gallery they are compared with.

    The provenance is that of the queries' features, and file, hash, number of videos and provenance
    of both (``query``, ``bank``); ``notes`` are warnings about the pair for the user.
    """

    queries: Rows
    gallery: Rows | None
    provenance: dict[str, Any]
    notes: list[str]

    @property
    def failures(self) -> list[list[str]]:
        """Files of either set that could not be decoded, with the error, without repetition."""
        parts = [self.queries] if self.gallery is None else [self.queries, self.gallery]
        return [list(pair) for pair in dict.fromkeys(f for part in parts for f in part.failures)]


def load_feature_pair(query: str | Path, gallery: str | Path | None, purpose: str) -> FeaturePair:
    """The checked content of two .npz files of features, which may be one; or of queries alone.

    ``purpose`` names what needs the labels in messages: "retrieval".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a feature file, no labels, features of different sizes; the file is named.
    """
    queries, described = load_described(query, purpose)
    stored = described["protocol"]
    # A claim of the transfer protocols is not one of these metrics.
    stated = stored.get("benchmark")
    if isinstance(stated, dict) and stated.get("protocol") in TRANSFER:
        stated = None
    provenance: dict[str, Any] = {
        **stored,
        "kind": "representation",
        "benchmark": stated,
        "videos": len(queries),
        "failures": len(queries.failures),
        "feature_size": queries.values.shape[1],
        "query": described,
    }
    if gallery is None:
        return FeaturePair(queries, None, provenance, [])
    features, bank = queries, {**described, "path": str(gallery)}
    # Read once, if it is named twice.
    if not (os.path.exists(gallery) and os.path.samefile(query, gallery)):
        features, bank = load_described(gallery, purpose)
        check_same_size(queries, features)
    provenance |= {
        "bank": bank,
        "bank_videos": len(features),
        "bank_failures": len(features.failures),
        "same_file": bank["sha256"] == described["sha256"],
    }
    return FeaturePair(queries, features, provenance, checkpoint_notes(described, bank))


def load_described(path: str | Path, purpose: str | None) -> tuple[Rows, dict[str, Any]]:
    """Features of a file; and its path, size, hash, number of rows and provenance, for results.

    With a ``purpose``, which messages name, all rows must have a label.
    """
    features, provenance = load_features(path)
    if purpose is not None:
        check_labelled(features, purpose)
    found = {"path": str(path), "bytes": os.path.getsize(path), "sha256": file_sha256(path)}
    return features, {**found, "videos": len(features), "protocol": provenance}


def checkpoint_notes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """A note if the features of two described files are of different checkpoints, else none."""
    checkpoints = (described["protocol"].get("checkpoint") for described in (first, second))
    one, other = (c.get("sha256") if isinstance(c, dict) else None for c in checkpoints)
    if one is None or other is None or one == other:
        return []
    made = f"{first['path']} by {one[:12]}, {second['path']} by {other[:12]}"
    return [f"the features were made by different checkpoints: {made}"]
