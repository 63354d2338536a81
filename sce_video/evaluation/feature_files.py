"""Conversion between a dataset's rows and feature files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.alterations import ALTERATIONS
from sce_video.evaluation.rows import (
    Rows,
    check_labelled,
    check_same_size,
    collect_rows,
    mean_of_clips,
)
from sce_video.inference.features import Features, read_features, write_features
from sce_video.inference.multi_view import mean_representation
from sce_video.published.paper_results import TRANSFER
from sce_video.utils.records import at


def extract_features(model: nn.Module, dataloader: DataLoader, clips: bool = False) -> Rows | None:
    """Compute the mean representation over the views of every video in a dataset, (N, C).

    With ``clips``, the rows of the single clips are kept as well. The representation (n, C) of a
    view is ``model(inputs=[view], mode="tensor")[0]``. With several ranks, rank 0 returns the rows
    of all videos, and the others return None. For batches and errors, see
    :func:`~sce_video.evaluation.rows.collect_rows`.
    """
    rows = collect_rows(model, dataloader, mean_representation(clips=clips))
    return mean_of_clips(rows) if clips and rows is not None else rows


def save_features(path: str | Path, features: Rows, provenance: dict | None = None) -> None:
    """Write rows to a feature file with :func:`~sce_video.inference.features.write_features`.

    The features of altered clips are written as ``features_shuffled`` and so on.

    Raises:
        ValueError: If the name does not end in ``.npz``.
    """
    others = {f"features_{name}": _array(values) for name, values in features.altered.items()}
    write_features(path, features_of(features, provenance, others))


def features_of(
    rows: Rows, provenance: dict | None = None, others: dict[str, np.ndarray] | None = None
) -> Features:
    """Convert rows to features with their labels, and add other arrays for the same file."""
    return Features(
        values=_array(rows.values),
        paths=rows.paths,
        labels=rows.labels.cpu().numpy().astype(np.int64),
        indices=rows.indices.cpu().numpy().astype(np.int64),
        failures=rows.failures,
        provenance={**(provenance or {}), "num_views": rows.num_views},
        others=others or {},
    )


def rows_of(features: Features) -> Rows:
    """Convert features to rows. Missing labels become -1, and missing positions 0 to N - 1."""
    count = len(features)
    labels = np.full(count, -1) if features.labels is None else features.labels
    indices = np.arange(count) if features.indices is None else features.indices
    return Rows(
        values=torch.from_numpy(features.values),
        labels=torch.from_numpy(labels),
        indices=torch.from_numpy(indices),
        paths=list(features.paths),
        failures=features.failures,
        num_views=features.num_views,
        source=features.source,
    )


def load_features(path: str | Path) -> tuple[Rows, dict]:
    """Read a feature file and return its checked rows and their provenance.

    A file of another program may use another number type. It may also lack ``labels`` (then -1),
    ``indices`` (then 0, 1, ...) and ``protocol`` (then empty). Large features that this package has
    written are memory-mapped.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file contains no features, lengths differ, a label is out of range, or a
            feature is not finite. The message names the file and the video.
    """
    found = read_features(path, others=[f"features_{name}" for name in ALTERATIONS])
    altered = {
        name.removeprefix("features_"): torch.from_numpy(values)
        for name, values in found.others.items()
    }
    return replace(rows_of(found), altered=altered), found.provenance


def _array(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu().numpy(), dtype=np.float32)


@dataclass(frozen=True)
class FeatureFile:
    """Feature file that has been read.

    Attributes:
        path: Path of the file as the user gave it.
        size: Size of the file in bytes.
        sha256: SHA-256 of the file.
        rows: Features of the file.
        provenance: Checkpoint, views and data from which the features were computed.
    """

    path: str
    size: int
    sha256: str
    rows: Rows
    provenance: Mapping[str, object]

    @property
    def made_by(self) -> str | None:
        """SHA-256 of the checkpoint; None if it is unknown."""
        return at(self.provenance, "checkpoint.sha256", str)

    def described(self) -> dict[str, object]:
        """Return the entries for a result's provenance."""
        return {
            "path": self.path,
            "bytes": self.size,
            "sha256": self.sha256,
            "videos": len(self.rows),
            "protocol": self.provenance,
        }


def load_feature_file(path: str | Path, purpose: str | None) -> FeatureFile:
    """Read a feature file and describe it.

    Args:
        path: The file, with the format and errors of :func:`load_features`.
        purpose: Evaluation that needs a label for every row, for messages ("retrieval"). None
            accepts rows without labels.
    """
    rows, provenance = load_features(path)
    if purpose is not None:
        check_labelled(rows, purpose)
    return FeatureFile(str(path), os.path.getsize(path), file_sha256(path), rows, provenance)


def checkpoint_notes(first: FeatureFile, second: FeatureFile) -> list[str]:
    """Return a note if two files contain features of different checkpoints, else an empty list."""
    one, other = first.made_by, second.made_by
    if one is None or other is None or one == other:
        return []
    made = f"{first.path} by {one[:12]}, {second.path} by {other[:12]}"
    return [f"the features were made by different checkpoints: {made}"]


@dataclass(frozen=True)
class FeaturePair:
    """Labelled features of queries, and of the gallery that they are compared with, if any.

    Attributes:
        queries: Features of the queries.
        gallery: Features of the gallery; None if there is none.
        provenance: Provenance of the queries' features, and the description of both files
            (``query``, ``bank``).
        notes: Warnings about the pair for the user.
    """

    queries: Rows
    gallery: Rows | None
    provenance: Mapping[str, object]
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Files of both sets that could not be decoded, each listed once with its error."""
        parts = [self.queries] if self.gallery is None else [self.queries, self.gallery]
        return [*dict.fromkeys(pair for part in parts for pair in part.failures)]


def load_feature_pair(query: str | Path, gallery: str | Path | None, purpose: str) -> FeaturePair:
    """Read the .npz feature files of queries and gallery, which may be the same file.

    Args:
        query: Feature file of the queries.
        gallery: Feature file of the gallery; None if there is none.
        purpose: Evaluation that needs the labels, for messages ("retrieval").

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file contains no features or labels, or their sizes differ. The message
            names the file.
    """
    asked = load_feature_file(query, purpose)
    # Metrics computed from feature files do not reproduce transfer protocols.
    stated = at(asked.provenance, "benchmark")
    if at(stated, "protocol") in TRANSFER:
        stated = None
    provenance: dict[str, object] = {
        **asked.provenance,
        "kind": "representation",
        "benchmark": stated,
        "videos": len(asked.rows),
        "failures": len(asked.rows.failures),
        "feature_size": asked.rows.values.shape[1],
        "query": asked.described(),
    }
    if gallery is None:
        return FeaturePair(asked.rows, None, provenance)
    bank = replace(asked, path=str(gallery))
    # Read the file once if it is both query and gallery.
    if not (os.path.exists(gallery) and os.path.samefile(query, gallery)):
        bank = load_feature_file(gallery, purpose)
        check_same_size(asked.rows, bank.rows)
    provenance |= {
        "bank": bank.described(),
        "bank_videos": len(bank.rows),
        "bank_failures": len(bank.rows.failures),
        "same_file": bank.sha256 == asked.sha256,
    }
    return FeaturePair(asked.rows, bank.rows, provenance, checkpoint_notes(asked, bank))
