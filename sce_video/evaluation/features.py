"""Features of a data set, and .npz files of arrays: atomic, memory-mapped, without pickle."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
from sce_video.evaluation.rows import (
    Rows,
    check_labelled,
    check_same_size,
    collect_rows,
    mean_of_clips,
)
from sce_video.published.sets import TRANSFER
from sce_video.utils.files import atomic_file

#: Array data starts at a multiple of this many bytes, so that it can be memory-mapped.
_ALIGNMENT = 64
#: Smaller members are read: mapping them saves nothing.
_MAPPED_BYTES = 1 << 20
#: Bytes of the fixed part of a zip member's header, and of its record of 64-bit sizes.
_LOCAL_HEADER, _ZIP64_RECORD = 30, 20
#: Id of the zip extra field for padding, the same as of Android's zipalign.
_PADDING_FIELD = 0xD935
#: A compressed file that becomes more than this many times as large is no file of arrays.
_MAX_EXPANSION, _SMALL_BYTES = 100, 1 << 26
_MAX_MEMBERS, _MAX_SIDE = 1000, 2**40
#: Bytes of an array that are in memory at once where it is written from an iterator.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class RowStream:
    """An array that is written row by row, so that memory never holds all of it.

    The rows are as many as ``shape`` says first, and consumed when the array is written.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Iterable[Any]

    def blocks(self) -> Iterator[np.ndarray]:
        """Consecutive rows as arrays of at most :data:`BLOCK_BYTES`; ValueError if they differ."""
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        count = max(1, BLOCK_BYTES // max(1, row_bytes))
        rows, written = iter(self.rows), 0
        while len(block := np.array(list(islice(rows, count)), self.dtype)):
            if block.shape[1:] != self.shape[1:]:
                raise ValueError(f"a row of shape {block.shape[1:]} in an array {self.shape}")
            written += len(block)
            yield block
        if written != self.shape[0]:
            raise ValueError(f"{written} rows of an array of {self.shape[0]}")


def text_stream(texts: Sequence[str]) -> RowStream:
    """Text as a column of the width of the longest; an array of it takes four bytes a character."""
    width = max(map(len, texts), default=0)
    return RowStream((len(texts),), np.dtype(f"<U{max(1, width)}"), texts)


def write_npz(
    path: str | Path, arrays: Mapping[str, np.ndarray | RowStream], provenance: dict
) -> None:
    """Write arrays and, as JSON text under ``protocol``, their provenance; ``np.load`` reads it.

    The file is written atomically, uncompressed and aligned, so :func:`read_npz` can memory-map the
    arrays. They are written in their order, each from the first row to the last. Raises ValueError:
    the name does not end in .npz, or an array holds Python objects.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"arrays are saved as .npz, got {path}")
    members = {**arrays, "protocol": np.array(json.dumps(provenance))}
    # Readers have the old file mapped until this one replaces it.
    with atomic_file(path) as unfinished:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, array in members.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                # A zip extra field (its id, its length, its bytes) that aligns the data behind it.
                before = archive.start_dir + len(info.filename.encode())
                length = -(before + _LOCAL_HEADER + _ZIP64_RECORD + 4) % _ALIGNMENT
                info.extra = struct.pack("<HH", _PADDING_FIELD, length) + bytes(length)
                with archive.open(info, "w", force_zip64=True) as member:
                    if not isinstance(array, RowStream):
                        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
                        continue
                    descr = np.lib.format.dtype_to_descr(array.dtype)
                    header = {"descr": descr, "fortran_order": False, "shape": array.shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    for block in array.blocks():
                        member.write(block.tobytes())


def read_npz(
    path: str | Path, what: str, required: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays of an .npz file by name, and the dict under ``protocol`` ({} if there is none).

    A large array written by :func:`write_npz` is memory-mapped copy-on-write: its pages are read
    when they are used, and writing to the array does not change the file. ``what`` is the expected
    kind of file, for messages: "a feature file".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an .npz file, a member that is no array, has not the size that it states or
            holds Python objects (never unpickled), no JSON in ``protocol``, an array missing.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        # np.load would also take a single .npy file.
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("not an .npz archive, or truncated")
        with np.load(path, allow_pickle=False) as stored:
            members, size = stored.zip.infolist(), os.path.getsize(path)
            total = sum(info.file_size for info in members)
            # A bomb: its members are far larger than the file.
            if len(members) > _MAX_MEMBERS or total > _MAX_EXPANSION * size + _SMALL_BYTES:
                raise ValueError(
                    f"its {len(members)} members become {total:,} bytes, the file has {size:,}: "
                    "that is no file of arrays"
                )
            for info in members:
                name = info.filename.removesuffix(".npy")
                shape, fortran, dtype = _member_header(stored.zip, info, name)
                offset = _mapped_offset(path, info)
                if offset is None:
                    arrays[name] = stored[name]
                else:  # copy-on-write: a tensor of it may be changed, the file stays
                    layout: Any = (offset, shape, "F" if fortran else "C")
                    arrays[name] = np.memmap(path, dtype, "c", *layout)
        provenance = json.loads(str(arrays.pop("protocol", "{}")))
        if not isinstance(provenance, dict):
            raise ValueError(f"its 'protocol' must be a JSON object, got {provenance!s:.60}")
        for name in required:
            if name not in arrays:
                raise ValueError(f"no {name!r} in it, only {sorted(arrays)}")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}, expected {what}") from None
    except Exception as error:  # a damaged file can raise anything: struct.error, MemoryError, ...
        raise ValueError(
            f"{path} is not {what}: {str(error)[:500] or type(error).__name__}"
        ) from error
    return arrays, provenance


def _member_header(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str
) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of a member; ValueError unless it is an array of just that length.

    numpy allocates the shape before it reads the values.
    """
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
        except ValueError:
            raise ValueError(f"{name!r} is not an array") from None
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name!r} is an array of a kind that is not read here")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, fortran, dtype = read(member)
        stored = info.file_size - member.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects: object arrays are never unpickled")
    # Before the product: sides that overflow could make a size that fits.
    if not all(0 <= side <= _MAX_SIDE for side in shape):
        raise ValueError(f"{name!r} has the impossible shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    empty_rows = size == 0 and shape[:1] != (0,)
    if size != stored or empty_rows:
        raise ValueError(
            f"{name!r} of shape {shape} and type {dtype} takes {size:,} bytes, not {stored:,}"
        )
    return shape, fortran, dtype


def _mapped_offset(path: str | Path, info: zipfile.ZipInfo) -> int | None:
    """Where in the file the values of a member begin, to map them; None if it has to be read."""
    # Compressed bytes are no array, and a small one costs more to map than to read.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < _MAPPED_BYTES:
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        # Lengths of name and extra field may differ from those in the archive's directory.
        name_length, extra_length = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
        file.seek(name_length, os.SEEK_CUR)
        # Only files of write_npz are mapped: other programs may change a file in place.
        if struct.pack("<H", _PADDING_FIELD) not in file.read(extra_length):
            return None
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        np.lib.format.read_array_header_1_0(file)
        return None if file.tell() % _ALIGNMENT else file.tell()


def as_matrix(path: str | Path, array: np.ndarray, name: str) -> np.ndarray:
    """``array`` as a contiguous float32 matrix (N, C), not copied if it is one; else ValueError."""
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {name!r} must be a matrix of numbers, got shape {array.shape} of "
            f"{array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def as_integers(path: str | Path, array: np.ndarray, name: str, count: int) -> np.ndarray:
    """``array`` as (count,) int64; ValueError for other lengths and types, or 2**63 or more."""
    _check_length(path, array, name, count)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: {name!r} must hold integers, got {array.dtype}")
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise ValueError(f"{path}: {name!r} holds {array.max()}, more than 64-bit integers can")
    return np.array(array, dtype=np.int64)


def as_strings(path: str | Path, array: np.ndarray, name: str, count: int) -> list[str]:
    """``array`` as a list of ``count`` strings; ValueError for another length, or no text."""
    _check_length(path, array, name, count)
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind != "U":
            raise ValueError(f"got {array.dtype}")
        return [str(text) for text in array.tolist()]
    except ValueError as error:  # also bytes that are no UTF-8, and numbers that are no characters
        raise ValueError(f"{path}: {name!r} must hold text, {error}") from error


def _check_length(path: str | Path, array: np.ndarray, name: str, count: int) -> None:
    if array.shape != (count,):
        raise ValueError(f"{path}: {count} rows do not match {name!r} of shape {array.shape}")


def read_failures(path: str | Path, provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Files that could not be decoded, with the error, of a provenance; ValueError if no pairs."""
    failures = provenance.get("failures") or []
    if not isinstance(failures, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in failures
    ):
        raise ValueError(f"{path}: 'failures' in its protocol must be pairs of file and error")
    return [(str(file), str(why)) for file, why in failures]


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
