"""Features of videos or windows, in memory and in ``.npz`` files.

A file contains ``features`` (N, D) float32 and ``paths`` (N,). For windows, it also contains
``starts`` and ``ends`` (N,) in seconds, and for a labelled set ``labels`` and ``indices`` (N,).
``protocol`` is the provenance with the failures as JSON text. A file is written atomically and read
without pickle.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.video_list import MAX_LABEL
from sce_video.inference.npz_files import (
    CheckedArray,
    RowStream,
    as_integers,
    as_matrix,
    as_strings,
    read_failures,
    read_npz,
    text_stream,
    write_npz,
)
from sce_video.utils.records import at

#: Name that messages use for a file written by :func:`write_features`
FEATURE_FILE = "a feature file of this package"
_CHECKED_BYTES = 1 << 24  # checked at a time, because a mapped matrix may not fit in memory


@dataclass(frozen=True, eq=False)
class Features:
    """Features or class probabilities of videos or windows, one row each.

    Attributes:
        values: (N, D) float32, not normalised; memory-mapped if large and read from a file.
        paths: N paths. A video that is divided into windows has a row for each window.
        spans: (N, 2) float64 start and end of each window in seconds; None for whole videos.
        labels: (N,) int64, -1 for no label; None if the videos have no labels.
        indices: (N,) int64 positions in the list or dataset; None for 0 to N - 1.
        failures: Pairs (path, reason) for videos without any row.
        incomplete: Pairs (path, reason) for videos with missing windows or damaged frames.
        provenance: Checkpoint, views and data of the rows, as JSON data.
        others: Other arrays of the same file, by name.
        source: File from which the rows were read, for messages; empty if they were computed.
    """

    values: np.ndarray
    paths: Sequence[str]
    spans: np.ndarray | None = None
    labels: np.ndarray | None = None
    indices: np.ndarray | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    incomplete: list[tuple[str, str]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    others: dict[str, np.ndarray] = field(default_factory=dict)
    source: str = ""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def starts(self) -> np.ndarray:
        """Start times (N,) of the windows in seconds."""
        assert self.spans is not None, "whole videos have no spans"
        return self.spans[:, 0]

    @property
    def ends(self) -> np.ndarray:
        """End times (N,) of the windows in seconds."""
        assert self.spans is not None, "whole videos have no spans"
        return self.spans[:, 1]

    @cached_property
    def files(self) -> list[str]:
        """N paths, joined with the folder or table to which they are relative, if it is known."""
        return [os.path.join(self.root, path) for path in self.paths]

    @property
    def root(self) -> str:
        """Folder or table to which the paths are relative; empty if it is unknown."""
        return str(at(self.provenance, "root") or "")

    @property
    def checkpoint(self) -> str:
        """Path of the network's weights; empty if it is unknown."""
        return str(at(self.provenance, "checkpoint.path") or "")

    @cached_property
    def label_names(self) -> list[str | None]:
        """N names of the labels; the number for a label without a name, and None for no label."""
        names = at(self.provenance, "classes") or ()
        labels = [-1] * len(self) if self.labels is None else self.labels.tolist()
        return [
            None if label < 0 else str(names[label]) if label < len(names) else str(label)
            for label in labels
        ]

    @property
    def classes(self) -> list[str]:
        """Names of the labels that occur, sorted."""
        return sorted({label for label in self.label_names if label is not None})

    @property
    def num_views(self) -> int:
        """Number of views (clips x crops) per row."""
        return self.provenance.get("num_views", 1)

    @property
    def reason(self) -> str:
        """Reason why rows are missing or damaged; empty if there are none."""
        return "; ".join(reason for _, reason in [*self.failures, *self.incomplete])


def join_features(parts: Iterable[Features], size: int, provenance: Mapping[str, Any]) -> Features:
    """Join the features of several videos, in their order.

    Args:
        parts: Features of each video, either all with windows or all without.
        size: D, used if there are no rows.
        provenance: Provenance of the result, to which the number of views is added.
    """
    values = [np.empty((0, size), np.float32)]
    spans, indices, labels = [], [], []
    paths: list[str] = []
    joined = Features(values[0], paths, provenance={"num_views": 1, **provenance})
    # Merge the parts one by one, because there may be millions of them.
    for part in parts:
        joined.provenance["num_views"] = max(joined.num_views, part.num_views)
        joined.failures.extend(part.failures)
        joined.incomplete.extend(part.incomplete)
        if len(part):
            paths += part.paths
            values += [part.values] if len(part.values) else []
            spans += [] if part.spans is None else [part.spans]
            labels += [] if part.labels is None else [part.labels]
            indices += [] if part.indices is None else [part.indices]
    return replace(
        joined,
        values=np.concatenate(values),
        spans=np.concatenate(spans) if spans else None,
        labels=np.concatenate(labels) if labels else None,
        indices=np.concatenate(indices) if indices else None,
    )


