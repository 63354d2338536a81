"""Feature files of queries and gallery, read together and checked against each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.features import load_features
from sce_video.evaluation.origin import TRANSFER
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size


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
