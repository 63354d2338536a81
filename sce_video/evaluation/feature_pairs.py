"""Feature files given to a tool: queries and gallery that go together, and where they come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.features import load_features
from sce_video.evaluation.rows import Rows, check_labelled, check_same_size


class FeaturePair(NamedTuple):
    """Queries and what they are compared with.

    Attributes:
        queries: Labelled features.
        gallery: Labelled features of the same size; None if no file was given.
        same_file: Whether the two files are one, or copies.
        protocol: What the features depend on: the protocol of the queries, and file, hash, count
            and protocol of both.
        notes: What the user should know of the two.
    """

    queries: Rows
    gallery: Rows | None
    same_file: bool
    protocol: dict[str, Any]
    notes: list[str]

    @property
    def failures(self) -> list[list[str]]:
        """Files that could not be decoded, with the error, each once."""
        parts = [self.queries] if self.gallery is None else [self.queries, self.gallery]
        return [list(pair) for pair in dict.fromkeys(f for part in parts for f in part.failures)]


def load_feature_pair(query: str | Path, gallery: str | Path | None, purpose: str) -> FeaturePair:
    """Read and check the files of queries and gallery.

    Args:
        query: A .npz file of features.
        gallery: Another, or the same; None for none.
        purpose: What the labels are needed for, for messages: "retrieval".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a feature file, no labels, features of different sizes; the file is named.
    """
    queries, query_protocol = load_features(query)
    check_labelled(queries, purpose)
    described = _describe(query, queries, query_protocol)
    protocol: dict[str, Any] = {
        **query_protocol,
        "kind": "representation",
        "videos": len(queries),
        "failures": len(queries.failures),
        "feature_size": queries.values.shape[1],
        "query": described,
    }
    if gallery is None:
        return FeaturePair(queries, None, False, protocol, [])
    if os.path.exists(gallery) and os.path.samefile(query, gallery):
        features, gallery_protocol, same_file = queries, query_protocol, True
        protocol["bank"] = {**described, "path": str(gallery)}
    else:
        features, gallery_protocol = load_features(gallery)
        check_labelled(features, purpose)
        check_same_size(queries, features)
        protocol["bank"] = _describe(gallery, features, gallery_protocol)
        same_file = protocol["bank"]["sha256"] == described["sha256"]
    protocol["bank_videos"] = len(features)
    protocol["bank_failures"] = len(features.failures)
    protocol["same_file"] = same_file
    notes = _checkpoint_note(query_protocol, gallery_protocol, query, gallery)
    return FeaturePair(queries, features, same_file, protocol, notes)


def _describe(path: str | Path, features: Rows, protocol: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": str(path),
        "bytes": os.path.getsize(path),
        "sha256": file_sha256(path),
        "videos": len(features),
        "protocol": protocol,
    }


def _checkpoint_note(
    first: dict[str, Any], second: dict[str, Any], query: str | Path, gallery: str | Path
) -> list[str]:
    hashes = [
        protocol["checkpoint"].get("sha256")
        for protocol in (first, second)
        if isinstance(protocol.get("checkpoint"), dict)
    ]
    if len(hashes) == 2 and None not in hashes and hashes[0] != hashes[1]:
        return [
            f"the features were made by different checkpoints: {query} by {hashes[0][:12]}, "
            f"{gallery} by {hashes[1][:12]}"
        ]
    return []