def write_features(
    path: str | Path, features: Features, *, name: str = "features", stream: RowStream | None = None
) -> None:
    """Write features and their other arrays to an ``.npz`` file.

    Args:
        path: Path of the file, which ends in ``.npz``.
        features: Features to write.
        name: Name of the array with the values.
        stream: Source of the values while they are written, instead of ``features.values``.

    Raises:
        ValueError: If the name does not end in ``.npz``.
        WriteError: If the file cannot be written.
    """
    arrays: dict[str, np.ndarray | RowStream] = {name: features.values}
    if stream is not None:
        arrays[name] = stream
    columns = {"labels": features.labels, "indices": features.indices}
    arrays |= {key: column for key, column in columns.items() if column is not None}
    arrays["paths"] = text_stream(features.paths)
    if features.spans is not None:
        arrays["starts"], arrays["ends"] = features.spans.T.copy()
    described = {**features.provenance, "failures": features.failures}
    if features.incomplete:
        described["incomplete"] = features.incomplete
    write_npz(path, {**arrays, **features.others}, described)


def read_features(path: str | Path, others: Iterable[str] = ()) -> Features:
    """Read a feature file of :func:`write_features` or of another program.

    A file of another program may use another number type, and contain only the values and the
    paths. Large features that this package has written are memory-mapped.

    Args:
        path: Path of the file.
        others: Names of other matrices, which are read if they exist.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file contains no features, lengths differ, a value is not finite, or a
            label is out of range. The message names the file and the video.
    """
    found = read_matrix(path, FEATURE_FILE, others=others)
    for name, values in {"features": found.values, **found.others}.items():
        wrong, first = rows_not_finite(values)
        if wrong:
            raise ValueError(
                f"{found.source}: {wrong} of {len(found)} rows of {name!r} contain NaN or "
                f"infinity, the first is row {first}, {found.paths[first]}. The network that "
                "computed them has diverged"
            )
    if found.labels is None:
        return found
    outside = np.flatnonzero((found.labels < -1) | (found.labels > MAX_LABEL))
    if len(outside):
        raise ValueError(
            f"{found.source}: {len(outside)} labels are out of range, the first is "
            f"{found.labels[outside[0]]} of {found.paths[outside[0]]}. Labels must be 0 to "
            f"{MAX_LABEL}, or -1 for none"
        )
    return found


def read_matrix(
    path: str | Path,
    what: str,
    name: str = "features",
    required: Collection[str] = (),
    others: Iterable[str] = (),
) -> Features:
    """Read a file of :func:`write_features` without checking its values.

    Args:
        path: Path of the file.
        what: Expected kind of file, for messages.
        name: Name of the array with the values.
        required: Names of other arrays that the file must contain.
        others: Names of other matrices, which are read if they exist.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is of another kind, or lengths differ. The message names the file.
    """
    arrays, provenance = read_npz(path, what, (name, "paths", *required))
    # Do not copy a large matrix. It stays in the file until its rows are used.
    values = as_matrix(path, arrays[name], name)
    integers = {
        key: as_integers(path, arrays[key], key, len(values))
        for key in ("labels", "indices")
        if key in arrays
    }
    spans = None
    if {"starts", "ends"} <= arrays.keys():
        times = [np.asarray(arrays[key], dtype=np.float64) for key in ("starts", "ends")]
        if any(one.shape != (len(values),) for one in times):
            raise ValueError(f"{path}: {len(values)} rows do not match its 'starts' and 'ends'")
        spans = np.stack(times, axis=1)
    num_views = provenance.get("num_views", 1)
    if not isinstance(num_views, int):
        raise ValueError(f"{path}: 'num_views' in its protocol must be a number, got {num_views!r}")
    return Features(
        values=values,
        paths=as_strings(path, arrays["paths"], "paths", len(values)),
        spans=spans,
        labels=integers.get("labels"),
        indices=integers.get("indices"),
        failures=read_failures(path, provenance),
        incomplete=read_failures(path, provenance, "incomplete"),
        provenance=provenance,
        others={key: as_matrix(path, arrays[key], key) for key in others if key in arrays},
        source=str(path),
    )


def rows_not_finite(values: np.ndarray | CheckedArray) -> tuple[int, int]:
    """Return how many rows of (N, D) values contain NaN or infinity, and the first such row."""
    wrong, first = 0, -1
    step = max(1, _CHECKED_BYTES // max(1, 4 * values.shape[1]))
    for begin in range(0, len(values), step):
        bad = np.flatnonzero(~np.isfinite(values[begin : begin + step]).all(axis=1))
        if len(bad) and first < 0:
            first = begin + int(bad[0])
        wrong += len(bad)
    return wrong, first
